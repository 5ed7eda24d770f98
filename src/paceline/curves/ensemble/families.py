"""The eleven families of learning curves, as formulas over many parameter vectors at once.

Knows rising curves of x = 1, 2, … and the start values of published fits. Does not know data,
priors or noise. A vector outside a formula's domain gives NaN or infinity, never an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.curves.arrays import Array


class Family(NamedTuple):
    """One formula: for n epochs and m parameter vectors, `curve` returns m x n values."""

    name: str
    parameters: tuple[str, ...]
    start: tuple[float, ...]
    formula: Callable[..., Array]

    def curve(self, x: Array, vectors: Array) -> Array:
        """Return a row of values for each parameter vector."""
        return self.formula(x, *(column[:, None] for column in vectors.T))


def _vapor_pressure(x: Array, a: Array, b: Array, c: Array) -> Array:
    return np.exp(a + b / x + c * np.log(x))


def _ilog2(x: Array, c: Array, a: Array) -> Array:
    return c - a / np.log(x + 1)


def _weibull(x: Array, alpha: Array, beta: Array, kappa: Array, delta: Array) -> Array:
    return alpha - (alpha - beta) * np.exp(-((kappa * x) ** delta))


def _pow3(x: Array, c: Array, a: Array, alpha: Array) -> Array:
    return c - a * x**-alpha


def _pow4(x: Array, c: Array, a: Array, b: Array, alpha: Array) -> Array:
    return c - (a * x + b) ** -alpha


def _loglog(x: Array, a: Array, b: Array) -> Array:
    return np.log(a * np.log(x) + b)


def _mmf(x: Array, alpha: Array, beta: Array, kappa: Array, delta: Array) -> Array:
    return alpha - (alpha - beta) / (1 + (kappa * x) ** delta)


def _janoschek(x: Array, a: Array, beta: Array, k: Array, delta: Array) -> Array:
    return a - (a - beta) * np.exp(-k * x**delta)


def _hill3(x: Array, theta: Array, eta: Array, kappa: Array) -> Array:
    return theta * x**eta / (kappa**eta + x**eta)


def _log_power(x: Array, a: Array, b: Array, c: Array) -> Array:
    return a / (1 + (x / np.exp(b)) ** c)


def _exp4(x: Array, c: Array, a: Array, b: Array, alpha: Array) -> Array:
    return c - np.exp(-a * x**alpha + b)


FAMILIES = (
    Family("vapor pressure", ("a", "b", "c"), (-0.622028, -0.470050, 0.042322), _vapor_pressure),
    Family("ilog2", ("c", "a"), (0.78, 0.43), _ilog2),
    Family("weibull", ("alpha", "beta", "kappa", "delta"), (0.7, 0.1, 0.01, 1.0), _weibull),
    Family("pow3", ("c", "a", "alpha"), (0.84, 0.52, 0.01), _pow3),
    Family("pow4", ("c", "a", "b", "alpha"), (0.8, 200.0, 0.0, 0.1), _pow4),
    Family("loglog linear", ("a", "b"), (1.0, 1.0), _loglog),
    Family("mmf", ("alpha", "beta", "kappa", "delta"), (0.7, 0.1, 0.01, 5.0), _mmf),
    Family("janoschek", ("a", "beta", "k", "delta"), (0.73, 0.07, 0.355, 0.46), _janoschek),
    Family("hill3", ("theta", "eta", "kappa"), (0.772320, 0.586449, 2.460843), _hill3),
    Family("log power", ("a", "b", "c"), (0.77, 2.98, -0.51), _log_power),
    Family("exp4", ("c", "a", "b", "alpha"), (0.7, 0.8, -0.8, 0.3), _exp4),
)
