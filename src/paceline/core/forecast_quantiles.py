"""How good a forecast was, once the loss is known: pure formulas over one row of quantiles.

A row is what a Forecast says of one epoch: losses at LEVELS, read as `chance_of` reads them. Knows
no study and no curve.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import pairwise
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

from paceline.core.values import LEVELS, TAIL, chance_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_NORMAL = tuple(NormalDist().inv_cdf(level) for level in LEVELS)
# The share of a log score's mixture that knows nothing but the range.
DOUBT = 0.01


def blurred(row: Sequence[float], width: float) -> tuple[float, ...]:
    """Return the row spread by `width`, a standard deviation: no quantiles coincide any more."""
    return tuple(loss + width * z for loss, z in zip(row, _NORMAL, strict=True))


def clipped(row: Sequence[float], low: float, high: float) -> tuple[float, ...]:
    """Return the row with everything beyond a range moved to its ends."""
    return tuple(min(max(loss, low), high) for loss in row)


def density(row: Sequence[float], loss: float) -> float:
    """Return the density at `loss` of a row whose quantiles differ (see `blurred`)."""
    if loss < row[0]:
        return chance_of(row, loss) / (TAIL * (row[1] - row[0]))
    if loss >= row[-1]:
        return (1 - chance_of(row, loss)) / (TAIL * (row[-1] - row[-2]))
    at = bisect_right(row, loss)
    return (LEVELS[at] - LEVELS[at - 1]) / (row[at] - row[at - 1])


def log_score(found: float, low: float, high: float) -> float:
    """Return the log of a density where it is mixed with a little doubt: higher is better.

    The doubt is uniform over the range in which losses count, so that no miss costs everything.
    """
    return math.log((1 - DOUBT) * found + DOUBT / (high - low))


def crps(row: Sequence[float], loss: float) -> float:
    """Return the continuous ranked probability score, in units of the loss: lower is better."""
    at = chance_of(row, loss)
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
        # The stretch from the last quantile to the loss is the tail, no straight line.
        tail = TAIL * (row[-1] - row[-2])
        total += _fade(loss - row[-1], tail) - _straight(loss - row[-1], LEVELS[-1], at)
    if loss < row[0]:
        tail = TAIL * (row[1] - row[0])
        total += _fade(row[0] - loss, tail) - _straight(row[0] - loss, 1 - LEVELS[0], 1 - at)
    return total


def _fade(length: float, tail: float) -> float:
    """Return ∫ (1 - p·exp(-x/tail))² over a stretch that begins at the outermost quantile."""
    p = LEVELS[0]
    if tail <= 0:
        return length
    once, twice = math.exp(-length / tail), math.exp(-2 * length / tail)
    return length - 2 * p * tail * (1 - once) + p * p * tail / 2 * (1 - twice)


def _straight(length: float, p: float, q: float) -> float:
    return length * (p * p + p * q + q * q) / 3


def covered(row: Sequence[float], loss: float, share: float) -> bool:
    """Say whether the central interval of this share holds the loss."""
    low = LEVELS.index(round((1 - share) / 2, 6))
    return row[low] <= loss <= row[len(LEVELS) - 1 - low]


def brier(probability: float, happened: bool) -> float:
    """Return the squared error of a probability: lower is better."""
    return (probability - happened) ** 2


def auc(probabilities: Sequence[float], happened: Sequence[bool]) -> float | None:
    """Return how often what happened was given more than what did not; None without both."""
    yes = [p for p, true in zip(probabilities, happened, strict=True) if true]
    no = [p for p, true in zip(probabilities, happened, strict=True) if not true]
    if not yes or not no:
        return None
    wins = sum((a > b) + 0.5 * (a == b) for a in yes for b in no)
    return wins / (len(yes) * len(no))


# A forecast is asked at so many epochs; between them chances are interpolated.
_HORIZONS = 20


class Confidence(NamedTuple):
    """How surely a target is reached in the time left, and after how many epochs on average."""

    chance: float
    # Expected epochs until then, given that it is reached; 0 where it never is.
    epochs: float


def horizons(epoch: int, last: int) -> tuple[int, ...]:
    """Return at most so many later epochs up to the last, evenly spread; the last is one."""
    ahead = last - epoch
    count = min(ahead, _HORIZONS)
    return tuple(epoch + round(ahead * (at + 1) / count) for at in range(max(count, 0)))


def confidence(chances: Sequence[tuple[int, float]], epoch: int) -> Confidence:
    """Return the confidence that follows from the chances to be past the target at later epochs.

    A curve that has been past its target once has reached it: chances never fall.
    """
    reached = expected = 0.0
    before = epoch
    for later, chance in chances:
        gain = max(chance - reached, 0.0)
        # Somewhere in between, on average in the middle of these epochs.
        expected += gain * ((before + 1 + later) / 2 - epoch)
        reached += gain
        before = later
    return Confidence(reached, expected / reached if reached else 0.0)


def promising(confidences: Iterable[float], slots: int, k: int) -> tuple[float, int]:
    """Return the threshold p* and the slots for whoever is at or above it.

    The slots desired by the j surest, k·j, and those they deserve, slots times the j-th confidence,
    meet where the smaller of both is largest. Ties take the larger confidence. Slots are rounded
    down to a multiple of k; where none would be left, whoever is surer than not has its k: on a
    lone slot nobody but the certain would ever be promising.
    """
    threshold, most = 1.0, 0.0
    for j, p in enumerate(sorted(confidences, reverse=True), 1):
        effective = min(k * j, slots * p)
        if effective > most:
            threshold, most = p, effective
    whole = int(most + 1e-9) // k * k
    return threshold, k if most and not whole and threshold >= 0.5 and k <= slots else whole
