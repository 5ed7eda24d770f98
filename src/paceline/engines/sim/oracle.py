"""The oracle: a curve model that trains the simulated workload ahead and returns its true losses.

Knows the workload. An upper bound for every curve model; works in simulations alone. A run that
ends early stays at its last loss; a missing loss counts as the worst.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.forecast_quantiles import LEVELS, Forecast
from paceline.core.ports import Crash
from paceline.core.values import NO_LOSS, to_loss
from paceline.plan.settings import config_key, setting_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.ports import History, Workload
    from paceline.core.values import Config

# Worse than every reported loss, and finite.
_WORST = 1e300


class Oracle:
    """Forecasts the true curve of a simulated trial."""

    others = 0
    # A noisy curve may pass a target between any two epochs.
    every_epoch = True

    def __init__(self, workload: Workload, sign: float) -> None:
        self._workload = workload
        self._sign = sign
        self._curves: dict[object, list[float]] = {}

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        return [self._forecast(history) for history in histories]

    def _forecast(self, history: History) -> Forecast:
        curve = self._curve(history.config, history.epochs)
        losses = (curve[min(epoch, len(curve)) - 1] for epoch in history.horizons)
        rows = tuple((min(loss, _WORST),) * len(LEVELS) for loss in losses)
        return Forecast(tuple(history.horizons), rows)

    def _curve(self, config: Config, epochs: int) -> list[float]:
        name = config_key(config)
        curve = self._curves.get(name)
        if curve is None:
            curve = self._curves[name] = self._train(config, epochs)
        return curve

    def _train(self, config: Config, epochs: int) -> list[float]:
        workload = self._workload
        losses: list[float] = []
        state = workload.begin(config)
        for epoch in range(epochs):
            outcome = workload.advance(state, setting_at(config, epoch))
            if isinstance(outcome, Crash):
                break
            losses.append(to_loss(outcome.metrics.get(workload.metric), self._sign))
            state = outcome.state
            if outcome.last:
                break
        return losses or [NO_LOSS]
