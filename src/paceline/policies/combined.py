"""Several policies at once: the first schedules, and any of them may stop a trial or end the study.

Rule: goals, pauses, turns and admission are the first policy's; of the others only what stops a
trial, asks for a forecast, closes or ends the study is taken. Written `asha+plateau:patience=5`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.decisions import AskForecast, Close, End, Stop, WakeAt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Pick, Policy, Verdict
    from paceline.core.views import StudyView, TrialView

# What any of them may say.
_SHARED = (AskForecast, Close, End, Stop, WakeAt)


class AnyOf:
    """Policies that stand beside each other."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        self._first, *self._others = policies

    def see(self, entry: Entry, study: StudyView) -> None:
        self._first.see(entry, study)
        for other in self._others:
            other.see(entry, study)

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        said = [
            verdict
            for other in self._others
            for verdict in other.judge(trial, study)
            if isinstance(verdict, _SHARED)
        ]
        # Whoever is stopped needs no further verdict; what is left is the first's to say.
        if any(isinstance(verdict, Stop) and verdict.trial == trial.id for verdict in said):
            return said
        return [*said, *self._first.judge(trial, study)]

    def next(self, study: StudyView) -> Pick | None:
        return self._first.next(study)

    def admit(self, study: StudyView) -> int | None:
        return self._first.admit(study)
