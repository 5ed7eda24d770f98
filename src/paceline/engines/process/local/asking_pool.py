"""The worker pool of `ask` and `tell`: the program itself trains, and says how it went.

A worker is a trial in the hands of the program, at the other end of the same kind of socket as a
process. It waits for the driver by running the driver's loop.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from paceline.worker.forkserver_protocol import WorkerExited
from paceline.worker.protocol import AnyMessage, Channel
from paceline.worker.wakeup_pipe import WakeupPipe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.values import SlotId

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

    def _is_readable(self) -> bool:
        return bool(select.select([self._socket], [], [], 0)[0])


class AskingPool:
    """Workers that wait until the program asks for them."""

    # There is no process that could be gone.
    closed = False
    shares_process = True

    def __init__(self, pump: Pump) -> None:
        self._pump = pump
        self._workers = 0
        # Workers that have not exited: the driver's ends of their sockets.
        self._ends: dict[int, socket.socket] = {}
        self._waiting: deque[tuple[int, AskedChannel]] = deque()
        self._exits: list[WorkerExited] = []
        self._wakeup = WakeupPipe()

    @property
    def is_waiting(self) -> bool:
        """Whether a worker has an attempt that the program has not asked for yet."""
        return bool(self._waiting)

    def take(self) -> tuple[int, AskedChannel]:
        """Return the number and the channel of the worker that waits longest."""
        return self._waiting.popleft()

    def exit(self, worker: int) -> None:
        """Let a worker exit: the program has said how it went."""
        if self._ends.pop(worker, None) is not None:
            self._exits.append(WorkerExited(worker, 0))
            self._wakeup.wake()

    # The port

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a worker has exited."""
        return self._wakeup.fileno()

    def prepare(self, count: int) -> None:
        """Do nothing: a worker here starts at once."""

    def acquire(self, slots: Sequence[SlotId]) -> list[tuple[int, Channel]]:
        """Return a worker for the program's next question."""
        mine, theirs = socket.socketpair()
        number = self._workers
        self._workers += 1
        self._ends[number] = mine
        self._waiting.append((number, AskedChannel(theirs, self._pump)))
        return [(number, Channel(mine))]

    def discard(self, worker: int) -> None:
        """Do nothing: no worker exits before it was given an attempt."""

    def kill(self, worker: int, number: int) -> None:
        """Hang up: the trial learns it at its next report, or when it asks."""
        end = self._ends.get(worker)
        if end is not None:
            with suppress(OSError):  # closed before
                end.shutdown(socket.SHUT_WR)

    def poll(self) -> Sequence[WorkerExited]:
        """Return the workers that have exited since the last call."""
        self._wakeup.clear()
        exits, self._exits = self._exits, []
        return exits

    def restart(self) -> None:
        """Do nothing: the pool cannot be gone while the driver runs."""

    def close(self, timeout_s: float) -> None:
        """End the pool, and hang up on the workers that were not asked for."""
        while self._waiting:
            self._waiting.popleft()[1].close()
        self._wakeup.close()
