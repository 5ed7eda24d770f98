"""Forecasts that were made before: simulations ask the same about the same runs again and again.

Knows what a curve model is shown, and what it answered. One memory for a process: a comparison of
policies over many orders of one trace asks each question once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.plan.settings import key

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from paceline.core.ports import CurveModel, History
    from paceline.core.values import Forecast

# When there are more, all are forgotten: a few hundred megabytes.
_MOST = 100_000
_answers: dict[Hashable, Forecast | None] = {}


class Remembering:
    """A curve model that is asked only what it was not asked before."""

    def __init__(self, model: CurveModel, name: str) -> None:
        self._model = model
        self._name = name
        self.others = model.others

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        names = [self._question(history) for history in histories]
        asked = dict(zip(names, histories, strict=True))
        fresh = {name: each for name, each in asked.items() if name not in _answers}
        if len(_answers) + len(fresh) > _MOST:
            _answers.clear()
            return self._model.forecast(histories)
        if fresh:
            _answers.update(zip(fresh, self._model.forecast(list(fresh.values())), strict=True))
        return [_answers[name] for name in names]

    def _question(self, history: History) -> Hashable:
        return (
            self._name,
            tuple(history.losses),
            tuple(history.horizons),
            history.epochs,
            key(history.config),
            history.bounds,
            tuple((tuple(other.losses), key(other.config)) for other in history.others),
        )
