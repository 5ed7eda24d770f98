"""Rungs: the arithmetic that all halving policies share.

Knows milestones, scores, and who is among the best 1/eta at one. Every operation costs O(log n).
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from paceline.core.errors import SpecError
from paceline.core.values import NO_LOSS

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.values import TrialId


def milestones(first: int, eta: int, epochs: int) -> list[int]:
    """Return first, first·eta, first·eta², … below the last epoch, and the last epoch."""
    if first < 1:
        raise SpecError(f"first={first} cannot be meant: the first rung is at epoch 1 or later.")
    if eta < 2:
        raise SpecError(f"eta={eta} cannot be meant: the best 1/eta go on, so give 2 or more.")
    levels = []
    level = first
    while level < epochs:
        levels.append(level)
        level *= eta
    return [*levels, epochs]


class Mark:
    """One score at a rung, and the trials that stand there with it."""

    __slots__ = ("key", "top", "trials")

    def __init__(self, loss: float, trial: TrialId) -> None:
        # The trial breaks ties, so that the order in which equal losses arrive does not matter.
        self.key = (loss, trial)
        # Those who have not gone on. More than one only where trials share the epoch.
        self.trials = [trial]
        self.top = False


class Rung:
    """The scores of all who reached a milestone; keeps apart the best n // eta of them."""

    def __init__(self, level: int, eta: int) -> None:
        self.level = level
        self.count = 0
        self._eta = eta
        # The best n // eta as a heap with its worst in front, the rest with its best in front.
        self._top: list[tuple[float, TrialId, Mark]] = []
        self._rest: list[tuple[float, TrialId, Mark]] = []
        # Marks whose trials may go on, and marks with trials that have not. May also hold some
        # that have lost the property since: `_first` drops those when it meets them.
        self._promotable: list[tuple[float, TrialId, Mark]] = []
        self._waiting: list[tuple[float, TrialId, Mark]] = []
        self._by_trial: dict[TrialId, Mark] = {}
        self._by_origin: dict[int, Mark] = {}

    @property
    def quota(self) -> int:
        """How many are among the best 1/eta."""
        return self.count // self._eta

    @property
    def cutoff(self) -> float:
        """The worst loss among the best 1/eta; infinite while there are none."""
        return -self._top[0][0] if self._top else NO_LOSS

    def record(self, trial: TrialId, loss: float, origin: int | None) -> None:
        """Take a score. Trials that share the epoch, which have one origin, count once."""
        if origin is not None:
            shared = self._by_origin.get(origin)
            if shared is not None:
                self._join(shared, trial)
                return
        mark = Mark(loss, trial)
        if origin is not None:
            self._by_origin[origin] = mark
        self._by_trial[trial] = mark
        self.count += 1
        heappush(self._waiting, (loss, trial, mark))
        if self._top and mark.key < (-self._top[0][0], -self._top[0][1]):
            self._raise(mark)
        else:
            heappush(self._rest, (loss, trial, mark))
        if len(self._top) > self.quota:
            fallen = heappop(self._top)[2]
            fallen.top = False
            heappush(self._rest, (*fallen.key, fallen))
            _clean(self._promotable, _may_go)
        elif len(self._top) < self.quota:
            self._raise(heappop(self._rest)[2])

    def leave(self, trial: TrialId) -> None:
        """Note that the trial has gone on, or is gone. Its score stays."""
        mark = self._by_trial.pop(trial, None)
        if mark is not None:
            mark.trials.remove(trial)
            _clean(self._waiting, _stands)
            _clean(self._promotable, _may_go)

    def best_promotable(self) -> TrialId | None:
        """Return the best of those who may go on and have not; never one without a number."""
        return self._promotable[0][2].trials[0] if self._promotable else None

    def best_waiting(self) -> tuple[float, TrialId] | None:
        """Return the best of all who have not gone on, whether they may or not."""
        return (self._waiting[0][0], self._waiting[0][2].trials[0]) if self._waiting else None

    def _raise(self, mark: Mark) -> None:
        mark.top = True
        loss, trial = mark.key
        heappush(self._top, (-loss, -trial, mark))
        if mark.trials and loss < NO_LOSS:
            heappush(self._promotable, (loss, trial, mark))

    def _join(self, mark: Mark, trial: TrialId) -> None:
        self._by_trial[trial] = mark
        mark.trials.append(trial)
        if len(mark.trials) == 1:
            heappush(self._waiting, (*mark.key, mark))
            if mark.top and mark.key[0] < NO_LOSS:
                heappush(self._promotable, (*mark.key, mark))


def _stands(mark: Mark) -> bool:
    return bool(mark.trials)


def _may_go(mark: Mark) -> bool:
    return mark.top and bool(mark.trials)


def _clean(heap: list[tuple[float, TrialId, Mark]], holds: Callable[[Mark], bool]) -> None:
    """Drop what no longer belongs from the front, so that the front can be read without writing."""
    while heap and not holds(heap[0][2]):
        heappop(heap)
