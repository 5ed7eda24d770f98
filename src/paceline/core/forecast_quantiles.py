"""Forecasts as quantiles: their scores once the loss is known, and the chance to reach a target.

Pure formulas over rows of quantiles. A row holds the losses of one epoch at LEVELS.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import pairwise
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from paceline.core.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


# The levels at which a forecast states its quantiles, dense in the tails, which decide.
LEVELS = (0.005, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 0.995)


# The scale of the exponential tails, per width of the outermost piece: the density is continuous.
TAIL = LEVELS[0] / (LEVELS[1] - LEVELS[0])


def compute_chance(row: Sequence[float], loss: float) -> float:
    """Return the probability of `loss` or lower by a row of quantiles at LEVELS.

    Linear between quantiles, exponential tails beyond the outermost ones; a tail has no width if
    the outermost two coincide.
    """
    if loss < row[0]:
        tail = TAIL * (row[1] - row[0])
        return LEVELS[0] * math.exp((loss - row[0]) / tail) if tail > 0 else 0.0
    if loss > row[-1]:
        tail = TAIL * (row[-1] - row[-2])
        return 1 - (LEVELS[0] * math.exp((row[-1] - loss) / tail) if tail > 0 else 0.0)
    at = bisect_right(row, loss)
    if at == len(row):
        return LEVELS[-1]
    share = (loss - row[at - 1]) / (row[at] - row[at - 1])
    return LEVELS[at - 1] + share * (LEVELS[at] - LEVELS[at - 1])


class Forecast(Struct, frozen=True, omit_defaults=True):
    """A predicted curve: quantiles of the loss at later epochs."""

    # Rising epochs, all later than the curve's last.
    epochs: tuple[int, ...]
    # For each epoch the losses at LEVELS, rising.
    quantiles: tuple[tuple[float, ...], ...]
    # The smallest and the largest possible loss, if the metric's range is known.
    bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if len(self.epochs) != len(self.quantiles) or not self.epochs:
            raise SpecError("a forecast needs one row of quantiles for each of its epochs")
        if any(later <= sooner for sooner, later in pairwise(self.epochs)):
            raise SpecError("a forecast's epochs must rise")
        for row in self.quantiles:
            rising = all(low <= high for low, high in pairwise(row))
            if len(row) != len(LEVELS) or not rising or not all(map(math.isfinite, row)):
                raise SpecError(f"a forecast needs {len(LEVELS)} finite, rising quantiles an epoch")

    def median(self, epoch: int) -> float:
        """Return the median loss at that epoch."""
        return self.row(epoch)[len(LEVELS) // 2]

    def chance(self, epoch: int, loss: float) -> float:
        """Return the probability that the loss at that epoch is `loss` or lower."""
        row = self.row(epoch)
        if self.bounds is not None and not self.bounds[0] <= loss < self.bounds[1]:
            return 0.0 if loss < self.bounds[0] else 1.0
        return compute_chance(row, loss)

    def clip(self, bounds: tuple[float, float]) -> Forecast:
        """Return the forecast with all losses beyond the bounds moved to the nearest bound."""
        low, high = bounds
        rows = tuple(tuple(min(max(loss, low), high) for loss in row) for row in self.quantiles)
        return Forecast(self.epochs, rows, bounds)

    def row(self, epoch: int) -> Sequence[float]:
        """Return the quantiles for that epoch."""
        try:
            return self.quantiles[self.epochs.index(epoch)]
        except ValueError:
            raise SpecError(
                f"this forecast says nothing about epoch {epoch}: it covers {self.epochs}"
            ) from None


_NORMAL = tuple(NormalDist().inv_cdf(level) for level in LEVELS)


def blur(row: Sequence[float], width: float) -> tuple[float, ...]:
    """Return the row widened by a standard deviation, so that no quantiles coincide."""
    return tuple(loss + width * z for loss, z in zip(row, _NORMAL, strict=True))


def compute_density(row: Sequence[float], loss: float) -> float:
    """Return the density at `loss` of a row without equal quantiles (see `blur`)."""
    if loss < row[0]:
        return compute_chance(row, loss) / (TAIL * (row[1] - row[0]))
    if loss >= row[-1]:
        return (1 - compute_chance(row, loss)) / (TAIL * (row[-1] - row[-2]))
    at = bisect_right(row, loss)
    return (LEVELS[at] - LEVELS[at - 1]) / (row[at] - row[at - 1])


def is_covered(row: Sequence[float], loss: float, share: float) -> bool:
    """Return whether the central interval of this share contains the loss."""
    low = LEVELS.index(round((1 - share) / 2, 6))
    return row[low] <= loss <= row[len(LEVELS) - 1 - low]


def brier_score(probability: float, happened: bool) -> float:
    """Return the squared error of a probability: lower is better."""
    return (probability - happened) ** 2


# A smooth curve is forecast at this many epochs; chances between them are interpolated.
HORIZONS = 20
# No request has more epochs than this: it is written to the log.
MOST_HORIZONS = 1000


class TargetConfidence(NamedTuple):
    """The chance to reach a target in the time left, and the expected epochs until then."""

    chance: float
    # Expected epochs until then, given that it is reached; 0 if it never is.
    epochs: float


def choose_horizons(epoch: int, last: int, most: int = HORIZONS) -> tuple[int, ...]:
    """Return up to `most` later epochs, evenly spread, including the last."""
    ahead = last - epoch
    count = min(ahead, most)
    return tuple(epoch + round(ahead * (at + 1) / count) for at in range(max(count, 0)))


def thin_horizons(horizons: Sequence[int]) -> tuple[int, ...]:
    """Return HORIZONS of more epochs, evenly spread, including the last."""
    return tuple(horizons[at - 1] for at in choose_horizons(0, len(horizons)))


def average_reports(forecast: Forecast, losses: Sequence[float], over: int) -> Forecast | None:
    """Return the forecast of the mean of the last `over` losses; None if there are fewer.

    Losses between two forecast epochs are interpolated. The deviations of one curve at different
    epochs are taken as equal, so a quantile of the mean is the mean of the quantiles.
    """
    if over == 1:
        return forecast
    rows: list[Sequence[float]] = [(loss,) * len(LEVELS) for loss in losses]
    for epoch, row in zip(forecast.epochs, forecast.quantiles, strict=True):
        start, before = len(rows), rows[-1]
        for at in range(start + 1, epoch + 1):
            share = (at - start) / (epoch - start)
            rows.append(
                tuple(old + share * (new - old) for old, new in zip(before, row, strict=True))
                if math.isfinite(before[0])
                else row
            )
    means = {}
    for epoch in forecast.epochs:
        window = rows[epoch - over : epoch] if epoch >= over else []
        mean = tuple(math.fsum(column) / over for column in zip(*window, strict=True))
        if mean and all(map(math.isfinite, mean)):
            means[epoch] = mean
    return Forecast(tuple(means), tuple(means.values()), forecast.bounds) if means else None


def compute_confidence(chances: Sequence[tuple[int, float]], epoch: int) -> TargetConfidence:
    """Return the confidence, given the chances to be past the target at later epochs.

    A target that was reached once stays reached: chances never fall.
    """
    reached = expected = 0.0
    before = epoch
    for later, chance in chances:
        gain = max(chance - reached, 0.0)
        # Reached between these epochs, on average in the middle.
        expected += gain * ((before + 1 + later) / 2 - epoch)
        reached += gain
        before = later
    return TargetConfidence(reached, expected / reached if reached else 0.0)


def compute_published_confidence(
    chances: Sequence[tuple[int, float]], epoch: int
) -> TargetConfidence:
    """Return the confidence as HyperDrive publishes it: chances may fall, and the sum stops early.

    Its pmf is P(m) - P(m-1); the sum stops where the expected epochs exceed those left.
    """
    reached = expected = 0.0
    before, left = epoch, chances[-1][0] - epoch if chances else 0
    for later, chance in chances:
        gain = chance - reached
        expected += gain * ((before + 1 + later) / 2 - epoch)
        reached, before = chance, later
        if expected > left:
            return TargetConfidence(max(reached, 0.0), float(left))
    return TargetConfidence(reached, max(expected, 0.0))


def split_promising(
    falling: Iterable[float], slots: int, k: int, *, published: bool = False
) -> tuple[float, int]:
    """Return POP's threshold p* and the number of slots for trials at or above it.

    The confidences are in falling order; no more are read than may matter.

    For the j most confident trials, desired slots are k·j and deserved slots are `slots` times the
    j-th confidence; p* maximises the smaller of both. Ties take the larger confidence. Slots are
    rounded down to a multiple of k. If that gives none, a trial above 0.5 still gets k slots:
    otherwise only a certain trial could be promising on a single slot. Not so as published.
    """
    threshold, most = 1.0, 0.0
    for j, p in enumerate(falling, 1):
        effective = min(k * j, slots * p)
        if effective > most:
            threshold, most = p, effective
        if k * j >= slots * p:
            break
    whole = int(most + 1e-9) // k * k
    lone = most and not whole and threshold >= 0.5 and k <= slots
    return threshold, k if lone and not published else whole
