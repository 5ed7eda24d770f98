"""Successive halving, synchronous: bracket after bracket of the same shape.

Rule: eta^s trials, s = floor(log_eta(epochs / first)), train to epochs / eta^s; when all of a rung
are there the best 1/eta go on to eta times as many epochs, and the others are stopped.

Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization",
AISTATS 2016. Changed against it: a slot that the bracket cannot use opens the next bracket; when
no new trials come, the last bracket is halved with those it has.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from paceline.policies.brackets import Brackets, rungs_of
from paceline.policies.ladder import first_rung, halvings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.core.values import StudySpec


class Sha(Brackets):
    """Halve brackets of one shape."""

    def __init__(self, *, eta: int = 3, first: int | None = None, size: int | None = None) -> None:
        super().__init__(eta=eta)
        # None: one percent of the epochs, at least one; and as many as leave one at the end.
        self._first = first
        self._size = size

    def shapes(self, spec: StudySpec) -> Iterator[tuple[int, list[int]]]:
        times = halvings(first_rung(self._first, spec.epochs), self._eta, spec.epochs)
        levels = rungs_of(spec.epochs / self._eta**times, self._eta, spec.epochs)
        return repeat((self._size or self._eta**times, levels))
