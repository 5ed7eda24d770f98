"""Answers to what the machine asks from outside: forecasts, and proposals of samplers.

Knows a curve model, a generator and where to read the study. An engine calls it beside the
training and passes the answers on as facts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.ports import History

if TYPE_CHECKING:
    from paceline.core.decisions import AskForecast, AskProposal
    from paceline.core.ports import CurveModel, Generator, StudyView
    from paceline.core.values import Config, Forecast


class Advice:
    """A curve model and a generator, asked about one study."""

    def __init__(self, curves: CurveModel, generator: Generator, study: StudyView) -> None:
        self._curves = curves
        self._generator = generator
        self._study = study

    def forecast(self, ask: AskForecast) -> tuple[Forecast | None, str]:
        """Return the model's answer for the curve as it was when it was asked for."""
        trial = self._study.trials[ask.trial]
        history = History(
            losses=trial.losses[: ask.epoch],
            horizons=ask.horizons,
            epochs=self._study.spec.epochs,
            config=trial.config,
        )
        try:
            (forecast,) = self._curves.forecast([history])
        except Exception as error:
            # A model is somebody's plug-in: whatever it raises, the study goes on without it.
            return None, f"the curve model failed: {error}"
        return forecast, "" if forecast is not None else "the curve model has no answer"

    def propose(self, ask: AskProposal) -> Config | None:
        """Return the generator's config of that number."""
        return self._generator.propose(ask.number, self._study)
