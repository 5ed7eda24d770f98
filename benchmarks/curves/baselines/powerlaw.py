"""A power law fitted by least squares, with the spread of its residuals: a simple baseline.

Rule: loss(n) = c + a·n^-b by least squares; the forecast is normal around it, as wide as the
residuals, and wider by the square root of the distance ahead relative to the seen length.
"""

from __future__ import annotations

import math
import warnings
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import OptimizeWarning, curve_fit

from paceline.core.forecast_quantiles import LEVELS, Forecast
from paceline.core.values import NO_LOSS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.ports import History
    from paceline.curves.arrays import Array

_NORMAL = tuple(NormalDist().inv_cdf(level) for level in LEVELS)


class PowerLaw:
    """Least squares on the raw losses; no forecast below four points."""

    others = 0

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        return [_forecast(history) for history in histories]


def _curve(x: Array, c: float, a: float, b: float) -> Array:
    return np.asarray(c + a * x**-b)


def _forecast(history: History) -> Forecast | None:
    x = np.array([n for n, loss in enumerate(history.losses, 1) if loss < NO_LOSS], dtype=float)
    y = np.array([loss for loss in history.losses if loss < NO_LOSS])
    if len(y) < 4:
        return None
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", OptimizeWarning)
            start = (float(y[-1]), float(y[0] - y[-1]), 0.5)
            bounds = ((-np.inf, -np.inf, 0.01), (np.inf, np.inf, 5.0))
            found = curve_fit(_curve, x, y, start, bounds=bounds, max_nfev=500)[0]
    except (RuntimeError, ValueError):
        return None
    sd = float(np.sqrt(np.mean((_curve(x, *found) - y) ** 2) * len(y) / (len(y) - 3)))
    rows = []
    for epoch in history.horizons:
        middle = float(_curve(np.array([float(epoch)]), *found)[0])
        wide = sd * math.sqrt(epoch / len(history.losses))
        rows.append(tuple(middle + wide * z for z in _NORMAL))
    return Forecast(tuple(history.horizons), tuple(rows))
