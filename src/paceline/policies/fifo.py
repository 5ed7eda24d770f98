"""FIFO: every trial runs to its last epoch, in the order of the proposals.

Rule: goal = last epoch, or the epoch that an outside tuner asked for (Fluid's TrialGroup). The
baseline of every comparison, and the right choice if learning curves cross late, so that early
losses do not tell which trial will win.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.base_part import BasePart
from paceline.core.ports import Pick, Verdict, see_nothing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.views import StudyView, TrialView


class Fifo(BasePart):
    """Runs every trial to its last epoch."""

    see = staticmethod(see_nothing)

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        return ()

    def next(self, study: StudyView) -> Pick | None:
        epochs = study.spec.epochs
        for trial in study.ready:
            # With shared prefixes, ready trials are ordered by the length of their paths.
            why = "it is first in line" if study.spec.share else "it has waited longest"
            return Pick(trial, 0, why)  # to the goal it has
        return Pick(None, epochs, "a slot is free") if study.new else None

    def admit(self, study: StudyView) -> int | None:
        return None
