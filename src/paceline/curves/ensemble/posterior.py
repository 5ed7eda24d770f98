"""The posterior of a curve's family, shape, noise and drift; level and gain are integrated away.

The model: y = level · h0 + gain · h1 + a random walk + noise. Given shape, noise and drift that is
linear and normal, so its likelihood and its forecast have closed forms, computed here for many
points at once. Does not know how points are sampled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from paceline.curves.ensemble.priors import PRIORS, drift, noise, settling

if TYPE_CHECKING:
    from paceline.curves.ensemble.families import Array, Whole

# A point is (family, z) with four standard normal numbers: two of the shape, noise, drift.
SIZE = 4
_LEVEL = np.array([prior.level.mean if prior.level else 0.0 for prior in PRIORS])
_LEVEL_SD = np.array([prior.level.sd if prior.level else 1.0 for prior in PRIORS])
_GAIN = np.array([prior.gain.mean for prior in PRIORS])
_GAIN_SD = np.array([prior.gain.sd for prior in PRIORS])


class _Solved(NamedTuple):
    """Level and gain given everything else, in units of their priors' sds from their means."""

    level: Array
    gain: Array
    # How sure they are: of the level for a known gain, of the gain, and how one follows the other.
    level_precision: Array
    gain_precision: Array
    slope: Array
    # The sum of squares that is left, in units of its variance.
    squares: Array


class Posterior:
    """What the seen part of one curve says."""

    def __init__(self, x: Array, times: Array, y: Array) -> None:
        # `x` is where formulas are read, `times` the share of the whole run that is over.
        self._x, self._times = x, times
        since = times - times[0]
        # Early points are noisier: divided by that, every direction has noise of its own alone.
        weights = 1 / settling(len(y))
        walk = weights[:, None] * np.minimum(since[:, None], since[None, :]) * weights[None, :]
        values, rotation = np.linalg.eigh(walk)
        self._rotation = weights[:, None] * rotation
        self._lengths = np.maximum(values, 0.0)
        self._y = y @ self._rotation
        self._last = since @ self._rotation

    def log_density(self, families: Whole, points: Array) -> Array:
        """Return the log of likelihood times prior at each point; -inf where a formula fails."""
        with np.errstate(all="ignore"):
            base, spread = self._noise(points)
            h0, h1 = self._columns(self._x, families, points)
            solved = self._solve(families, h0, h1, base[:, None] * spread)
            found = -0.5 * (
                solved.squares
                + np.log(solved.level_precision * solved.gain_precision)
                + np.log(base[:, None] * spread).sum(axis=1)
                + (points**2).sum(axis=1)
            )
        return np.where(np.isfinite(found), found, -np.inf)

    def forecast(
        self, families: Whole, points: Array, x: Array, times: Array
    ) -> tuple[Array, Array]:
        """Return mean and variance of the curve at later x, a row for each point."""
        with np.errstate(all="ignore"):
            base, spread = self._noise(points)
            h0, h1 = self._columns(self._x, families, points)
            solved = self._solve(families, h0, h1, base[:, None] * spread)
            ratio = drift(points[:, 3:])
            # How the walk's end follows from each residual.
            follow = ratio * self._last / spread
            f0, f1 = self._columns(x, families, points, rotate=False)
            # What one more unit of level and gain adds: the formula less what the walk corrects.
            g0 = _LEVEL_SD[families][:, None] * (f0 - (follow * h0).sum(axis=1)[:, None])
            g1 = _GAIN_SD[families][:, None] * (f1 - (follow * h1).sum(axis=1)[:, None])
            center = _LEVEL[families][:, None] * h0 + _GAIN[families][:, None] * h1
            mean = _LEVEL[families][:, None] * f0 + _GAIN[families][:, None] * f1
            mean = mean + (follow * (self._y - center)).sum(axis=1)[:, None]
            mean = mean + g0 * solved.level[:, None] + g1 * solved.gain[:, None]
            own = 1 + ratio * (times - self._times[0])
            own = own - ratio * (follow * self._last).sum(axis=1)[:, None]
            variance = base[:, None] * own
            variance = variance + g0**2 / solved.level_precision[:, None]
            sure = solved.gain_precision[:, None]
            variance = variance + (g1 - solved.slope[:, None] * g0) ** 2 / sure
        return mean, variance

    def _noise(self, points: Array) -> tuple[Array, Array]:
        """Return the noise's variance, and how much the walk adds along each rotated direction."""
        return noise(points[:, 2]), 1 + drift(points[:, 3:]) * self._lengths

    def _columns(
        self, x: Array, families: Whole, points: Array, rotate: bool = True
    ) -> tuple[Array, Array]:
        h0, h1 = np.empty((len(points), len(x))), np.empty((len(points), len(x)))
        for number in np.unique(families):
            chosen = np.flatnonzero(families == number)
            h0[chosen], h1[chosen] = PRIORS[number].columns(x, points[chosen])
        return (h0 @ self._rotation, h1 @ self._rotation) if rotate else (h0, h1)

    def _solve(self, families: Whole, h0: Array, h1: Array, variance: Array) -> _Solved:
        rest = self._y - _LEVEL[families][:, None] * h0 - _GAIN[families][:, None] * h1
        h0, h1 = h0 * _LEVEL_SD[families][:, None], h1 * _GAIN_SD[families][:, None]
        # One column is made orthogonal to the other, each with its prior as one more row: with
        # little noise the usual determinant would be the difference of two huge numbers.
        level_precision = 1 + (h0 * h0 / variance).sum(axis=1)
        slope = (h0 * h1 / variance).sum(axis=1) / level_precision
        apart = h1 - slope[:, None] * h0
        gain_precision = 1 + slope**2 + (apart * apart / variance).sum(axis=1)
        gain = (apart * rest / variance).sum(axis=1) / gain_precision
        level = (h0 * rest / variance).sum(axis=1) / level_precision - slope * gain
        left = rest - level[:, None] * h0 - gain[:, None] * h1
        squares = (left * left / variance).sum(axis=1) + level**2 + gain**2
        return _Solved(level, gain, level_precision, gain_precision, slope, squares)
