"""Who waits for a slot, in the order in which they should have one.

Knows the length of each one's path: the longest comes first, and of equals who has waited longest.
Does not know what a path is.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.core.values import TrialId


class Waiting(Collection["TrialId"]):
    """Trials in order; adding and taking one costs O(log n), but for moving the others up."""

    def __init__(self) -> None:
        # (minus the length, arrival, trial), sorted; and each trial's own.
        self._line: list[tuple[float, int, TrialId]] = []
        self._places: dict[TrialId, tuple[float, int, TrialId]] = {}
        self._arrivals = 0

    def add(self, trial: TrialId, length: float) -> None:
        """Let a trial wait; one that waits already keeps its arrival."""
        arrival = self._arrivals
        known = self._places.get(trial)
        if known is not None:
            arrival = known[1]
            self.discard(trial)
        self._arrivals += known is None
        place = self._places[trial] = (-length, arrival, trial)
        insort(self._line, place)

    def discard(self, trial: TrialId) -> None:
        """Let it wait no more, if it does."""
        place = self._places.pop(trial, None)
        if place is not None:
            del self._line[bisect_left(self._line, place)]

    def __contains__(self, trial: object) -> bool:
        return trial in self._places

    def __iter__(self) -> Iterator[TrialId]:
        return (trial for _, _, trial in self._line)

    def __len__(self) -> int:
        return len(self._line)
