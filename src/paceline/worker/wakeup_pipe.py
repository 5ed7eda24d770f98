"""A pipe that wakes a `select` from another thread or from a signal handler.

Knows file descriptors. Does not know what the waiting side does when it wakes.
"""

from __future__ import annotations

import contextlib
import os
import threading


class WakeupPipe:
    """Becomes readable on `wake`, and stays so until `clear`."""

    def __init__(self) -> None:
        self._read_fd, self.write_fd = os.pipe()
        # A full pipe is readable: writing more must not block. `signal.set_wakeup_fd` requires it.
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self.write_fd, False)
        # A write after `close` could reach another file that got the same descriptor.
        self._lock = threading.Lock()
        self._closed = False

    def fileno(self) -> int:
        """Return the descriptor that becomes readable."""
        return self._read_fd

    def wake(self) -> None:
        """Make the pipe readable; safe from any thread, and without effect after `close`."""
        with self._lock, contextlib.suppress(BlockingIOError):
            if not self._closed:
                os.write(self.write_fd, b"\0")

    def clear(self) -> None:
        """Make the pipe unreadable until the next `wake`; call it before looking for news."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read_fd, 1 << 16)

    def close(self) -> None:
        """Close both ends."""
        with self._lock:
            self._closed = True
            os.close(self._read_fd)
            os.close(self.write_fd)
