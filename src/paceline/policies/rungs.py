"""Rungs: the arithmetic that all halving policies share.

Knows milestones, scores, and who is among the best 1/eta at one. Every operation costs O(log n).
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from paceline.core.errors import SpecError
from paceline.core.values import NO_LOSS

if TYPE_CHECKING:
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


def first_rung(given: int | None, epochs: int) -> int:
    """Return the first rung: what is given, or one percent of the epochs, at least one."""
    return min(max(1, epochs // 100) if given is None else given, epochs)


def halvings(first: int, eta: int, epochs: int) -> int:
    """Return how often `first` can be multiplied by eta without passing the last epoch."""
    return len(milestones(first, eta, epochs + 1)) - 2


class Rung:
    """The scores of all who reached a milestone; keeps apart the best n // eta of them.

    A score is (loss, arrival): of equal losses the earlier ranks first, so that a later one never
    takes the place of one that was promoted. Trials of one origin are one score.
    """

    def __init__(self, level: int, eta: int) -> None:
        self.level = level
        # Scores, and the trials they are of.
        self.count = 0
        self.trials = 0
        self._least = 0
        self._eta = eta
        # The best n // eta as a heap with its worst in front, the rest with its best in front.
        self._top: list[tuple[float, int]] = []
        self._rest: list[tuple[float, int]] = []
        self._in_top: set[int] = set()
        # By arrival, the trials of a score that have not gone on; by trial, its arrival.
        self._standing: dict[int, tuple[TrialId, ...]] = {}
        self._arrival: dict[TrialId, int] = {}
        # Scores that may go on, and scores that stand. May also hold some that have lost the
        # property since: `_clean` drops those before they come to the front.
        self._promotable: list[tuple[float, int]] = []
        self._waiting: list[tuple[float, int]] = []
        # Where epochs are shared: the score of an origin.
        self._by_origin: dict[int, tuple[float, int]] = {}

    @property
    def quota(self) -> int:
        """How many are among the best 1/eta."""
        return max(self.count // self._eta, self._least)

    @property
    def cutoff(self) -> float:
        """The worst loss among the best 1/eta; infinite while there are none."""
        return -self._top[0][0] if self._top else NO_LOSS

    def record(self, trial: TrialId, loss: float, origin: int | None) -> None:
        """Take a score. Trials of one origin count once."""
        self.trials += 1
        score = (loss, self.count)
        if origin is not None:
            known = self._by_origin.setdefault(origin, score)
            if known is not score:
                self._join(known, trial)
                return
        self._arrival[trial] = self.count
        self._standing[self.count] = (trial,)
        self.count += 1
        heappush(self._waiting, score)
        if self._top and score < (-self._top[0][0], -self._top[0][1]):
            self._raise(score)
        else:
            heappush(self._rest, score)
        quota = self.quota
        if len(self._top) > quota:
            loss, arrival = heappop(self._top)
            self._in_top.discard(-arrival)
            heappush(self._rest, (-loss, -arrival))
            self._clean()
        elif len(self._top) < quota:
            self._raise(heappop(self._rest))

    def grant(self) -> None:
        """Let the best go on though fewer than eta scores are in."""
        self._least = 1
        if self._rest and not self._top:
            self._raise(heappop(self._rest))

    def leave(self, trial: TrialId) -> None:
        """Note that the trial has gone on, or is gone. Its score stays."""
        arrival = self._arrival.pop(trial, None)
        if arrival is None:
            return
        left = tuple(other for other in self._standing[arrival] if other != trial)
        if left:
            self._standing[arrival] = left
        else:
            del self._standing[arrival]
            self._clean()

    def best_promotable(self) -> TrialId | None:
        """Return the best of those who may go on and have not; never one without a number."""
        return self._standing[self._promotable[0][1]][0] if self._promotable else None

    def best_waiting(self) -> tuple[float, TrialId] | None:
        """Return the best of all who have not gone on, whether they may or not."""
        if not self._waiting:
            return None
        loss, arrival = self._waiting[0]
        return loss, self._standing[arrival][0]

    def _raise(self, score: tuple[float, int]) -> None:
        loss, arrival = score
        self._in_top.add(arrival)
        heappush(self._top, (-loss, -arrival))
        if loss < NO_LOSS and arrival in self._standing:
            heappush(self._promotable, score)

    def _join(self, score: tuple[float, int], trial: TrialId) -> None:
        loss, arrival = score
        self._arrival[trial] = arrival
        standing = self._standing.get(arrival, ())
        self._standing[arrival] = (*standing, trial)
        if not standing:
            heappush(self._waiting, score)
            if loss < NO_LOSS and arrival in self._in_top:
                heappush(self._promotable, score)

    def _clean(self) -> None:
        """Drop what no longer belongs from the fronts, so that they can be read without writing."""
        waiting, promotable = self._waiting, self._promotable
        standing, top = self._standing, self._in_top
        while waiting and waiting[0][1] not in standing:
            heappop(waiting)
        while promotable and not (promotable[0][1] in top and promotable[0][1] in standing):
            heappop(promotable)
