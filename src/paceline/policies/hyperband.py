"""Hyperband: halving brackets from the boldest to the most careful, again and again.

Rule: for s = S … 0 with S = floor(log_eta(epochs / first)), a bracket of
ceil((S+1) / (s+1) · eta^s) trials that start with epochs / eta^s.

Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", JMLR 2018.
With the generator `tpe` this is BOHB (Falkner et al., ICML 2018) but for its density model. Changed
against it: a slot that a bracket cannot use opens the next one; when no new trials come, the last
bracket is halved with those it has.
"""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

from paceline.policies.brackets import Brackets, rungs_of
from paceline.policies.ladder import first_rung, halvings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.core.values import StudySpec


class Hyperband(Brackets):
    """Halve brackets of all shapes in turn."""

    def __init__(self, *, eta: int = 3, first: int | None = None) -> None:
        super().__init__(eta=eta)
        # None: one percent of the epochs, at least one.
        self._first = first

    def shapes(self, spec: StudySpec) -> Iterator[tuple[int, list[int]]]:
        eta, epochs = self._eta, spec.epochs
        most = halvings(first_rung(self._first, epochs), eta, epochs)
        return cycle(
            [
                (-(-(most + 1) * eta**s // (s + 1)), rungs_of(epochs / eta**s, eta, epochs))
                for s in range(most, -1, -1)
            ]
        )
