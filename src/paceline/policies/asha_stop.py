"""ASHA: asynchronous successive halving, stopping variant.

Rule: at rung r·eta^k, stop a trial iff its loss > the 1/eta quantile of the losses that reached
this rung before it. No trial is paused or resumed.

Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, as in Ray Tune and
Syne Tune. Different from them: (1) trials that share the epoch of a rung count once; (2) no new
trial starts that would not reach the first rung before the deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.decisions import Close, Stop
from paceline.core.events import Opened
from paceline.core.text import format_metric
from paceline.core.values import NO_LOSS
from paceline.policies.budget_rules import DeadlineAdmission
from paceline.policies.fifo import Fifo
from paceline.policies.quantiles import EpochQuantiles
from paceline.policies.rungs import choose_first_rung, compute_milestones

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Pick, Verdict
    from paceline.core.values import TrialId
    from paceline.core.views import StudyView, TrialView


class AshaStop(Fifo):
    """Stops a trial that is not among the best 1/eta when it reaches a rung."""

    def __init__(self, *, eta: int = 4, first: int | None = None) -> None:
        compute_milestones(1 if first is None else first, eta, 1)  # raises for invalid parameters
        self._eta = eta
        self._first = first
        self._rungs: frozenset[int] = frozenset()
        self._quantiles = EpochQuantiles(1.0 / eta)
        # For each trial at a rung: the cutoff it was compared with, and the number of scores.
        self._met: dict[TrialId, tuple[float, int]] = {}
        self._first_rung = 1
        self._admission = DeadlineAdmission(eta)

    def see(self, entry: Entry, study: StudyView) -> None:
        self._admission.see(entry)
        for trial in study.delivered:
            if study.deadline_s is not None:
                self._admission.record(trial, entry)
            if trial.epoch in self._rungs:
                origin = trial.origin(trial.epoch) if study.spec.share else None
                self._met[trial.id] = self._quantiles.record(trial.epoch, trial.loss, origin)
        for trial in study.departed:
            self._met.pop(trial.id, None)
            self._admission.forget(trial.id)
        if isinstance(entry, Opened):
            first = self._first_rung = choose_first_rung(self._first, entry.spec.epochs)
            self._rungs = frozenset(compute_milestones(first, self._eta, entry.spec.epochs)[:-1])

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        late = "" if study.closed else self._admission.explain_late(study, self._first_rung)
        if late:
            return (Close(why=late), *self._judge_rung(trial, study))
        return self._judge_rung(trial, study)

    def next(self, study: StudyView) -> Pick | None:
        pick = super().next(study)
        if pick is not None and pick.trial is None:
            return None if self._admission.explain_late(study, self._first_rung) else pick
        return pick

    def _judge_rung(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        if trial.epoch not in self._rungs or not trial.alive:
            return ()
        cutoff, count = self._met.get(trial.id, (NO_LOSS, 0))
        if trial.loss <= cutoff:
            return ()
        spec = study.spec
        why = (
            f"{spec.metric} {format_metric(trial.loss, spec)} at epoch {trial.epoch} is worse than "
            f"{format_metric(cutoff, spec)}, the best 1/{self._eta} of the {count} before it"
        )
        return (Stop(trial=trial.id, why=why),)
