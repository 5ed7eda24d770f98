"""Median stopping: stop trials that are worse than the median of the others' running means.

Rule: after `grace` epochs and with `least` others, stop a trial iff its best loss so far > median
of the running mean losses that the others had at the same epoch.

Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017. Different from it:
trials that share an epoch count once there; reports that are not numbers are left out of the
running means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.decisions import Stop
from paceline.core.errors import SpecError
from paceline.core.events import Opened
from paceline.core.text import format_metric
from paceline.core.values import NO_LOSS
from paceline.policies.fifo import Fifo
from paceline.policies.quantiles import EpochQuantiles, check_positive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Verdict
    from paceline.core.values import TrialId
    from paceline.core.views import StudyView, TrialView


class Median(Fifo):
    """Stops trials worse than the median, epoch by epoch."""

    def __init__(self, *, grace: int | None = None, least: int = 3) -> None:
        if grace is not None and grace < 0:
            raise SpecError(f"median: grace={grace} is invalid: must be at least 0.")
        check_positive("median: least", least)
        # None: a tenth of the epochs.
        self._given = grace
        self._grace = grace or 0
        self._least = least
        self._means = EpochQuantiles(0.5)
        # By live trial: sum and number of its losses, and the others' median and count.
        self._sums: dict[TrialId, tuple[float, int]] = {}
        self._others: dict[TrialId, tuple[float, int]] = {}

    def see(self, entry: Entry, study: StudyView) -> None:
        for trial in study.delivered:
            total, count = self._sums.get(trial.id, (0.0, 0))
            if trial.loss < NO_LOSS:
                total, count = total + trial.loss, count + 1
                self._sums[trial.id] = total, count
            mean = total / count if count else NO_LOSS
            origin = trial.origin(trial.epoch) if study.spec.share else None
            self._others[trial.id] = self._means.record(trial.epoch, mean, origin)
        for trial in study.departed:
            self._sums.pop(trial.id, None)
            self._others.pop(trial.id, None)
        if isinstance(entry, Opened):
            self._grace = entry.spec.epochs // 10 if self._given is None else self._given

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        median, count = self._others.get(trial.id, (NO_LOSS, 0))
        if trial.epoch <= self._grace or count < self._least or trial.best_loss <= median:
            return ()
        spec = study.spec
        best = format_metric(trial.best_loss, spec)
        why = (
            f"best {spec.metric} {best} by epoch {trial.epoch} is worse than "
            f"{format_metric(median, spec)}, the median of {count} others' means"
        )
        return (Stop(trial=trial.id, why=why),)
