"""Rungs: the arithmetic that all halving policies share.

Knows milestones, scores, and which trials are among the best 1/eta of a rung. Every operation costs
O(log n). Does not know a policy.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from paceline.core.errors import SpecError
from paceline.core.values import NO_LOSS, OPEN_ENDED

if TYPE_CHECKING:
    from paceline.core.values import TrialId


def compute_milestones(first: int, eta: int, epochs: int) -> list[int]:
    """Return first, first·eta, first·eta², … below the last epoch, and the last epoch."""
    if first < 1:
        raise SpecError(f"first={first} is invalid: the first rung must be at epoch 1 or later.")
    if eta < 2:
        raise SpecError(f"eta={eta} is invalid: must be at least 2, since the best 1/eta train on.")
    levels = []
    level = first
    while level < epochs:
        levels.append(level)
        level *= eta
    return [*levels, epochs]


def choose_first_rung(given: int | None, epochs: int) -> int:
    """Return the first rung: the given epoch, or one percent of the epochs, at least one.

    It is the first epoch where only the training function knows the last one.
    """
    if given is None:
        return 1 if epochs >= OPEN_ENDED else max(1, epochs // 100)
    return min(given, epochs)


def count_halvings(first: int, eta: int, epochs: int) -> int:
    """Return how often `first` can be multiplied by eta without passing the last epoch."""
    return len(compute_milestones(first, eta, epochs + 1)) - 2


class Rung:
    """The scores of all trials that reached a milestone, with the best n // eta kept apart.

    A score is (loss, arrival): of equal losses the earlier ranks first, so that a later trial never
    displaces a promoted one. Trials of one origin have one score.
    """

    def __init__(self, level: int, eta: int) -> None:
        self.level = level
        # The number of scores, and of trials that have them.
        self.count = 0
        self.trials = 0
        # The number of scores among the best 1/eta.
        self.quota = 0
        self._eta = eta
        # The best n // eta as a heap with its worst in front, the rest with its best in front.
        self._top: list[tuple[float, int]] = []
        self._rest: list[tuple[float, int]] = []
        self._in_top: set[int] = set()
        # By arrival, the trials of a score that are still paused here; by trial, its arrival.
        self._remaining: dict[int, tuple[TrialId, ...]] = {}
        self._arrival: dict[TrialId, int] = {}
        # Heaps of promotable and of paused scores. They may hold outdated scores, which
        # `_drop_stale` removes before they reach the front.
        self._promotable: list[tuple[float, int]] = []
        self._paused: list[tuple[float, int]] = []
        # The best paused trial that may be promoted, if there is one; never one without a loss. A
        # field, since it is read far more often than it changes.
        self.best_promotable: TrialId | None = None
        # With shared epochs: the score of an origin.
        self._by_origin: dict[int, tuple[float, int]] = {}

    @property
    def cutoff(self) -> float:
        """The worst loss among the best 1/eta; infinite while there is none."""
        return -self._top[0][0] if self._top else NO_LOSS

    def record(self, trial: TrialId, loss: float, origin: int | None) -> None:
        """Add a trial's score. Trials of one origin count once."""
        self.trials += 1
        arrival = self.count
        score = (loss, arrival)
        if origin is not None:
            known = self._by_origin.setdefault(origin, score)
            if known is not score:
                self._join_score(known, trial)
                self._find_best_promotable()
                return
        self._arrival[trial] = arrival
        self._remaining[arrival] = (trial,)
        self.count = count = arrival + 1
        heappush(self._paused, score)
        top, rest = self._top, self._rest
        # Of equal losses the one in the top came earlier and ranks first.
        if top and loss < -top[0][0]:
            self._add_to_top(score)
        else:
            heappush(rest, score)
        if count // self._eta > self.quota:
            self.quota += 1
        if len(top) > self.quota:
            worst, arrived = heappop(top)
            self._in_top.discard(-arrived)
            heappush(rest, (-worst, -arrived))
            self._drop_stale()
        elif len(top) < self.quota:
            self._add_to_top(heappop(rest))
        self._find_best_promotable()

    def _find_best_promotable(self) -> None:
        promotable = self._promotable
        self.best_promotable = self._remaining[promotable[0][1]][0] if promotable else None

    def allow_one(self) -> None:
        """Allow one promotion although there are fewer than eta scores."""
        self.quota = max(self.quota, 1)
        if self._rest and not self._top:
            self._add_to_top(heappop(self._rest))
            self._find_best_promotable()

    def remove(self, trial: TrialId) -> None:
        """Remove a trial that trains on or has ended. Its score stays."""
        arrival = self._arrival.pop(trial, None)
        if arrival is None:
            return
        remaining = self._remaining[arrival]
        if len(remaining) == 1:
            del self._remaining[arrival]
            self._drop_stale()
        else:
            self._remaining[arrival] = tuple(other for other in remaining if other != trial)
        self._find_best_promotable()

    @property
    def promotable_count(self) -> int:
        """The number of paused trials that may be promoted."""
        return sum(
            len(self._remaining.get(arrival, ()))
            for loss, arrival in self._promotable
            if arrival in self._in_top
        )

    @property
    def paused_count(self) -> int:
        """The number of paused trials, promotable or not."""
        return len(self._arrival)

    @property
    def best_paused(self) -> tuple[float, TrialId] | None:
        """The best paused trial with its loss, promotable or not."""
        if not self._paused:
            return None
        loss, arrival = self._paused[0]
        return loss, self._remaining[arrival][0]

    def _add_to_top(self, score: tuple[float, int]) -> None:
        loss, arrival = score
        self._in_top.add(arrival)
        heappush(self._top, (-loss, -arrival))
        if loss < NO_LOSS and arrival in self._remaining:
            heappush(self._promotable, score)

    def _join_score(self, score: tuple[float, int], trial: TrialId) -> None:
        loss, arrival = score
        self._arrival[trial] = arrival
        remaining = self._remaining.get(arrival, ())
        self._remaining[arrival] = (*remaining, trial)
        if not remaining:
            heappush(self._paused, score)
            if loss < NO_LOSS and arrival in self._in_top:
                heappush(self._promotable, score)

    def _drop_stale(self) -> None:
        """Remove outdated scores from the fronts of the heaps, so that reading never writes."""
        paused, promotable = self._paused, self._promotable
        remaining, top = self._remaining, self._in_top
        while paused and paused[0][1] not in remaining:
            heappop(paused)
        while promotable and not (promotable[0][1] in top and promotable[0][1] in remaining):
            heappop(promotable)
