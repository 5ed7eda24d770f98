"""Forecasts as Ray tasks: a curve model that thinks on the cluster, beside the training.

Knows how a model gets there and that each process there loads it once. What it forecasts, and for
whom, it does not know.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import cloudpickle

from paceline.engines.ray.wanted import imported

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.ports import CurveModel, History
    from paceline.core.values import Forecast


class FarCurves:
    """A curve model on the cluster; `load` makes it there, `others` are what it wants to see."""

    def __init__(self, load: Callable[[], CurveModel], others: int) -> None:
        self.others = others
        self._load: bytes = cloudpickle.dumps(load)
        self._task: Any = None

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        """Return what the model says, on whatever node has time for it."""
        ray = imported()
        if self._task is None:
            # It asks for no CPU, since the slots may hold all of them: it shares one with training.
            self._task = ray.remote(_forecast).options(num_cpus=0, scheduling_strategy="SPREAD")
        found: Sequence[Forecast | None] = ray.get(self._task.remote(self._load, list(histories)))
        return found


def _forecast(load: bytes, histories: Sequence[History]) -> Sequence[Forecast | None]:
    return _model(load).forecast(histories)


@cache
def _model(load: bytes) -> CurveModel:
    # It was pickled by the driver of this very study: no pickle comes from a store.
    model: CurveModel = cloudpickle.loads(load)()
    return model
