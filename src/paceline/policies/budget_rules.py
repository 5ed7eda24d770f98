"""Rules by the budget that several policies share: draining, and admission before a deadline.

Knows what is left of a budget and how long epochs take. Does not know rungs or scores.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paceline.core.decisions import Launch
from paceline.core.events import Ended, Reported
from paceline.policies.quantiles import RunningQuantile

if TYPE_CHECKING:
    from paceline.core.decisions import Entry
    from paceline.core.values import AttemptId, TrialId
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
    first comparison. Training time counts, without starts. As in HyperSched's code, the median is
    that of epochs on one slot: a new trial starts on one. A wider epoch counts as such a median for
    the longest trial. Where no epoch was trained on one slot, all epochs count as they are.
    """

    def __init__(self, eta: int) -> None:
        self._eta = eta
        # The training time of the longest trial, as if on one slot.
        self.longest_s = 0.0
        self._totals: dict[TrialId, float] = {}
        # Of epochs on one slot or a share of it, and of wider ones.
        self._narrow_s = RunningQuantile(0.5)
        self._wide_s = RunningQuantile(0.5)
        # The attempts that run on several slots.
        self._wide: set[AttemptId] = set()

    def see(self, entry: Entry) -> None:
        """Note which attempts run on several slots."""
        if isinstance(entry, Launch) and entry.width > 1.0:
            self._wide.add(entry.attempt)
        elif isinstance(entry, Ended):
            self._wide.discard(entry.attempt)

    def record(self, trial: TrialView, entry: Entry) -> None:
        """Add the duration of the epoch that a trial has just seen by this entry."""
        seconds = trial.seconds[-1]
        if isinstance(entry, Reported) and entry.attempt in self._wide:
            self._wide_s.add(seconds)
            seconds = self._narrow_s.value if self._narrow_s.count else seconds
        else:
            self._narrow_s.add(seconds)
        total = self._totals[trial.id] = self._totals.get(trial.id, 0.0) + seconds
        self.longest_s = max(self.longest_s, total)

    def forget(self, trial: TrialId) -> None:
        """Forget a trial that has ended; the longest time stays."""
        self._totals.pop(trial, None)

    @property
    def epoch_s(self) -> float:
        """The median duration of an epoch; infinite before the first report."""
        return self._narrow_s.value if self._narrow_s.count else self._wide_s.value

    def explain_late(self, study: StudyView, epoch: int) -> str:
        """Return why a new trial would not reach an epoch in time; empty if it would."""
        if study.deadline_s is None or math.isinf(self.epoch_s):
            return ""
        left, needed = study.deadline_s - study.now, epoch * self.epoch_s
        if left >= needed:
            return ""
        return f"{left:.4g} s are left, and a new trial needs {needed:.4g} s to epoch {epoch}"

    def explain_refusal(self, study: StudyView) -> str:
        """Return why no new trial should start by HyperSched's rule; empty if one may."""
        if study.deadline_s is None or math.isinf(self.epoch_s):
            return ""
        left = study.deadline_s - study.now
        fair = min(self.longest_s * self._eta, study.spec.epochs * self.epoch_s)
        if left >= fair:
            return ""
        return f"{left:.4g} s are left, and a new trial would need {fair:.4g} s to matter"
