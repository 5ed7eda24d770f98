"""The study's clock on this machine, and its timers.

Knows seconds since the study began, which stand still while no driver runs. Does not know what the
timers call.
"""

from __future__ import annotations

import heapq
import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock:
    """Runs from 0, or from where a log ended; `began` is that moment on the monotonic clock.

    The system's clock may be set meanwhile: nothing here depends on it.
    """

    def __init__(
        self, began: float | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._monotonic = monotonic
        self._began = monotonic() if began is None else began
        # (when, number, callback): numbers make ties first-in first-out.
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0

    @property
    def now(self) -> float:
        """Seconds since the study began."""
        return self._monotonic() - self._began

    @property
    def next_due(self) -> float:
        """When the next timer is due; infinity: never."""
        return self._timers[0][0] if self._timers else math.inf

    def resume(self, at: float) -> None:
        """Continue from this time."""
        self._began = self._monotonic() - at

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Call this at a time of the study; where that is past, at the next `run_due`."""
        heapq.heappush(self._timers, (when, self._numbers, callback))
        self._numbers += 1

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call this after some seconds."""
        self.call_at(self.now + seconds, callback)

    def run_due(self) -> float:
        """Run all timers that are due, and return the time for an event that follows them."""
        now = self.now
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
        return now
