"""The odds that trials still to come branch from a path: learned from the trials so far.

Knows how long a prefix each trial shared with the trials before it, and at which epochs settings
change. Does not know the tree itself, times or checkpoints.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.plan.settings import Stretch

# If the number of trials to come is unknown, as many are expected as have come, and this many at
# the start.
_FEWEST_COMING = 10


class BranchOdds:
    """Counts where trials branched, and estimates how likely a branch is after an epoch.

    A trial branches after the epochs that it shares with earlier trials. A *place* is an epoch of
    one path; trials that share that epoch share the place.
    """

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs
        self._trials = 0
        # The number of trials by the length of the prefix that they shared.
        self._shared: dict[int, int] = {}
        # Epochs after which trials branched, or some trial's settings change.
        self._candidates: set[int] = set()
        # The number of trials by their goal.
        self._goals: dict[int, int] = {}

    def record(self, shared: int, path: Sequence[Stretch]) -> None:
        """Record a path of which the first `shared` epochs are also those of an earlier path."""
        if shared >= self._epochs:
            return  # a repeated config needs no training
        self._trials += 1
        self._shared[shared] = self._shared.get(shared, 0) + 1
        if shared:
            self._candidates.add(shared)
        before = 0
        for until, _ in path[:-1]:
            # Where settings change in every epoch, no epoch is likelier than another.
            if until - before > 1:
                self._candidates.add(until)
            before = until

    def record_goal(self, before: int | None, after: int) -> None:
        """Record the epoch that a trial may train up to; `before`: the epoch so far, if any."""
        if before is not None:
            self._goals[before] -= 1
        self._goals[after] = self._goals.get(after, 0) + 1

    def list_candidates(self, start: int, until: int) -> list[int]:
        """Return the epochs between these two after which a branch is possible."""
        if not self._candidates:
            return []
        return sorted(epoch for epoch in self._candidates if start < epoch < until)

    def estimate(self, epoch: int, coming: int | None) -> float:
        """Return the probability that one of the coming trials branches from a place here.

        None: their number is unknown.
        """
        if epoch not in self._candidates:
            return 0.0
        # A trial branches here from some earlier one: with this probability, and from each place
        # with the same.
        hit = (self._shared.get(epoch, 0) + 1.0) / (self._trials + 1.0)
        places = sum(count for shared, count in self._shared.items() if shared < epoch)
        going = sum(count for goal, count in self._goals.items() if goal > epoch)
        passing = (going + 1.0) / (sum(self._goals.values()) + 1.0)
        if coming is None:
            coming = max(self._trials, _FEWEST_COMING)
        return -math.expm1(-coming * passing * hit / max(places, 1))
