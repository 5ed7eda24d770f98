"""Last value: a random walk from the last loss, the baseline of every curve model.

Rule: loss(n+m) ~ Normal(loss(n), s·√m) with s the root mean square of the last ten steps; after a
single report, s is a tenth of the loss.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import NormalDist
from typing import TYPE_CHECKING

from paceline.core.base_part import BasePart
from paceline.core.forecast_quantiles import LEVELS, Forecast
from paceline.core.values import NO_LOSS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.ports import History

_NORMAL = tuple(NormalDist().inv_cdf(level) for level in LEVELS)
_RECENT = 10


class Last(BasePart):
    """Forecasts the last loss, with a spread that grows with the distance."""

    others = 0

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        return [_forecast_one(history) for history in histories]


def _forecast_one(history: History) -> Forecast | None:
    losses = [loss for loss in history.losses[-_RECENT - 1 :] if loss < NO_LOSS]
    if not losses or history.losses[-1] == NO_LOSS:
        return None
    steps = [after - before for before, after in pairwise(losses)]
    if steps:
        spread = math.sqrt(sum(step * step for step in steps) / len(steps))
    else:
        spread = abs(losses[-1]) / 10
    known = len(history.losses)
    furthest = spread * math.sqrt(max(history.horizons) - known)
    if not math.isfinite(losses[-1] + _NORMAL[-1] * furthest):
        return None  # losses so large that their steps overflow
    rows = tuple(
        tuple(losses[-1] + spread * math.sqrt(epoch - known) * z for z in _NORMAL)
        for epoch in history.horizons
    )
    return Forecast(tuple(history.horizons), rows)
