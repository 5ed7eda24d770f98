"""What worker pools in the driver's process share: sockets, and exits as the engine sees them.

A worker is code of the driver's process, at the other end of the same kind of socket as a process.
It cannot be killed: it ends at its next report.
"""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

from paceline.worker.forkserver_protocol import WorkerExited
from paceline.worker.protocol import Channel
from paceline.worker.wakeup_pipe import WakeupPipe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.values import SlotId

End = TypeVar("End", bound=Channel)


class SameProcessPool(Generic[End]):
    """Workers in the driver's process. Subclasses run those that wait, and let them exit."""

    # There is no process that could be gone.
    closed = False
    shares_process = True

    def __init__(self, open_end: Callable[[socket.socket], End]) -> None:
        self._open_end = open_end
        self._workers = 0
        # Workers that have not exited, by number: the driver's ends of their sockets.
        self._ends: dict[int, socket.socket] = {}
        # Workers that nothing runs yet, with their own ends.
        self._waiting: deque[tuple[int, End]] = deque()
        # A queue, since workers may exit in another thread than the engine's.
        self._exits: SimpleQueue[WorkerExited] = SimpleQueue()
        self._wakeup = WakeupPipe()

    def exit(self, worker: int, status: int = 0) -> None:
        """Let a worker exit, unless it has exited."""
        if self._ends.pop(worker, None) is not None:
            self._exits.put(WorkerExited(worker, status))
            self._wakeup.wake()

    # The port

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a worker has exited."""
        return self._wakeup.fileno()

    def prepare(self, count: int) -> None:
        """Do nothing: a worker here starts at once."""

    def acquire(self, slots: Sequence[SlotId]) -> list[tuple[int, Channel]]:
        """Return a worker that waits to be run."""
        mine, theirs = socket.socketpair()
        number = self._workers
        self._workers += 1
        self._ends[number] = mine
        self._waiting.append((number, self._open_end(theirs)))
        return [(number, Channel(mine))]

    def discard(self, worker: int) -> None:
        """Do nothing: no worker exits before it was given an attempt."""

    def kill(self, worker: int, number: int) -> None:
        """Close one direction: the worker unwinds at its next report, and can still be read."""
        end = self._ends.get(worker)
        if end is not None:
            with suppress(OSError):  # it is closed
                end.shutdown(socket.SHUT_WR)

    def hang_up(self) -> None:
        """Close both directions: a worker whose messages nothing reads would wait for ever."""
        for end in list(self._ends.values()):
            with suppress(OSError):  # it is closed
                end.shutdown(socket.SHUT_RDWR)

    def poll(self) -> Sequence[WorkerExited]:
        """Return the workers that have exited since the last call."""
        self._wakeup.clear()
        exits = []
        while True:
            try:
                exits.append(self._exits.get_nowait())
            except Empty:
                return exits

    def restart(self) -> None:
        """Do nothing: the pool cannot be gone while the driver runs."""

    def close(self, timeout_s: float) -> None:
        """Close the pool, and the channels of workers that nothing has run."""
        while self._waiting:
            self._waiting.popleft()[1].close()
        self._wakeup.close()
