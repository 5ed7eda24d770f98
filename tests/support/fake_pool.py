"""A worker pool without processes: tests read what the engine sends, and post what workers send."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.worker.wakeup_pipe import WakeupPipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.engines.process.providers import PoolEvent
    from paceline.worker.protocol import AnyMessage


class FakeChannel:
    """Records the messages to one worker."""

    def __init__(self) -> None:
        self.closed = False
        self.sent: list[AnyMessage] = []

    def fileno(self) -> int:
        return -1

    def send(self, message: AnyMessage) -> None:
        self.sent.append(message)

    def read_messages(self) -> Sequence[AnyMessage]:
        return ()

    def close(self) -> None:
        self.closed = True


class FakePool:
    """Hands out channels, numbered by worker, and reports what a test posts."""

    closed = False

    shares_process = False

    def __init__(self) -> None:
        self.channels: list[FakeChannel] = []
        # Signals that were sent, by worker.
        self.signals: list[tuple[int, int]] = []
        self._wakeup = WakeupPipe()
        self._events: list[PoolEvent] = []

    def post(self, *events: PoolEvent) -> None:
        """Let the next `poll` return these events, too."""
        self._events += events
        self._wakeup.wake()

    def fileno(self) -> int:
        return self._wakeup.fileno()

    def prepare(self, count: int) -> None:
        """Nothing is started ahead of time."""

    def acquire(self, slots: Sequence[int]) -> list[tuple[int, FakeChannel]]:
        first = len(self.channels)
        self.channels += (FakeChannel() for _ in slots)
        return list(enumerate(self.channels))[first:]

    def discard(self, worker: int) -> None:
        """There are no spare workers."""

    def kill(self, worker: int, number: int) -> None:
        self.signals.append((worker, number))

    def poll(self) -> list[PoolEvent]:
        self._wakeup.clear()
        events, self._events = self._events, []
        return events

    def restart(self) -> None:
        """A pool without a process is never killed."""

    def close(self, timeout_s: float) -> None:
        self._wakeup.close()
