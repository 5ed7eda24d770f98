"""The last value, spread like a random walk: the forecast every other model has to beat.

Rule: loss(n+m) ~ Normal(loss(n), s·√m) with s the root mean square of the last ten steps; after a
single report, s is a tenth of the loss.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import NormalDist
from typing import TYPE_CHECKING

from paceline.core.values import LEVELS, NO_LOSS, Forecast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.ports import History

_NORMAL = tuple(NormalDist().inv_cdf(level) for level in LEVELS)
_RECENT = 10


class Last:
    """Tomorrow will be like today, the less surely the further off."""

    others = 0

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        return [_forecast(history) for history in histories]


def _forecast(history: History) -> Forecast | None:
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
        return None  # losses so large that their steps are none
    rows = tuple(
        tuple(losses[-1] + spread * math.sqrt(epoch - known) * z for z in _NORMAL)
        for epoch in history.horizons
    )
    return Forecast(tuple(history.horizons), rows)
