"""The memory of this process on its device, and the errors that mean out of memory.

Reads the kernel's count of this process's own pages, or torch's allocator where the user's code has
loaded torch. Does not know the other processes on the device.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

# The messages of CUDA, of torch on the CPU, and of the system.
_MESSAGES = ("out of memory", "can't allocate memory", "cannot allocate memory")


def measure_memory(device: str) -> int:
    """Return the bytes this process holds of its device's memory; 0 if unknown."""
    if device == "cuda":
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return 0
        return int(torch.cuda.max_memory_reserved())
    with suppress(OSError, ValueError), open("/proc/self/statm") as file:
        _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    return 0


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error means out of memory, on the machine or on a GPU."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return any(text in str(error).lower() for text in _MESSAGES)
