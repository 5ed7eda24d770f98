"""Rules by the budget that several policies share: draining, and admission before a deadline.

Knows what is left of a budget and how long epochs take. Does not know rungs or scores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.policies.quantiles import RunningQuantile

if TYPE_CHECKING:
    from paceline.core.values import TrialId
    from paceline.core.views import StudyView, TrialView


def may_drain(given: bool | None, study: StudyView) -> bool:
    """Return whether a slot that the rule cannot use continues a paused trial.

    By default only if the study ends by a deadline, a target or its slot time: idle slots would be
    wasted then. A study that is limited by its trials alone ends when its rule is satisfied.
    """
    if given is not None:
        return given
    budget = study.spec.budget
    return (
        study.deadline_s is not None or budget.target is not None or budget.slot_seconds is not None
    )


class DeadlineAdmission:
    """Which new trials may start before a deadline, by the durations of epochs so far.

    HyperSched's rule: a new trial needs min(eta x the longest trial so far, all epochs x the median
    epoch). A rule for policies that have no other trial for the slot: it needs the time to its
    first comparison. Training time counts, without starts.
    """

    def __init__(self, eta: int) -> None:
        self._eta = eta
        self._longest = 0.0
        self._totals: dict[TrialId, float] = {}
        self._epoch_s = RunningQuantile(0.5)

    def record(self, trial: TrialView) -> None:
        """Add the duration of the epoch that a trial has just seen."""
        seconds = trial.seconds[-1]
        self._epoch_s.add(seconds)
        total = self._totals[trial.id] = self._totals.get(trial.id, 0.0) + seconds
        self._longest = max(self._longest, total)

    def forget(self, trial: TrialId) -> None:
        """Forget a trial that has ended; the longest time stays."""
        self._totals.pop(trial, None)

    @property
    def epoch_s(self) -> float:
        """The median duration of an epoch; infinite before the first report."""
        return self._epoch_s.value

    def explain_late(self, study: StudyView, epoch: int) -> str:
        """Return why a new trial would not reach an epoch in time; empty if it would."""
        if study.deadline_s is None or not self._epoch_s.count:
            return ""
        left, needed = study.deadline_s - study.now, epoch * self.epoch_s
        if left >= needed:
            return ""
        return f"{left:.4g} s are left, and a new trial needs {needed:.4g} s to epoch {epoch}"

    def explain_refusal(self, study: StudyView) -> str:
        """Return why no new trial should start by HyperSched's rule; empty if one may."""
        if study.deadline_s is None or not self._epoch_s.count:
            return ""
        left = study.deadline_s - study.now
        fair = min(self._longest * self._eta, study.spec.epochs * self.epoch_s)
        if left >= fair:
            return ""
        return f"{left:.4g} s are left, and a new trial would need {fair:.4g} s to matter"
