"""First in, first out: every trial runs to its last epoch, in the order it was proposed.

Rule: goal = last epoch, or what an outside tuner asked for (Fluid's TrialGroup). The baseline of
every comparison, and the right choice where learning curves cross late, so that nothing seen early
tells who will win.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.ports import Pick, Verdict, sees_nothing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.views import StudyView, TrialView


class Fifo:
    """Run everything to its end."""

    see = staticmethod(sees_nothing)

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        return ()

    def next(self, study: StudyView) -> Pick | None:
        epochs = study.spec.epochs
        for trial in study.ready:
            # Where paths part, who waits is in line by the length of its own.
            why = "it is first in line" if study.spec.share else "it has waited longest"
            return Pick(trial, 0, why)  # to the goal it has
        return Pick(None, epochs, "a slot is free") if study.new else None

    def admit(self, study: StudyView) -> int | None:
        return None
