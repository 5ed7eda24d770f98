"""The worker pool of `ask` and `tell`: the program itself trains, and says how it went.

A worker is a trial that the program trains, at the other end of the same kind of socket as a
process. It waits for the driver by running the driver's loop.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

from paceline.engines.process.local.same_process_pool import SameProcessPool
from paceline.worker.protocol import AnyMessage, Channel

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    # Runs the driver's loop until the condition holds; False if it never will.
    Pump = Callable[[Callable[[], bool]], bool]


class AskedChannel(Channel):
    """The trial's end of a socket whose other end is read by the same thread."""

    def __init__(self, end: socket.socket, pump: Pump) -> None:
        super().__init__(end)
        self._socket = end
        self._pump = pump

    def receive(self, *, wait: bool) -> AnyMessage | None:
        """Return the next message; run the driver's loop until there is one."""
        found = super().receive(wait=False)
        while found is None and wait and not self.closed:
            if not self._pump(self._is_readable):
                return None
            found = super().receive(wait=False)
        return found

    def write(self, data: bytes) -> None:
        """Send bytes; run the driver's loop while the socket is full, since nothing else reads."""
        if self._pump(self._is_writable):
            super().write(data)

    def _is_writable(self) -> bool:
        return self.closed or bool(select.select([], [self._socket], [], 0)[1])

    def _is_readable(self) -> bool:
        return bool(select.select([self._socket], [], [], 0)[0])


class AskingPool(SameProcessPool[AskedChannel]):
    """Workers that wait until the program asks for them."""

    def __init__(self, pump: Pump) -> None:
        super().__init__(lambda end: AskedChannel(end, pump))

    @property
    def is_waiting(self) -> bool:
        """Whether a worker has an attempt that the program has not asked for yet."""
        return bool(self._waiting)

    def take(self) -> tuple[int, AskedChannel]:
        """Return the number and the channel of the worker that waits longest."""
        return self._waiting.popleft()
