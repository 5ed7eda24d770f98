"""Predictive termination: stop trials that, by a forecast, will hardly beat the best.

Rule: every `boundary` epochs, stop a trial iff Pr(loss at the last epoch <= best loss of the study)
< `delta`. Training goes on while the forecast is computed.

Domhan, Springenberg and Hutter, "Speeding up Automatic Hyperparameter Optimization of Deep Neural
Networks by Extrapolation of Learning Curves", IJCAI 2015; as HyperDrive's EarlyTerm: Rasley et al.,
Middleware 2017. Different from the papers: (1) the boundary is a tenth of the epochs, not 30 of
120, since a forecast no longer takes minutes; (2) chances are calibrated by the study's earlier
forecasts; (3) if those were wrong or worse than the base rate, it judges by rank instead: it stops
a trial whose best loss is worse than the median at that epoch; (4) without a forecast a trial
trains on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.decisions import AskForecast, Stop
from paceline.core.errors import SpecError
from paceline.core.events import Forecasted, Opened
from paceline.core.text import format_metric
from paceline.core.values import NO_LOSS
from paceline.policies.fifo import Fifo
from paceline.policies.quantiles import EpochQuantiles, check_positive, choose_boundary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Verdict
    from paceline.core.views import StudyView, TrialView


class EarlyTerm(Fifo):
    """Stops trials whose forecast gives them little chance to beat the best."""

    def __init__(self, *, boundary: int | None = None, delta: float = 0.05) -> None:
        check_positive("early_term: boundary", boundary)
        if not 0.0 < delta < 1.0:
            raise SpecError(f"early_term: delta={delta:g} is invalid: must be between 0 and 1.")
        self._given = boundary
        self._boundary = 1
        self._delta = delta
        # The best losses of all trials that reached each boundary.
        self._bests = EpochQuantiles(0.5)
        # The trial whose forecast is in the current entry.
        self._forecasted: int | None = None

    def see(self, entry: Entry, study: StudyView) -> None:
        self._forecasted = entry.trial if isinstance(entry, Forecasted) else None
        for trial in study.delivered:
            if trial.epoch % self._boundary == 0:
                origin = trial.origin(trial.epoch) if study.spec.share else None
                self._bests.record(trial.epoch, trial.best_loss, origin)
        if isinstance(entry, Opened):
            self._boundary = choose_boundary(self._given, entry.spec.epochs)

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        last = study.spec.epochs
        if not trial.alive or trial.epoch >= last:
            return ()
        if trial.id == self._forecasted:
            return self._judge_by_forecast(trial, study)
        if trial.epoch % self._boundary:
            return ()
        distrust = study.calibration.distrust
        if distrust:
            ranked = self._judge_by_rank(trial, study, distrust)
            if ranked:
                return ranked
        # The next boundary too: its report shows whether the forecasts can be trusted.
        horizons = tuple(sorted({min(trial.epoch + self._boundary, last), last}))
        why = f"epoch {trial.epoch} is a boundary"
        return (AskForecast(trial=trial.id, epoch=trial.epoch, horizons=horizons, why=why),)

    def _judge_by_forecast(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        forecast, best = trial.forecast, study.best_loss
        if forecast is None or best == NO_LOSS or trial.best_loss <= best:
            return ()
        if study.calibration.distrust:
            return ()
        spec = study.spec
        chance = study.calibration.chance(forecast, spec.epochs, best)
        if chance >= self._delta:
            return ()
        why = (
            f"its chance to reach {spec.metric} {format_metric(best, spec)} at epoch {spec.epochs} "
            f"is {chance:.1%}, below {self._delta:.0%}"
        )
        return (Stop(trial=trial.id, why=why),)

    def _judge_by_rank(
        self, trial: TrialView, study: StudyView, distrust: str
    ) -> Sequence[Verdict]:
        middle, count = self._bests.at(trial.epoch)
        if trial.best_loss <= middle:
            return ()
        spec = study.spec
        why = (
            f"best {spec.metric} {format_metric(trial.best_loss, spec)} by epoch {trial.epoch} is "
            f"worse than the median {format_metric(middle, spec)} of {count}; by rank, since "
            f"{distrust}"
        )
        return (Stop(trial=trial.id, why=why),)
