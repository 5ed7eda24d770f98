"""What this process has taken of its device's memory, and which errors say that it was too little.

Knows the kernel's count of this process's own pages, and torch's allocator where the user's code
has loaded torch. Does not know who shares the device.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

# What CUDA, torch on the CPU and the system say.
_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory")


def taken(device: str) -> int:
    """Return the bytes this process holds of its device's memory; 0 where nobody can tell."""
    if device == "cuda":
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return 0
        return int(torch.cuda.max_memory_reserved())
    with suppress(OSError, ValueError), open("/proc/self/statm") as file:
        _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    return 0


def ran_out(error: BaseException) -> bool:
    """Say whether an error means that there was no memory left, on the machine or on a GPU."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return any(words in str(error).lower() for words in _WORDS)
