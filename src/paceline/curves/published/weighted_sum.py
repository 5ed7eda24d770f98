"""The published sampler: a weighted sum of families with flat priors, started at least squares.

Knows only accuracies in [0, 1] that rise with x = 1, 2, …. Kept as published, faults included; only
the log-density is computed for all proposals of a half-step at once, which does not change the
distribution of the samples. Variants differ by `Settings`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from scipy.optimize import leastsq, minimize, nnls
from scipy.special import logsumexp, ndtr

from paceline.core.forecast_quantiles import LEVELS
from paceline.curves.emcee_chains import run_walkers
from paceline.curves.ensemble.families import FAMILIES, Family

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.curves.arrays import Array

Flags: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
_THIN = 10
_START_WEIGHT = 10.0
_JITTER = 1e-6
_LEAST_WEIGHT = 1e-4
_FAR = 200.0


class Settings(NamedTuple):
    """The differences between the published variants."""

    families: tuple[Family, ...] = FAMILIES
    walkers: int = 100
    burn_in: int = 500
    # Later points count up to ten times as much.
    recency: bool = True
    # All of 100 points must rise, instead of the second and the last.
    hard: bool = False
    # Fits within bounds, and first weights by non-negative least squares instead of equal ones.
    bounds: Mapping[str, tuple[tuple[float | None, float | None], ...]] | None = None


PUBLISHED = Settings()


class Mixture(NamedTuple):
    """The predictive distribution of one epoch: many normals of equal weight."""

    means: Array
    sigmas: Array

    def quantiles(self) -> list[float]:
        """Return the quantiles at LEVELS, by bisection."""
        step = max(1, len(self.means) // 4000)
        means, sigmas = self.means[::step], self.sigmas[::step]
        # Bisection is bounded: a flat prior lets some chains run to 1e14.
        low = np.full(len(LEVELS), max(float(np.min(means - 9 * sigmas)), -_FAR))
        high = np.full(len(LEVELS), min(float(np.max(means + 9 * sigmas)), _FAR))
        for _ in range(50):
            middle = (low + high) / 2
            below = ndtr((middle[:, None] - means) / sigmas).mean(axis=1) < LEVELS
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return [float(value) for value in np.maximum.accumulate(high)]

    def log_density(self, value: float, width: float) -> float:
        """Return the log density at a value, every normal widened by `width`."""
        variance = self.sigmas**2 + width**2
        logs = -0.5 * ((value - self.means) ** 2 / variance + np.log(2 * np.pi * variance))
        return float(logsumexp(logs) - np.log(len(logs)))


class WeightedSum:
    """The published log-density of family parameters, sigma and weights, for many vectors."""

    def __init__(self, x: Array, y: Array, limit: int, settings: Settings) -> None:
        self.x, self.y, self.settings = x, y, settings
        n = len(y)
        self.v = 10 ** (np.arange(n) / n) if settings.recency else np.ones(n)
        ends = np.linspace(2, limit, 100) if settings.hard else np.array([2.0, limit])
        self.grid = np.concatenate([self.x, ends])
        self.families: list[Family] = []

    def compute_curves(self, family: Family, vectors: Array) -> tuple[Array, Flags]:
        """Return the values at the data, and whether the flat prior allows them."""
        with np.errstate(all="ignore"):
            values = family.curve(self.grid, vectors)
            ends = values[:, len(self.x) :]
            last = ends[:, -1]
            good = np.isfinite(last) & (last >= 0) & (last <= 100)
            if self.settings.hard:
                good &= np.all(np.diff(ends, axis=1) >= 0, axis=1)
            else:
                good &= ~(ends[:, 0] > last)
        return values[:, : len(self.x)], good

    def log_density(self, vectors: Array) -> Array:
        """Return one number for each vector: parameters of each family, sigma, weights."""
        count = len(self.families)
        sigma, weights = vectors[:, -count - 1], vectors[:, -count:]
        good = np.all(weights >= 0, axis=1)
        with np.errstate(all="ignore"):
            shares = weights / weights.sum(axis=1, keepdims=True)
            total, at = np.zeros((len(vectors), len(self.x))), 0
            for number, family in enumerate(self.families):
                size = len(family.start)
                values, allowed = self.compute_curves(family, vectors[:, at : at + size])
                at += size
                good &= allowed
                total += shares[:, number, None] * values
            squares = (total - self.y) ** 2 @ self.v
            found = -0.5 * squares / sigma**2 - self.v.sum() * np.log(sigma)
        return np.where(good & np.isfinite(found), found, -np.inf)

    def compute_values(self, epoch: float, vectors: Array) -> Array:
        """Return the combination's value at one epoch for each vector."""
        count = len(self.families)
        shares = vectors[:, -count:] / vectors[:, -count:].sum(axis=1, keepdims=True)
        total, at = np.zeros(len(vectors)), 0
        with np.errstate(all="ignore"):
            for number, family in enumerate(self.families):
                size = len(family.start)
                total += (
                    shares[:, number]
                    * family.curve(np.array([float(epoch)]), vectors[:, at : at + size])[:, 0]
                )
                at += size
        return total


def fit_family(family: Family, model: WeightedSum) -> Array | None:
    """Return the least-squares parameters from the published start; None if both methods fail."""
    root = np.sqrt(model.v)

    def residuals(vector: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray((family.curve(model.x, vector[None, :])[0] - model.y) * root)

    bounds = model.settings.bounds
    if bounds is None and len(model.y) >= len(family.start):
        found, _, _, _, status = leastsq(residuals, family.start, full_output=True)
        if status in (1, 2, 3, 4) and np.all(np.isfinite(found)):
            return np.asarray(found, dtype=float)
    done = minimize(
        lambda vector: float(np.sum(residuals(vector) ** 2)),
        family.start,
        method="L-BFGS-B",
        bounds=None if bounds is None else bounds[family.name],
    )
    return np.asarray(done.x) if done.success and np.all(np.isfinite(done.x)) else None


def find_start(model: WeightedSum) -> Array | None:
    """Return the start vector of walkers: fits, sigma and weights; None without any fit."""
    fits = []
    for family in model.settings.families:
        found = fit_family(family, model)
        if found is not None and model.compute_curves(family, found[None, :])[1][0]:
            model.families.append(family)
            fits.append(found)
    if not fits:
        return None
    rows = np.array(
        [f.curve(model.x, found[None, :])[0] for f, found in zip(model.families, fits, strict=True)]
    )
    weights = np.full(len(fits), _START_WEIGHT)
    if model.settings.bounds is not None:
        weights = nnls(rows.T, model.y)[0]
        kept = np.flatnonzero(weights > _LEAST_WEIGHT)
        if not len(kept):
            return None
        model.families = [model.families[at] for at in kept]
        fits, rows, weights = [fits[at] for at in kept], rows[kept], weights[kept]
    sigma = np.std(weights @ rows / weights.sum() - model.y)
    return np.concatenate([*fits, [sigma], weights])


class Samples(NamedTuple):
    """All samples of one curve's chain."""

    model: WeightedSum
    chain: Array
    acceptance: float

    def mix(self, epoch: float, steps: int) -> Mixture | None:
        """Return the forecast of an epoch by the first steps; None if no sample is finite."""
        settings, size = self.model.settings, self.chain.shape[-1]
        kept = self.chain[settings.burn_in : steps : _THIN].reshape(-1, size)
        means = self.model.compute_values(epoch, kept)
        sigmas = kept[:, -len(self.model.families) - 1]
        good = np.isfinite(means) & (sigmas > 0)
        return Mixture(means[good], sigmas[good]) if good.any() else None


def run_published_chain(model: WeightedSum, steps: int, seed: int) -> Samples | None:
    """Run one chain; None if no family can be fitted.

    A shorter run of the same seed is a prefix of a longer one, so one chain serves all lengths.
    """
    start = find_start(model)
    if start is None:
        return None
    random = np.random.RandomState(seed)
    walkers = max(model.settings.walkers, 2 * len(start))
    points = start + _JITTER * random.standard_normal((walkers, len(start)))
    walk = run_walkers(model.log_density, points, steps, random)
    return Samples(model, walk.chain, walk.acceptance)
