"""Priors of the ensemble: shapes, levels, noise and drift of a curve.

Knows the eleven families as `level · h0(x) + gain · h1(x; shape)` for accuracies that rise towards
1 over x = 1 … 100. A shape is two standard normal numbers; level and gain are normal, so that they
can be integrated out. Does not know data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import ndtr

from paceline.curves.ensemble.families import FAMILIES, Family

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.curves.arrays import Array

# ln of the noise's standard deviation, and of the drift over a whole run in units of the noise.
NOISE = (-4.0, 1.25)
DRIFT = (0.5, 1.5)
# Upper limits of both: with unbounded tails a forecast's variance would be arbitrary.
MOST_NOISE, MOST_DRIFT = 0.2, 5.0
# The noise's variance at the first seen point, in units of that at the last.
RESTLESS = 10.0
# The smallest noise: constant curves keep a density.
LEAST_NOISE = 1e-5


def noise_variance(z: Array) -> Array:
    """Return the variance of the noise for standard normal numbers."""
    raw = np.exp(2 * (NOISE[0] + NOISE[1] * z))
    return np.asarray(raw / (1 + raw / MOST_NOISE**2) + LEAST_NOISE**2)


def drift_variance(z: Array) -> Array:
    """Return the variance of a random walk over a whole run, in units of the noise's."""
    raw = np.exp(2 * (DRIFT[0] + DRIFT[1] * z))
    return np.asarray(raw / (1 + raw / MOST_DRIFT**2))


def early_noise(points: int) -> Array:
    """Return the noise's standard deviation at each seen point, in units of the last one's.

    These are the published recency weights (10 at the end, 1 at the beginning), as noise.
    """
    return np.asarray(RESTLESS ** (np.arange(points)[::-1] / (2 * points)))


class Normal(NamedTuple):
    """A coefficient's prior."""

    mean: float
    sd: float


class Prior(NamedTuple):
    """One family: its shape as a function of two standard normals, and its two coefficients."""

    family: Family
    # The family's parameter vector for a shape, with a level of 0 and a gain of 1.
    vectors: Callable[[Array, Array], tuple[Array | float, ...]]
    level: Normal | None
    gain: Normal
    # Whether level and gain are the values at the end and at the beginning.
    ends: bool = False

    def columns(self, x: Array, shapes: Array) -> tuple[Array, Array]:
        """Return h0 and h1 at x for each shape."""
        parameters = self.vectors(shapes[:, 0], shapes[:, 1])
        vectors = np.empty((len(shapes), len(parameters)))
        for at, column in enumerate(parameters):
            vectors[:, at] = column
        gain = self.family.curve(x, vectors)
        if self.level is None:
            return np.zeros_like(gain), gain
        return (1 - gain if self.ends else np.ones_like(gain)), gain


def _between(low: float, high: float, z: Array) -> Array:
    return np.asarray(low + (high - low) * ndtr(z))


_FAMILY = {family.name: family for family in FAMILIES}

PRIORS = (
    Prior(
        _FAMILY["vapor pressure"],
        lambda p, q: (0.0, _between(-4, 0, p), np.exp(_between(-8, 0, q))),
        None,
        Normal(0.45, 0.25),
    ),
    Prior(_FAMILY["ilog2"], lambda p, q: (0.0, 1.0), Normal(0.5, 0.3), Normal(0.25, 0.2)),
    Prior(
        _FAMILY["weibull"],
        lambda p, q: (0.0, 1.0, np.exp(-2 + p), np.exp(0.5 * q)),
        Normal(0.75, 0.4),
        Normal(0.4, 0.3),
        ends=True,
    ),
    Prior(
        _FAMILY["pow3"],
        lambda p, q: (0.0, 1.0, np.exp(2 * p)),
        Normal(0.65, 0.35),
        Normal(0.3, 0.25),
    ),
    Prior(
        _FAMILY["pow4"],
        lambda p, q: (0.0, np.exp(-3.5 + 2 * p), 1.0, np.exp(q)),
        Normal(0.8, 0.25),
        Normal(0.5, 0.3),
    ),
    Prior(
        _FAMILY["loglog linear"],
        lambda p, q: (np.exp(-2 + p), np.exp(_between(0, 1, q))),
        None,
        Normal(1.0, 0.1),
    ),
    Prior(
        _FAMILY["mmf"],
        lambda p, q: (0.0, 1.0, np.exp(2 * p), np.exp(q)),
        Normal(0.8, 0.2),
        Normal(0.2, 0.2),
        ends=True,
    ),
    Prior(
        _FAMILY["janoschek"],
        lambda p, q: (0.0, 1.0, np.exp(-2 + p), np.exp(0.5 * q)),
        Normal(0.65, 0.3),
        Normal(0.3, 0.3),
        ends=True,
    ),
    Prior(
        _FAMILY["hill3"],
        lambda p, q: (1.0, np.exp(1 + p), np.exp(1 + 2 * q)),
        None,
        Normal(0.8, 0.2),
    ),
    Prior(
        _FAMILY["log power"],
        lambda p, q: (1.0, 1 + p, _between(-3, 0, q)),
        None,
        Normal(0.8, 0.2),
    ),
    Prior(
        _FAMILY["exp4"],
        lambda p, q: (0.0, np.exp(-2 + p), 0.0, np.exp(q)),
        Normal(0.8, 0.2),
        Normal(0.5, 0.3),
    ),
)
