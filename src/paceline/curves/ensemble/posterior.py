"""The posterior of a curve's family, shape, noise and drift, with level and gain integrated out.

The model: y = level · h0 + gain · h1 + a random walk + noise. Given shape, noise and drift it is
linear and normal, so its likelihood and its forecast have closed forms, computed here for many
points at once. Does not know how points are sampled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from paceline.curves.ensemble.priors import PRIORS, drift_variance, early_noise, noise_variance

if TYPE_CHECKING:
    from paceline.curves.arrays import Array, IntArray

# A point is (family, z) with four standard normal numbers: two of the shape, noise, drift.
SIZE = 4
_LEVEL = np.array([prior.level.mean if prior.level else 0.0 for prior in PRIORS])
_LEVEL_SD = np.array([prior.level.sd if prior.level else 1.0 for prior in PRIORS])
_GAIN = np.array([prior.gain.mean for prior in PRIORS])
_GAIN_SD = np.array([prior.gain.sd for prior in PRIORS])


class _Coefficients(NamedTuple):
    """Level and gain given all else, as deviations from their prior means in prior sds."""

    level: Array
    gain: Array
    # Precision of the level for a known gain, of the gain, and the level's slope in the gain.
    level_precision: Array
    gain_precision: Array
    slope: Array
    # The residual sum of squares, in units of its variance.
    squares: Array


class Posterior:
    """The posterior given the seen part of one curve."""

    def __init__(self, x: Array, times: Array, y: Array) -> None:
        # `x` is where formulas are evaluated, `times` the elapsed share of the whole run.
        self._x, self._times = x, times
        since = times - times[0]
        # Early points are noisier: after this scaling and rotation, the noise is independent.
        weights = 1 / early_noise(len(y))
        walk = weights[:, None] * np.minimum(since[:, None], since[None, :]) * weights[None, :]
        values, rotation = np.linalg.eigh(walk)
        self._rotation = weights[:, None] * rotation
        self._lengths = np.maximum(values, 0.0)
        self._y = y @ self._rotation
        self._last = since @ self._rotation

    def log_density(self, families: IntArray, points: Array) -> Array:
        """Return log likelihood plus log prior at each point; -inf where a formula fails."""
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
        self, families: IntArray, points: Array, x: Array, times: Array
    ) -> tuple[Array, Array]:
        """Return mean and variance of the curve at later x, a row for each point."""
        with np.errstate(all="ignore"):
            base, spread = self._noise(points)
            h0, h1 = self._columns(self._x, families, points)
            solved = self._solve(families, h0, h1, base[:, None] * spread)
            ratio = drift_variance(points[:, 3:])
            # The regression of the walk's end on each residual.
            follow = ratio * self._last / spread
            f0, f1 = self._columns(x, families, points, rotate=False)
            # The derivatives by level and gain: the formula minus the correction of the walk.
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
        """Return the noise variance, and the walk's factor along each rotated direction."""
        return noise_variance(points[:, 2]), 1 + drift_variance(points[:, 3:]) * self._lengths

    def _columns(
        self, x: Array, families: IntArray, points: Array, rotate: bool = True
    ) -> tuple[Array, Array]:
        h0, h1 = np.empty((len(points), len(x))), np.empty((len(points), len(x)))
        for number in np.unique(families):
            chosen = np.flatnonzero(families == number)
            h0[chosen], h1[chosen] = PRIORS[number].columns(x, points[chosen])
        return (h0 @ self._rotation, h1 @ self._rotation) if rotate else (h0, h1)

    def _solve(self, families: IntArray, h0: Array, h1: Array, variance: Array) -> _Coefficients:
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
        return _Coefficients(level, gain, level_precision, gain_precision, slope, squares)
