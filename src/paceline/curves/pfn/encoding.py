"""Encoding of curves for the pre-trained network, and decoding of its output.

Knows numbers only: a curve becomes tokens that do not depend on the unit of the metric, and
probabilities of buckets become quantiles. Training computes the same tokens in torch
(`training/pfn/tokens.py`); a test compares the two. Does not know the network.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float64]

# Points of a curve that become tokens: all points of a short curve; of a longer one the first and
# the last few unchanged, and the rest averaged.
POINTS, FIRST, LATEST = 48, 4, 16
_AVERAGED = POINTS - FIRST - LATEST
# Other trials of the study that become tokens. They are compared with this one at its own epoch and
# at these percentages of all epochs.
OTHERS = 16
MARKS = (10, 25, 50, 75, 100)
# Width of a token: of a point, of the whole curve, of another trial, of a requested epoch.
POINT, WHOLE, OTHER, ASKED = 13, 36, 18, 7
# The output: buckets of asinh(change / (GRAIN x scale)) in [-REACH, REACH], and one for
# "not a number". The number is odd, so that "no change" is the middle of a bucket.
BUCKETS, GRAIN, REACH = 257, 0.01, 13.0
# Losses and accuracies of random guessing among k classes: ln(k) and 1/k.
CLASSES = (2, 3, 4, 5, 10, 20, 50, 100, 1000)
_LOSSES = np.log(np.array(CLASSES))
_RATES = -1.0 / np.array(CLASSES)
# Scales logarithms of epochs and counts to about one.
_LONG = 7.0


class Frame:
    """The origin and unit of a curve's values: its last value and its spread."""

    __slots__ = ("best", "last", "scale", "worst")

    def __init__(self, last: float, scale: float, best: float, worst: float) -> None:
        self.last = last
        self.scale = scale
        self.best = best
        self.worst = worst

    def encode(self, values: Array) -> Array:
        """Return values as the network sees them: compressed differences from the last value."""
        return self.encode_change(values - self.last)

    def encode_change(self, change: Array) -> Array:
        """Return compressed differences."""
        return np.asarray(np.clip(np.arcsinh(change / (0.05 * self.scale)) / 5, -4, 4))


def compute_bins(count: int) -> NDArray[np.int64]:
    """Return the first point of each token of a curve with this many points."""
    if count <= POINTS:
        return np.arange(count)
    middle = FIRST + (count - FIRST - LATEST) * np.arange(_AVERAGED) // _AVERAGED
    return np.concatenate([np.arange(FIRST), middle, np.arange(count - LATEST, count)])


class Points:
    """A curve in at most POINTS pieces: mean, least and greatest value; NaN if a piece is empty."""

    __slots__ = ("count", "ends", "least", "means", "most", "seen", "sizes")

    def __init__(self, values: Array) -> None:
        starts = compute_bins(len(values))
        good = np.isfinite(values)
        self.count = len(values)
        self.sizes = np.diff(np.append(starts, len(values))).astype(float)
        self.ends = starts + self.sizes
        self.seen = np.add.reduceat(good.astype(float), starts)
        sums = np.add.reduceat(np.where(good, values, 0.0), starts)
        # Least and greatest value of a piece without numbers are infinite; its mean is NaN.
        self.means = np.where(self.seen > 0, sums / np.maximum(self.seen, 1), np.nan)
        self.least = np.minimum.reduceat(np.where(good, values, np.inf), starts)
        self.most = np.maximum.reduceat(np.where(good, values, -np.inf), starts)


def compute_frame(points: Points) -> Frame | None:
    """Return the curve's frame; None if it has no numbers, or if they are too large or small."""
    there = points.seen > 0
    if not there.any():
        return None
    means = points.means[there]
    last = float(means[-1])
    size = np.sort(np.abs(means))
    base = float(size[len(size) // 2]) or float(size[-1]) or 1.0
    spread = float(np.sort(np.abs(means - last))[len(means) // 2])
    more = len(means) - 1
    scale = (more * spread + 0.1 * base) / (more + 1)
    best, worst = float(points.least[there].min()), float(points.most[there].max())
    if not 1e-200 < scale < 1e200 or max(abs(best), abs(worst)) > 1e200:
        return None
    return Frame(last, scale, best, worst)


def encode_points(points: Points, frame: Frame, epochs: float) -> Array:
    """Return a token for each piece of the curve."""
    there = points.seen > 0
    means = np.where(there, points.means, frame.last)
    tokens = np.zeros((len(means), POINT))
    tokens[:, 0] = frame.encode(means)
    tokens[:, 1] = frame.encode(np.where(there, points.least, frame.last))
    tokens[:, 2] = frame.encode(np.where(there, points.most, frame.last))
    tokens[:, 3] = np.clip((means - frame.last) / frame.scale, -4, 4) / 2
    tokens[:, 4] = np.clip((means - frame.last) / frame.scale, -40, 40) / 20
    tokens[1:, 5] = frame.encode_change(np.diff(means))
    tokens[:, 6] = points.ends / epochs
    tokens[:, 7] = np.log(points.ends) / _LONG
    tokens[:, 8] = np.log1p(points.count - points.ends) / _LONG
    tokens[:, 9] = (points.count - points.ends) / points.count
    tokens[:, 10] = np.log(points.sizes) / _LONG
    tokens[:, 11] = 1 - points.seen / points.sizes
    if frame.last:
        share = means / frame.last
        tokens[:, 12] = np.where(share > 0, np.clip(np.log(np.maximum(share, 1e-9)), -5, 5) / 2, 0)
    tokens[~there, :6] = 0
    tokens[~there, 12] = 0
    return tokens


def encode_curve(
    points: Points,
    frame: Frame,
    epochs: float,
    bounds: tuple[float, float] | None,
    others: Array,
) -> Array:
    """Return the token of the whole curve; `others` are the tokens of other trials."""
    there = points.seen > 0
    means, least, most = points.means[there], points.least[there], points.most[there]
    first, last = float(means[0]), frame.last
    token = np.zeros(WHOLE)
    count = float(points.count)
    token[0] = math.log(count) / _LONG
    token[1] = count / epochs
    token[2] = math.log(epochs) / _LONG
    token[3] = math.log1p(max(epochs - count, 0)) / _LONG
    token[4] = np.sign(last)
    token[5] = _scale_log(last)
    token[6] = math.log10(min(max(frame.scale / max(abs(last), 1e-30), 1e-6), 1e6)) / 3
    token[7], token[8], token[9] = frame.encode(np.array([first, frame.best, frame.worst]))
    token[10] = _scale_log(first)
    token[11] = (len(means) - 1 - int(np.argmin(least))) / POINTS
    token[12] = (len(means) - 1 - int(np.argmax(most))) / POINTS
    rate = frame.best >= -1 and frame.worst <= 0
    token[13] = rate
    token[14] = frame.best >= 0 and frame.worst <= 1
    token[15] = frame.best >= 0
    token[16] = -100 <= frame.best < -1 and frame.worst <= 0
    if rate:
        token[17] = last
        token[18] = math.log10(1 + last + 1e-4) / 4
        token[19] = math.log10(-last + 1e-4) / 4
        token[20] = first
        token[21] = frame.encode(np.array(-1.0))
        token[22] = _measure_nearness(last, _RATES)
        token[23] = _measure_nearness(first, _RATES)
    if frame.best >= 0:
        token[24] = frame.encode(np.array(0.0))
        token[25] = _measure_nearness(last, _LOSSES)
        token[26] = _measure_nearness(first, _LOSSES)
    steps = np.diff(means)
    if len(steps):
        token[27] = (np.abs(steps) <= 1e-6 * abs(last)).mean()
        recent = steps[-LATEST:]
        root = math.sqrt(float(np.mean(np.square(np.clip(recent / frame.scale, -1e6, 1e6)))))
        token[28] = math.log10(root + 1e-4) / 3
    token[29] = 1 - points.seen.sum() / count
    if bounds is not None:
        token[30] = 1
        token[31], token[32] = frame.encode(np.clip(np.array(bounds), -1e200, 1e200))
    if len(others):
        token[33] = len(others) / OTHERS
        met = others[:, 1] > 0
        token[34] = ((others[:, 0] < 0) & met).sum() / max(met.sum(), 1) - 0.5
        token[35] = others[:, 13].min()
    return token


def encode_other(values: Array, frame: Frame, count: int, epochs: float) -> Array | None:
    """Return the token of another trial in this trial's frame; None if it has no numbers."""
    good = np.isfinite(values)
    if not good.any():
        return None
    token = np.zeros(OTHER)
    at = [count, *(-(-mark * int(epochs) // 100) for mark in MARKS)]
    for place, epoch in enumerate(at):
        if epoch <= len(values) and good[epoch - 1]:
            token[2 * place] = frame.encode(values[epoch - 1])
            token[2 * place + 1] = 1
    last = values[good][-1]
    token[12] = frame.encode(last)
    token[13] = frame.encode(values[good].min())
    token[14] = min(len(values) / epochs, 2)
    token[15] = math.log(len(values)) / _LONG
    token[16] = not good[-1]
    if token[1]:
        token[17] = frame.encode_change(last - values[count - 1])
    return token


def encode_questions(horizons: Sequence[int], count: int, epochs: float) -> Array:
    """Return a token for each requested epoch."""
    ahead = np.array(horizons, dtype=float)
    return np.stack(
        [
            np.log(ahead - count) / _LONG,
            ahead / epochs,
            np.log(ahead) / _LONG,
            np.log(ahead / count) / 5,
            (ahead - count) / epochs,
            (ahead >= epochs).astype(float),
            np.full(len(ahead), math.log(epochs) / _LONG),
        ],
        axis=1,
    )


def compute_quantiles(chances: Array, frame: Frame, levels: Array) -> Array:
    """Return quantiles of the loss, a row for each row of bucket probabilities.

    The probability of "not a number" is added to a bucket that is worse than all losses seen.
    """
    worse = frame.worst - frame.last + (frame.worst - frame.best) + frame.scale
    at = int(_find_bucket(np.array(worse / frame.scale)))
    mass = chances[:, :BUCKETS].copy()
    mass[:, at] += chances[:, BUCKETS]
    total = np.cumsum(mass, axis=1)
    total /= total[:, -1:]
    rows = np.empty((len(mass), len(levels)))
    lines = np.arange(len(mass))
    for column, level in enumerate(levels):
        bucket = np.minimum((total < level).sum(axis=1), BUCKETS - 1)
        before = np.where(bucket > 0, total[lines, bucket - 1], 0.0)
        inside = total[lines, bucket] - before
        share = np.clip((level - before) / np.maximum(inside, 1e-12), 0, 1)
        rows[:, column] = (bucket + share) * (2 * REACH / BUCKETS) - REACH
    losses = frame.last + frame.scale * GRAIN * np.sinh(rows)
    return np.asarray(np.maximum.accumulate(losses, axis=1))


def _find_bucket(change: Array) -> NDArray[np.int64]:
    place = (np.arcsinh(change / GRAIN) + REACH) * (BUCKETS / (2 * REACH))
    return np.clip(np.floor(place), 0, BUCKETS - 1).astype(np.int64)


def _scale_log(value: float) -> float:
    return math.log10(min(max(abs(value), 1e-9), 1e9)) / 3


def _measure_nearness(value: float, levels: Array) -> float:
    """Return how near a value is to a level of guessing: 1 at 1e-4 of it, 0 when far away."""
    off = float(np.min(np.abs(value - levels) / np.abs(levels)))
    return -math.log10(min(max(off, 1e-5), 1.0)) / 4
