"""Combined policies: the first schedules, and each may stop a trial or end the study.

Rule: goals, pauses, picks and admission come from the first policy; of the others, only verdicts
that stop a trial, ask for a forecast, close or end the study count. Written
`asha+plateau:patience=5`. Not from a paper; Optuna and Ray Tune combine stoppers the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from paceline.core.decisions import AskForecast, Close, End, Stop, WakeAt
from paceline.core.ports import train_to_the_end

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import ChoosingPolicy, Pick, Policy, Verdict
    from paceline.core.values import Config
    from paceline.core.views import StudyView, TrialView

# Verdicts that count from any of the policies.
_SHARED = (AskForecast, Close, End, Stop, WakeAt)


class AnyOf:
    """Several policies as one."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        self._first, *self._others = policies
        # Among how many configs the first policy chooses.
        self.window: int = getattr(self._first, "window", 1)

    def see(self, entry: Entry, study: StudyView) -> None:
        self._first.see(entry, study)
        for other in self._others:
            other.see(entry, study)

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        shared = [
            verdict
            for other in self._others
            for verdict in other.judge(trial, study)
            if isinstance(verdict, _SHARED)
        ]
        # A stopped trial needs no further verdict; otherwise the first policy decides.
        if any(isinstance(verdict, Stop) and verdict.trial == trial.id for verdict in shared):
            return shared
        return [*shared, *self._first.judge(trial, study)]

    def readmit(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        verdicts: Sequence[Verdict] = getattr(self._first, "readmit", train_to_the_end)(
            trial, study
        )
        return verdicts

    def next(self, study: StudyView) -> Pick | None:
        return self._first.next(study)

    def choose(self, configs: Mapping[int, Config], study: StudyView) -> int:
        """Return the number of the config that the first policy chooses."""
        return cast("ChoosingPolicy", self._first).choose(configs, study)

    def count_waiting(self, study: StudyView, new: float) -> float:
        """Return how many more trials the first policy would start if slots were free."""
        count: Callable[[StudyView, float], float] | None
        count = getattr(self._first, "count_waiting", None)
        return new if count is None else count(study, new)

    def admit(self, study: StudyView) -> int | None:
        return self._first.admit(study)
