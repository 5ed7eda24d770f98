"""Eleven families of curves, weighed by how well they explain what was seen, sampled by MCMC.

Rule: losses are turned into accuracies that rise towards 1; family, shape, noise and drift are
sampled (see `posterior`), and the forecast is the mixture of what all samples say. The draws are
seeded by the curve itself, so the same curve always gets the same answer. Chains that do not agree
are run again, longer; how well they agree is part of a `Fit`.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from paceline.core.errors import SpecError
from paceline.core.rng import stream
from paceline.core.values import LEVELS, Forecast
from paceline.curves.ensemble.mcmc import COUNT, approximate, r_hat, run
from paceline.curves.ensemble.posterior import Posterior
from paceline.curves.ensemble.priors import PRIORS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.ports import History
    from paceline.curves.ensemble.families import Array

STEPS, WALKERS = 300, 128
# R-hat needs halves of chains; emcee two walkers for each of five coordinates.
_LEAST_STEPS, _LEAST_WALKERS = 8, 10
# Formulas are read at x = 1 … 100; longer runs are squeezed into that.
_SPAN = 100.0
# Of longer curves so many points are used: every so-manieth, and more of the beginning.
_EVENLY, _EARLY = 40, 24
# A forecast is made of every second step: those between hardly differ. So many samples at a time.
_THIN, _PORTION = 2, 8192
_AGREE = 1.1
_LONGER = 3
_NORMALS = ndtri((np.arange(5) + 0.5) / 5)
_GRID = np.concatenate([[0.0, 0.001, 0.0025], np.linspace(0.005, 0.995, 67), [0.9975, 0.999, 1.0]])


class Fit(NamedTuple):
    """A forecast, and how far to trust the chains behind it."""

    forecast: Forecast
    # Of each horizon, in losses.
    means: tuple[float, ...]
    sds: tuple[float, ...]
    # The share of each family in the mixture.
    weights: dict[str, float]
    acceptance: float
    # Split and rank-normalised; the worst over all coordinates. 1 is perfect.
    r_hat: float


class Ensemble:
    """The families of curves as one mixture, by chains that mix."""

    others = 0

    def __init__(self, *, steps: int = STEPS, walkers: int = WALKERS) -> None:
        # Steps are those after burn-in.
        if steps < _LEAST_STEPS or walkers < _LEAST_WALKERS:
            raise SpecError(
                f"ensemble:steps={steps},walkers={walkers} are too few: give at least "
                f"{_LEAST_STEPS} steps and {_LEAST_WALKERS} walkers."
            )
        self._steps, self._walkers = steps, walkers

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        fits = [self.fit(history) for history in histories]
        return [fit and fit.forecast for fit in fits]

    def fit(self, history: History) -> Fit | None:
        """Return the forecast of one curve with what the chains say of themselves."""
        seen = _seen(history)
        if seen is None:
            return None
        epochs, losses, scale = seen
        last = max(history.epochs, *history.horizons)
        posterior = Posterior(_x(epochs, last), epochs / last, scale.accuracy(losses))
        seed = int(stream(0, "ensemble", _bytes(epochs, losses)).random() * 2**32)
        random = np.random.RandomState(seed)
        start = approximate(posterior, random)
        for steps in (self._steps, _LONGER * self._steps):
            chains = run(posterior, start, self._walkers, steps, random)
            worst = max(map(r_hat, (*np.moveaxis(chains.coordinates, -1, 0), chains.log_density)))
            if worst <= _AGREE:
                break
        kept = chains.coordinates[::_THIN]
        families, points = start.point(kept.reshape(-1, kept.shape[-1]))
        asked = np.asarray(history.horizons, dtype=float)
        portions = [
            posterior.forecast(
                families[at : at + _PORTION],
                points[at : at + _PORTION],
                _x(asked, last),
                asked / last,
            )
            for at in range(0, len(families), _PORTION)
        ]
        mean, variance = (np.concatenate(parts) for parts in zip(*portions, strict=True))
        # A formula that was a number at every seen x may be none later on.
        good = np.isfinite(mean + variance).all(axis=1)
        families, mean, variance = families[good], mean[good], variance[good]
        forecast = _forecast(history.horizons, mean, np.sqrt(variance), scale)
        if forecast is None:
            return None
        shares = np.bincount(families, minlength=COUNT) / len(families)
        spread = np.sqrt(variance.mean(axis=0) + mean.var(axis=0))
        return Fit(
            forecast=forecast,
            means=tuple(map(float, scale.loss(mean.mean(axis=0)))),
            sds=tuple(map(float, scale.span * spread)),
            weights={
                prior.family.name: float(share) for prior, share in zip(PRIORS, shares, strict=True)
            },
            acceptance=chains.acceptance,
            r_hat=worst,
        )


class _Scale(NamedTuple):
    """Which losses are the accuracies 0 and 1."""

    zero: float
    one: float

    @property
    def span(self) -> float:
        return self.zero - self.one

    def accuracy(self, losses: Array) -> Array:
        return np.clip((self.zero - losses) / self.span, -1.0, 2.0)

    def loss(self, accuracies: Array) -> Array:
        return self.zero - self.span * accuracies


def _seen(history: History) -> tuple[Array, Array, _Scale] | None:
    """Return the epochs and losses that count, and their scale; None where there is none."""
    losses = np.asarray(history.losses, dtype=float)
    if not len(losses) or not math.isfinite(losses[-1]):
        return None
    epochs = np.flatnonzero(np.isfinite(losses))
    if len(epochs) > _EVENLY + _EARLY:
        last = len(epochs) - 1
        evenly = np.linspace(0, last, _EVENLY)
        early = np.geomspace(1, last + 1, _EARLY) - 1
        epochs = epochs[np.unique(np.rint(np.concatenate([evenly, early])).astype(int))]
    losses = losses[epochs]
    scale = _scale(losses)
    if not (math.isfinite(scale.span) and scale.span > 0):
        return None
    return (epochs + 1).astype(float), losses, scale


def _scale(losses: Array) -> _Scale:
    low, high = float(losses.min()), float(losses.max())
    if low >= -1 and high <= 0:
        return _Scale(0.0, -1.0)  # an accuracy, turned
    if low >= 0:
        # A loss that ends at 0 at the best; one that exploded is not the measure of the others.
        # The worst is 0.1, as most families cannot stay at 0.
        worst = min(high, 50 * float(np.median(losses))) or high or 1.0
        return _Scale(worst / 0.9, 0.0)
    return _Scale(high + (high - low) / 6, low - (high - low) / 2)


def _x(epochs: Array, last: int) -> Array:
    return 1 + (epochs - 1) * (_SPAN - 1) / (last - 1) if last > _SPAN else epochs


def _bytes(epochs: Array, losses: Array) -> str:
    both = (*map(float, epochs), *map(float, losses))
    return struct.pack(f"<{len(both)}d", *both).hex()


def _forecast(horizons: Sequence[int], mean: Array, sd: Array, scale: _Scale) -> Forecast | None:
    """Return the quantiles of equal parts of normals, or None where there are none."""
    if not len(mean):
        return None
    rows = []
    for column in range(len(horizons)):
        mu, sigma = mean[:, column], sd[:, column]
        drawn = (mu[:, None] + sigma[:, None] * _NORMALS).ravel()
        grid = np.quantile(drawn, _GRID)
        grid[0], grid[-1] = grid[0] - sigma.max(), grid[-1] + sigma.max()
        grid = np.unique(grid)
        below = ndtr((grid[:, None] - mu) / sigma).mean(axis=1)
        losses = scale.loss(np.interp(LEVELS, below, grid))[::-1]
        rows.append(tuple(map(float, np.maximum.accumulate(losses))))
    if not all(math.isfinite(loss) for row in rows for loss in (row[0], row[-1])):
        return None
    return Forecast(tuple(horizons), tuple(rows))
