"""Advisors: answer the machine's requests for forecasts and for proposals of samplers.

Knows a curve model, a generator and where to read the study. An engine calls an advisor in the
background of the training and returns the answers as events.
"""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING

from paceline.core.curve_requests import forecast_curves
from paceline.core.decisions import AskForecast, AskProposal
from paceline.core.errors import PacelineError
from paceline.core.events import Forecasted, Proposed
from paceline.core.ports import History, Other

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.ports import CurveModel, Generator
    from paceline.core.values import TrialId
    from paceline.core.views import StudyView
    from paceline.machine.state import StudyState


class StudyAdvisor:
    """The curve model and the generator of each group, asked about the study."""

    def __init__(
        self, models: Sequence[CurveModel], generators: Sequence[Generator], state: StudyState
    ) -> None:
        self._models = models
        self._generators = generators
        self._state = state

    def answer(self, ask: AskForecast | AskProposal) -> Callable[[], Forecasted | Proposed]:
        """Return the work that answers the request, with the study as it is now."""
        if isinstance(ask, AskProposal):
            group = self._state.groups[ask.group]
            return _propose(ask, self._generators[ask.group], group)
        trial = self._state.trials[ask.trial]
        return _forecast(ask, self._models[trial.group], self._state.find_group(trial))


def _forecast(ask: AskForecast, model: CurveModel, study: StudyView) -> Callable[[], Forecasted]:
    trial = study.trials[ask.trial]
    history = History(
        losses=list(trial.losses[: ask.epoch]),
        horizons=ask.horizons,
        epochs=study.spec.epochs,
        config=trial.config,
        bounds=study.spec.bounds,
        others=_list_others(model.others, ask.trial, study),
    )

    def work() -> Forecasted:
        note = ""
        try:
            (forecast,) = forecast_curves(model, [history])
        except Exception as error:
            # A model may be a plug-in: whatever it raises, the study goes on without it.
            forecast, note = None, f"the curve model failed: {error}"
        if forecast is None:
            note = note or "the curve model has no answer"
        return Forecasted(at=0.0, trial=ask.trial, epoch=ask.epoch, forecast=forecast, note=note)

    return work


def _list_others(count: int, asked: TrialId, study: StudyView) -> list[Other]:
    """Return the trials that have come furthest, as many as the model wants."""
    if not count:
        return []
    seen = (trial for trial in study.trials if trial.id != asked and trial.epoch)
    furthest = nlargest(count, seen, key=lambda trial: trial.epoch)
    return [Other(list(trial.losses), trial.config) for trial in furthest]


def _propose(ask: AskProposal, generator: Generator, study: StudyView) -> Callable[[], Proposed]:
    def work() -> Proposed:
        config, note = None, ""
        try:
            config = generator.propose(ask.number, study)
        except PacelineError as error:
            note = str(error)
        except Exception as error:
            # A generator may be a plug-in too. Without it there are no new trials.
            note = f"the generator failed: {type(error).__name__}: {error}"
        return Proposed(at=0.0, number=ask.number, config=config, note=note, group=ask.group)

    return work
