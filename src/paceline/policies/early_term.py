"""Predictive termination: stop whoever will hardly beat the best, by a forecast of its curve.

Rule: every `boundary` epochs, stop a trial iff Pr(loss at the last epoch <= best loss of the study)
< `delta`. Training goes on while the forecast is computed.

Domhan, Springenberg and Hutter, "Speeding up Automatic Hyperparameter Optimization of Deep Neural
Networks by Extrapolation of Learning Curves", IJCAI 2015; as HyperDrive's EarlyTerm: Rasley et al.,
Middleware 2017. Changed against the papers: (1) the boundary is a tenth of the epochs, not 30 of
120, since a forecast no longer takes minutes; (2) chances are corrected by what came of the study's
earlier forecasts; (3) where these were worse than the base rate it judges by rank alone: it stops a
trial whose best loss is worse than the median of those that came as far; (4) where there is no
forecast a trial goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.decisions import AskForecast, Stop
from paceline.core.errors import SpecError
from paceline.core.events import Forecasted, Opened
from paceline.core.text import value
from paceline.core.values import NO_LOSS
from paceline.policies.fifo import Fifo
from paceline.policies.quantiles import Boards, boundary_of, one_or_more

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Verdict
    from paceline.core.views import StudyView, TrialView


class EarlyTerm(Fifo):
    """Stop trials that a forecast gives no chance."""

    def __init__(self, *, boundary: int | None = None, delta: float = 0.05) -> None:
        one_or_more("early_term: boundary", boundary)
        if not 0.0 < delta < 1.0:
            raise SpecError(f"early_term: delta={delta:g} cannot be meant: give one from 0 to 1.")
        self._given = boundary
        self._boundary = 1
        self._delta = delta
        # The best losses of all trials that came to each boundary.
        self._bests = Boards(0.5)
        # The trial that the entry now being taken brings a forecast of.
        self._foreseen: int | None = None

    def see(self, entry: Entry, study: StudyView) -> None:
        self._foreseen = entry.trial if isinstance(entry, Forecasted) else None
        for trial in study.delivered:
            if trial.epoch % self._boundary == 0:
                origin = trial.origin(trial.epoch) if study.spec.share else None
                self._bests.record(trial.epoch, trial.best_loss, origin)
        if isinstance(entry, Opened):
            self._boundary = boundary_of(self._given, entry.spec.epochs)

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        last = study.spec.epochs
        if not trial.alive or trial.epoch >= last:
            return ()
        if trial.id == self._foreseen:
            return self._foresee(trial, study)
        if trial.epoch % self._boundary:
            return ()
        distrust = study.foresight.distrust
        if distrust:
            ranked = self._rank(trial, study, distrust)
            if ranked:
                return ranked
        # The next boundary too: what comes there tells whether the forecasts can be trusted.
        horizons = tuple(sorted({min(trial.epoch + self._boundary, last), last}))
        why = f"epoch {trial.epoch} is a boundary"
        return (AskForecast(trial=trial.id, epoch=trial.epoch, horizons=horizons, why=why),)

    def _foresee(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        forecast, best = trial.forecast, study.best_loss
        if forecast is None or best == NO_LOSS or trial.best_loss <= best:
            return ()
        if study.foresight.distrust:
            return ()
        spec = study.spec
        chance = study.foresight.chance(forecast, spec.epochs, best)
        if chance >= self._delta:
            return ()
        why = (
            f"its chance to reach {spec.metric} {value(best, spec)} at epoch {spec.epochs} is "
            f"{chance:.1%}, below {self._delta:.0%}"
        )
        return (Stop(trial=trial.id, why=why),)

    def _rank(self, trial: TrialView, study: StudyView, distrust: str) -> Sequence[Verdict]:
        middle, count = self._bests.at(trial.epoch)
        if trial.best_loss <= middle:
            return ()
        spec = study.spec
        why = (
            f"best {spec.metric} {value(trial.best_loss, spec)} by epoch {trial.epoch} is "
            f"worse than the median {value(middle, spec)} of {count}; by rank, since "
            f"{distrust}"
        )
        return (Stop(trial=trial.id, why=why),)
