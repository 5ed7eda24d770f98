"""Looks: the epochs at which trials are judged, and what a trial has reported by then.

A look is at epoch 1, 2, 3, 4, 5, 7, 9, 12, … and at the last one. Knows epochs and reports of one
trial; nothing of other trials.
"""

from __future__ import annotations

import math

import numpy as np

# Chances are computed for this many later looks at most.
HORIZONS = 10
# The ratio of two looks that follow each other.
_RATIO = 1.35


def list_looks(epochs: int) -> list[int]:
    """Return the epochs at which trials are judged; the last one is the last epoch.

    >>> list_looks(20)
    [1, 2, 3, 4, 5, 7, 9, 12, 16, 20]
    """
    looks = [1]
    while looks[-1] < epochs:
        looks.append(min(epochs, max(looks[-1] + 1, round(_RATIO * looks[-1]))))
    return looks


def list_horizons(looks: int) -> list[list[int]]:
    """Return for each look the later looks to ask for; repeats of the last one fill the row.

    >>> list_horizons(3)
    [[1, 2, 2, 2, 2, 2, 2, 2, 2, 2], [2, 2, 2, 2, 2, 2, 2, 2, 2, 2], [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]]
    """
    rows = []
    for level in range(looks):
        ahead = looks - 1 - level
        steps = list(range(1, ahead + 1))
        if ahead > HORIZONS:
            spread = np.round(np.geomspace(1, ahead, HORIZONS)).astype(int)
            steps = sorted(set(spread.tolist()))
        row = [level + step for step in steps]
        rows.append(row + [looks - 1] * (HORIZONS - len(row)))
    return rows


class Look:
    """What a trial has reported so far, as a look sees it."""

    __slots__ = ("best", "best_epoch", "last", "path")

    def __init__(
        self,
        best: float = math.inf,
        last: float = math.inf,
        best_epoch: int = 0,
        path: float = 0.0,
    ) -> None:
        self.best = best
        self.last = last
        # The epoch of the best loss.
        self.best_epoch = best_epoch
        # The sum of the sizes of all changes from one epoch to the next.
        self.path = path

    def add(self, epoch: int, loss: float) -> None:
        """Add a report."""
        if loss < self.best:
            self.best = loss
            self.best_epoch = epoch
        change = abs(loss - self.last)
        if change < math.inf:
            self.path += change
        self.last = loss
