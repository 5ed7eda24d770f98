"""Answers to what the machine asks from outside: forecasts, and proposals of samplers.

Knows a curve model, a generator and where to read the study. An engine calls it beside the
training and passes the answers on as facts.
"""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING

from paceline.core.decisions import AskForecast, AskProposal
from paceline.core.errors import PacelineError
from paceline.core.events import Forecasted, Proposed
from paceline.core.ports import History, Other

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.ports import Adviser, CurveModel, Generator
    from paceline.core.values import TrialId
    from paceline.core.views import StudyView
    from paceline.machine.state import StudyState


class Advice:
    """A curve model and a generator, asked about one study."""

    def __init__(self, curves: CurveModel, generator: Generator, study: StudyView) -> None:
        self._curves = curves
        self._generator = generator
        self._study = study

    def answer(self, ask: AskForecast | AskProposal) -> Callable[[], Forecasted | Proposed]:
        """Return the work that answers the question as it stands now."""
        return self._forecast(ask) if isinstance(ask, AskForecast) else self._propose(ask)

    def _forecast(self, ask: AskForecast) -> Callable[[], Forecasted]:
        trial = self._study.trials[ask.trial]
        history = History(
            losses=list(trial.losses[: ask.epoch]),
            horizons=ask.horizons,
            epochs=self._study.spec.epochs,
            config=trial.config,
            bounds=self._study.spec.bounds,
            others=self._others(ask.trial),
        )

        def work() -> Forecasted:
            note = ""
            try:
                (forecast,) = self._curves.forecast([history])
            except Exception as error:
                # A model is somebody's plug-in: whatever it raises, the study goes on without it.
                forecast, note = None, f"the curve model failed: {error}"
            if forecast is None:
                note = note or "the curve model has no answer"
            return Forecasted(
                at=0.0, trial=ask.trial, epoch=ask.epoch, forecast=forecast, note=note
            )

        return work

    def _others(self, asked: TrialId) -> list[Other]:
        """Return the trials that have come furthest, as many as the model wants."""
        if not self._curves.others:
            return []
        seen = (trial for trial in self._study.trials if trial.id != asked and trial.epoch)
        furthest = nlargest(self._curves.others, seen, key=lambda trial: trial.epoch)
        return [Other(list(trial.losses), trial.config) for trial in furthest]

    def _propose(self, ask: AskProposal) -> Callable[[], Proposed]:
        def work() -> Proposed:
            config, note = None, ""
            try:
                config = self._generator.propose(ask.number, self._study)
            except PacelineError as error:
                note = str(error)
            except Exception as error:
                # Somebody's plug-in too. Without it there are no new trials; those there are go on.
                note = f"the generator failed: {type(error).__name__}: {error}"
            return Proposed(at=0.0, number=ask.number, config=config, note=note, group=ask.group)

        return work


def advice_by(
    models: Sequence[CurveModel], generators: Sequence[Generator], state: StudyState
) -> Adviser:
    """Return who answers a study, or each of several that are driven as one."""
    if len(models) == 1:
        return Advice(models[0], generators[0], state)
    return _SharedAdvice(models, generators, state)


class _SharedAdvice:
    """Advice to several studies that are driven as one: each is answered by its own."""

    def __init__(
        self, models: Sequence[CurveModel], generators: Sequence[Generator], whole: StudyState
    ) -> None:
        self._models = models
        self._generators = generators
        self._whole = whole

    def answer(self, ask: AskForecast | AskProposal) -> Callable[[], Forecasted | Proposed]:
        """Return the work that answers the question, as the study that asks sees itself."""
        groups = self._whole.groups
        assert groups is not None
        asks = groups[ask.group] if isinstance(ask, AskProposal) else groups.of(ask.trial)
        model, generator = self._models[asks.number], self._generators[asks.number]
        return Advice(model, generator, asks).answer(ask)
