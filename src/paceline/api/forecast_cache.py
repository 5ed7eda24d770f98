"""A cache of forecasts, since simulations of one trace request the same forecasts again and again.

Knows the input and the answer of a curve model. One cache for a process: a comparison of policies
over many orders of one trace computes each forecast once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.plan.settings import config_key

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from paceline.core.forecast_quantiles import Forecast
    from paceline.core.ports import CurveModel, History

# The cache is emptied when it has more entries: a few hundred megabytes.
_MOST = 100_000
_answers: dict[Hashable, Forecast | None] = {}


class ForecastCache:
    """A curve model that computes each forecast once."""

    def __init__(self, model: CurveModel, name: str) -> None:
        self._model = model
        self._name = name
        self.others = model.others
        self.every_epoch: bool = getattr(model, "every_epoch", False)

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        keys = [self._make_key(history) for history in histories]
        by_key = dict(zip(keys, histories, strict=True))
        fresh = {key: each for key, each in by_key.items() if key not in _answers}
        if len(_answers) + len(fresh) > _MOST:
            _answers.clear()
            return self._model.forecast(histories)
        if fresh:
            _answers.update(zip(fresh, self._model.forecast(list(fresh.values())), strict=True))
        return [_answers[key] for key in keys]

    def _make_key(self, history: History) -> Hashable:
        return (
            self._name,
            tuple(history.losses),
            tuple(history.horizons),
            history.epochs,
            config_key(history.config),
            history.bounds,
            tuple((tuple(other.losses), config_key(other.config)) for other in history.others),
        )
