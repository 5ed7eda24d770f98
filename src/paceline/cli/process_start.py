"""When this process started: the deadline of `paceline run` counts from there.

Knows what Linux says about it; elsewhere it is the moment at which this module was imported.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

# The portable answer.
_IMPORTED = time.monotonic()
# A process that is older when this module is imported was another program before.
_MOST_S = 10.0


def find_process_start() -> float:
    """Return when this process started, on the monotonic clock."""
    try:
        stat = Path("/proc/self/stat").read_text()
        # The 22nd field; the second one may contain spaces.
        ticks = int(stat.rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return _IMPORTED
    started = time.monotonic() - age
    return started if 0 <= _IMPORTED - started <= _MOST_S else _IMPORTED
