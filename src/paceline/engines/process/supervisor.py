"""The worker processes of all attempts: started, read, ended, and noticed when they exit.

Knows workers, their channels, and how long to wait for one. What a message means, and what follows
when an attempt has ended, the engine knows.
"""

from __future__ import annotations

import contextlib
import select
import selectors
import signal
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from paceline.core.events import Cause
from paceline.engines.process.attempt import RunningAttempt, WorkerProcess
from paceline.worker.forkserver_protocol import WorkerExited

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from paceline.core.decisions import Launch
    from paceline.core.values import AttemptId
    from paceline.engines.process.clock import Clock
    from paceline.engines.process.providers import CheckpointPublished, SlotsChanged, WorkerPool
    from paceline.worker.protocol import AnyMessage, StartAttempt

# What `poll` returns: a message or the exit of a process, and other reports of the pool.
SupervisorEvent: TypeAlias = (
    "tuple[WorkerProcess, AnyMessage | WorkerExited] | SlotsChanged | CheckpointPublished"
)

_POOL_KILLED = "all workers were killed"


class Timeouts(Struct, frozen=True, kw_only=True):
    """How long the engine waits for workers, in seconds."""

    # From SIGTERM to SIGKILL.
    grace_s: float = 5.0
    # The same when the study is over: its result does not wait.
    last_grace_s: float = 0.1
    # The same for a gang that has lost a process: one that waits for it in an exchange of gradients
    # handles no signal.
    gang_grace_s: float = 0.5
    # An attempt without a report for this long is taken for hanging; None: never.
    hang_s: float | None = None
    # How often the engine looks for GPUs that have disappeared.
    look_s: float = 10.0


class Supervisor:
    """All worker processes of one study, by attempt."""

    def __init__(self, pool: WorkerPool, clock: Clock, timeouts: Timeouts) -> None:
        self.attempts: dict[AttemptId, RunningAttempt] = {}
        self._processes: dict[int, WorkerProcess] = {}
        self._pool = pool
        self._clock = clock
        self._timeouts = timeouts
        # The key's data: a process, or None for the pool.
        self._selector = selectors.DefaultSelector()
        self._selector.register(pool.fileno(), selectors.EVENT_READ, None)

    def wake_on(self, descriptor: int) -> None:
        """Let `poll` return when this descriptor is readable, too."""
        self._selector.register(descriptor, selectors.EVENT_READ, descriptor)

    def prepare(self, count: int) -> None:
        """Start workers ahead of time."""
        self._pool.prepare(count)

    def start(self, launch: Launch, starts: Iterable[StartAttempt], log: Path) -> RunningAttempt:
        """Give an attempt to workers, by rank."""
        attempt = RunningAttempt(launch, self._pool.acquire(launch.slots), log)
        attempt.heard_at = self._clock.now
        self.attempts[attempt.id] = attempt
        for process, start in zip(attempt.processes, starts, strict=True):
            self._processes[process.worker] = process
            if process.channel.fileno() >= 0:
                self._selector.register(process.channel.fileno(), selectors.EVENT_READ, process)
            process.channel.send(start)
        if attempt.is_single:
            self._pool.prepare(1)  # in place of the worker that was prepared for it
        return attempt

    def poll(self, timeout: float | None) -> list[SupervisorEvent]:
        """Wait until something has arrived, and return it in order.

        The exit of a process comes after its last message; pass it to `remove`.
        """
        events: list[SupervisorEvent] = []
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                events += self._read_pool()
            elif isinstance(key.data, WorkerProcess):
                events += self._read(key.data)
        return events

    @property
    def is_pool_lost(self) -> bool:
        """Whether the pool's process is gone, and every worker with it."""
        return self._pool.closed

    def restart_pool(self, spares: int) -> list[SupervisorEvent]:
        """Start the pool again after it was killed; return what its workers left."""
        events: list[SupervisorEvent] = []
        for process in list(self._processes.values()):
            channel = process.channel
            # Without waiting: a process the worker started may still hold the channel open.
            while not channel.closed and select.select([channel], [], [], 0)[0]:
                events += ((process, message) for message in channel.read_messages())
            self._hang_up(process)
            events.append((process, WorkerExited(process.worker, 0, _POOL_KILLED)))
        self._selector.unregister(self._pool.fileno())
        self._pool.restart()
        self._selector.register(self._pool.fileno(), selectors.EVENT_READ, None)
        self._pool.prepare(spares)
        return events

    def remove(self, process: WorkerProcess, exited: WorkerExited) -> bool:
        """Remove a process that exited, and end what is left of a gang.

        Return whether the attempt is over: all its processes are gone.
        """
        attempt = process.attempt
        if exited.lost:
            attempt.lose(exited.lost)
        attempt.remove(process, exited.status)
        if not attempt.processes:
            del self.attempts[attempt.id]
            return True
        if attempt.cause in (Cause.FAILED, Cause.LOST):
            self.end(attempt, self._timeouts.gang_grace_s)
        elif attempt.cause is not None or not process.returned:
            # The others end the same way in a moment; a process that does not is stuck.
            self._clock.call_later(self._timeouts.grace_s, lambda: self._kill(attempt))
        return False

    def let_go(self, process: WorkerProcess) -> bool:
        """Forget a process that has nothing left to do but to exit, with the attempt it was for.

        Return False if the process has exited already: `poll` has returned that, too.
        """
        if process.worker not in self._processes:
            return False
        attempt = process.attempt
        attempt.remove(process, 0)
        del self.attempts[attempt.id]
        self._hang_up(process)
        return True

    def end(self, attempt: RunningAttempt, grace_s: float | None = None) -> None:
        """Send SIGTERM to an attempt's processes, and SIGKILL after the grace."""
        self._signal(attempt, signal.SIGTERM)
        grace = self._timeouts.grace_s if grace_s is None else grace_s
        self._clock.call_later(grace, lambda: self._kill(attempt))

    def end_all(self) -> None:
        """Send SIGTERM to all processes."""
        for attempt in self.attempts.values():
            self._signal(attempt, signal.SIGTERM)

    def close(self) -> None:
        """Kill the processes that are left, and close the pool."""
        for attempt in self.attempts.values():
            self._signal(attempt, signal.SIGKILL)
        for process in self._processes.values():
            process.channel.close()
        self._pool.close(self._timeouts.last_grace_s)
        self._selector.close()
        self.attempts.clear()

    def _read_pool(self) -> Iterator[SupervisorEvent]:
        for event in self._pool.poll():
            if isinstance(event, WorkerExited):
                yield from self._exited(event)
            elif isinstance(event, tuple):
                worker, message = event
                if worker in self._processes:
                    yield self._processes[worker], message
            else:
                yield event

    def _read(self, process: WorkerProcess) -> Iterator[SupervisorEvent]:
        channel = process.channel
        if channel.closed:
            return  # its exit was read in this very round
        for message in channel.read_messages():
            yield process, message
        if channel.closed:
            self._selector.unregister(channel.fileno())

    def _exited(self, exited: WorkerExited) -> Iterator[SupervisorEvent]:
        process = self._processes.get(exited.worker)
        if process is None:
            self._pool.discard(exited.worker)
            return
        # A channel without a descriptor has nothing left: the pool has returned its messages.
        while process.channel.fileno() >= 0 and not process.channel.closed:
            for message in process.channel.read_messages():
                yield process, message
        self._hang_up(process)
        yield process, exited

    def _hang_up(self, process: WorkerProcess) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(process.channel.fileno())
        process.channel.close()
        del self._processes[process.worker]

    def _kill(self, attempt: RunningAttempt) -> None:
        attempt.kill()
        self._signal(attempt, signal.SIGKILL)

    def _signal(self, attempt: RunningAttempt, number: int) -> None:
        for process in attempt.processes:
            self._pool.kill(process.worker, number)
