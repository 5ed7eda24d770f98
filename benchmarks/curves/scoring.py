"""Scores of forecasts that only the benchmark uses: log score, CRPS, AUC.

Pure formulas over one row of quantiles, as `core.forecast_quantiles` reads it.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from paceline.core.forecast_quantiles import LEVELS, TAIL, compute_chance

if TYPE_CHECKING:
    from collections.abc import Sequence

# The weight of the uniform part in the mixture that a log score rates.
DOUBT = 0.01


def clip(row: Sequence[float], low: float, high: float) -> tuple[float, ...]:
    """Return the row clipped to a range."""
    return tuple(min(max(loss, low), high) for loss in row)


def log_score(found: float, low: float, high: float) -> float:
    """Return the log of a density mixed with a uniform one: higher is better.

    The uniform part covers the range in which losses count, so that one miss costs a finite amount.
    """
    return math.log((1 - DOUBT) * found + DOUBT / (high - low))


def crps(row: Sequence[float], loss: float) -> float:
    """Return the continuous ranked probability score, in units of the loss: lower is better."""
    at = compute_chance(row, loss)
    # ∫ F² below the loss and ∫ (1-F)² above it, each over the pieces of the row.
    below = [(x, level) for x, level in zip(row, LEVELS, strict=True) if x < loss] + [(loss, at)]
    above = [(x, 1 - level) for x, level in zip(row, LEVELS, strict=True) if x > loss]
    above = [(loss, 1 - at), *above]
    total = TAIL * (row[1] - row[0]) / 2 * below[0][1] ** 2
    total += TAIL * (row[-1] - row[-2]) / 2 * above[-1][1] ** 2
    for points in (below, above):
        for (x, p), (y, q) in pairwise(points):
            total += (y - x) * (p * p + p * q + q * q) / 3
    if loss > row[-1]:
        # Between the last quantile and the loss the tail is exponential, not linear.
        tail = TAIL * (row[-1] - row[-2])
        total += _fade(loss - row[-1], tail) - _straight(loss - row[-1], LEVELS[-1], at)
    if loss < row[0]:
        tail = TAIL * (row[1] - row[0])
        total += _fade(row[0] - loss, tail) - _straight(row[0] - loss, 1 - LEVELS[0], 1 - at)
    return total


def _fade(length: float, tail: float) -> float:
    """Return ∫ (1 - p·exp(-x/tail))² from the outermost quantile over `length`."""
    p = LEVELS[0]
    if tail <= 0:
        return length
    once, twice = math.exp(-length / tail), math.exp(-2 * length / tail)
    return length - 2 * p * tail * (1 - once) + p * p * tail / 2 * (1 - twice)


def _straight(length: float, p: float, q: float) -> float:
    return length * (p * p + p * q + q * q) / 3


def auc(probabilities: Sequence[float], happened: Sequence[bool]) -> float | None:
    """Return the area under the ROC curve; None without both outcomes."""
    yes = [p for p, true in zip(probabilities, happened, strict=True) if true]
    no = [p for p, true in zip(probabilities, happened, strict=True) if not true]
    if not yes or not no:
        return None
    wins = sum((a > b) + 0.5 * (a == b) for a in yes for b in no)
    return wins / (len(yes) * len(no))
