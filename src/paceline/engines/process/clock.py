"""The study's clock on this machine, and what is to be done when.

Knows seconds since the study began, which stand still while no driver runs. Does not know what it
is asked to do.
"""

from __future__ import annotations

import heapq
import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock:
    """Runs from 0, or from where a log ended; `began` is when that was, on the monotonic clock."""

    def __init__(self, began: float | None = None) -> None:
        self._began = time.monotonic() if began is None else began
        self._resumed = 0.0
        # (when, number, what): numbers make ties first-in first-out.
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0

    @property
    def now(self) -> float:
        """Seconds since the study began."""
        return time.monotonic() - self._began

    @property
    def due(self) -> float:
        """When there is something to do next; infinity: never."""
        return self._timers[0][0] if self._timers else math.inf

    def resume(self, at: float) -> None:
        """Go on from here, or from the latest that was said: a late wake tells an earlier time."""
        self._resumed = max(self._resumed, at)
        self._began = time.monotonic() - self._resumed

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Do this then; where that is past, at the next strike."""
        heapq.heappush(self._timers, (when, self._numbers, what))
        self._numbers += 1

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Do this in so many seconds."""
        self.at(self.now + seconds, what)

    def strike(self) -> float:
        """Do everything that is due, and return the time for a fact that is told after it."""
        now = self.now
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
        return now
