"""Ensemble: eleven families of learning curves, weighed by how well they fit, sampled by MCMC.

Rule: losses are mapped to accuracies that rise towards 1; family, shape, noise and drift are
sampled (see `posterior`), and the forecast is the mixture over all samples.

Domhan, Springenberg and Hutter, IJCAI 2015. Different from the paper: one family at a time instead
of a weighted sum, so that chains mix; level and gain are integrated out; a random walk models
drift; the draws are seeded by the curve itself, so that a curve always gets the same forecast.
Chains that do not agree are run again, longer; a `Fit` says how well they agree.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from paceline.core.base_part import BasePart
from paceline.core.errors import SpecError
from paceline.core.forecast_quantiles import LEVELS, Forecast
from paceline.core.rng import stream
from paceline.curves.accuracy_scale import choose_scale
from paceline.curves.emcee_chains import require_emcee
from paceline.curves.ensemble.mcmc import COUNT, compute_r_hat, fit_approximation, run_chains
from paceline.curves.ensemble.posterior import Posterior
from paceline.curves.ensemble.priors import PRIORS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.ports import History
    from paceline.curves.accuracy_scale import AccuracyScale
    from paceline.curves.arrays import Array

STEPS, WALKERS = 300, 128
# R-hat needs half-chains; emcee needs two walkers for each of five coordinates.
_LEAST_STEPS, _LEAST_WALKERS = 8, 10
# Formulas are evaluated at x = 1 … 100; longer runs are rescaled to that.
_SPAN = 100.0
# The number of points used of longer curves: evenly spaced ones, and more of the beginning.
_EVENLY, _EARLY = 40, 24
# A forecast uses every second step, since neighbours hardly differ, and this many at a time.
_THIN, _PORTION = 2, 8192
_AGREE = 1.1
_LONGER = 3
_NORMALS = ndtri((np.arange(5) + 0.5) / 5)
_GRID = np.concatenate([[0.0, 0.001, 0.0025], np.linspace(0.005, 0.995, 67), [0.9975, 0.999, 1.0]])


class Fit(NamedTuple):
    """A forecast with diagnostics of its chains."""

    forecast: Forecast
    # For each horizon, in losses.
    means: tuple[float, ...]
    sds: tuple[float, ...]
    # The share of each family in the mixture.
    weights: dict[str, float]
    acceptance: float
    # Split and rank-normalised; the worst over all coordinates. 1 is perfect.
    r_hat: float


class Ensemble(BasePart):
    """Forecasts by a mixture of parametric curve families, fitted by MCMC."""

    others = 0

    def __init__(self, *, steps: int = STEPS, walkers: int = WALKERS) -> None:
        require_emcee()
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
        """Return the forecast of one curve with diagnostics of the chains."""
        seen = _select_points(history)
        if seen is None:
            return None
        epochs, losses, scale = seen
        last = max(history.epochs, *history.horizons)
        posterior = Posterior(_rescale_epochs(epochs, last), epochs / last, scale.accuracy(losses))
        seed = int(stream(0, "ensemble", _pack_hex(epochs, losses)).random() * 2**32)
        random = np.random.RandomState(seed)
        start = fit_approximation(posterior, random)
        for steps in (self._steps, _LONGER * self._steps):
            chains = run_chains(posterior, start, self._walkers, steps, random)
            worst = max(
                map(compute_r_hat, (*np.moveaxis(chains.coordinates, -1, 0), chains.log_density))
            )
            if worst <= _AGREE:
                break
        kept = chains.coordinates[::_THIN]
        families, points = start.map_coordinates(kept.reshape(-1, kept.shape[-1]))
        asked = np.asarray(history.horizons, dtype=float)
        portions = [
            posterior.forecast(
                families[at : at + _PORTION],
                points[at : at + _PORTION],
                _rescale_epochs(asked, last),
                asked / last,
            )
            for at in range(0, len(families), _PORTION)
        ]
        mean, variance = (np.concatenate(parts) for parts in zip(*portions, strict=True))
        # A formula that is finite at every seen x may be NaN at a later one.
        good = np.isfinite(mean + variance).all(axis=1)
        families, mean, variance = families[good], mean[good], variance[good]
        forecast = _mix_forecast(history.horizons, mean, np.sqrt(variance), scale)
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


def _select_points(history: History) -> tuple[Array, Array, AccuracyScale] | None:
    """Return the epochs and losses to fit, and their scale; None if nothing can be fitted."""
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
    scale = choose_scale(losses)
    if not (math.isfinite(scale.span) and scale.span > 0):
        return None
    return (epochs + 1).astype(float), losses, scale


def _rescale_epochs(epochs: Array, last: int) -> Array:
    return 1 + (epochs - 1) * (_SPAN - 1) / (last - 1) if last > _SPAN else epochs


def _pack_hex(epochs: Array, losses: Array) -> str:
    both = (*map(float, epochs), *map(float, losses))
    return struct.pack(f"<{len(both)}d", *both).hex()


def _mix_forecast(
    horizons: Sequence[int], mean: Array, sd: Array, scale: AccuracyScale
) -> Forecast | None:
    """Return the quantiles of an equal mixture of normals; None if there is no component."""
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
