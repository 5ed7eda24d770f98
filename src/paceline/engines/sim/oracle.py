"""The oracle: a curve model that looks the future up, since a simulation has it.

Knows the workload. The bound for any forecaster, and no use outside the simulator. A run that ends
early stays at its last loss; a loss that is no number is worse than any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.ports import Crash
from paceline.core.values import LEVELS, NO_LOSS, Forecast, loss_of
from paceline.plan.settings import key, setting_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.ports import History, Workload
    from paceline.core.values import Config

# Worse than anything that is ever reported, and still a number.
_WORST = 1e300


class Oracle:
    """Says what will come."""

    others = 0

    def __init__(self, workload: Workload, sign: float) -> None:
        self._workload = workload
        self._sign = sign
        self._curves: dict[object, list[float]] = {}

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        return [self._foretell(history) for history in histories]

    def _foretell(self, history: History) -> Forecast:
        curve = self._curve(history.config, history.epochs)
        losses = (curve[min(epoch, len(curve)) - 1] for epoch in history.horizons)
        rows = tuple((min(loss, _WORST),) * len(LEVELS) for loss in losses)
        return Forecast(tuple(history.horizons), rows)

    def _curve(self, config: Config, epochs: int) -> list[float]:
        name = key(config)
        curve = self._curves.get(name)
        if curve is None:
            curve = self._curves[name] = self._trained(config, epochs)
        return curve

    def _trained(self, config: Config, epochs: int) -> list[float]:
        workload = self._workload
        losses: list[float] = []
        state = workload.begin(config)
        for epoch in range(epochs):
            outcome = workload.advance(state, setting_at(config, epoch))
            if isinstance(outcome, Crash):
                break
            losses.append(loss_of(outcome.metrics.get(workload.metric), self._sign))
            state = outcome.state
            if outcome.last:
                break
        return losses or [NO_LOSS]
