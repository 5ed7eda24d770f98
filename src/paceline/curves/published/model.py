"""Published: the learning-curve model of HyperDrive's POP and EarlyTerm, as published.

Rule: a weighted sum of eleven curve families; parameters, weights and noise have flat priors and
are sampled by MCMC from the least-squares fit: 100 walkers, 700 steps of which 500 are burn-in.

Domhan, Springenberg and Hutter, "Speeding up Automatic Hyperparameter Optimization of Deep Neural
Networks by Extrapolation of Learning Curves", IJCAI 2015; 700 instead of 2,500 steps: Rasley et
al., Middleware 2017. Where they leave a choice: with the metric's range, values are normalised by
it, as HyperDrive does with rewards; without one, losses are mapped to accuracies as for `ensemble`.
A value that is not a number counts as 0. Of more than 100 epochs, 100 evenly spaced ones are used.
"""

from __future__ import annotations

import math
import struct
import warnings
from typing import TYPE_CHECKING

import numpy as np

from paceline.core.base_part import BasePart
from paceline.core.errors import SpecError
from paceline.core.forecast_quantiles import Forecast
from paceline.core.rng import stream
from paceline.curves.accuracy_scale import AccuracyScale, choose_scale
from paceline.curves.emcee_chains import require_emcee
from paceline.curves.published.weighted_sum import PUBLISHED, WeightedSum, run_published_chain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.ports import History
    from paceline.curves.arrays import Array
    from paceline.curves.published.weighted_sum import Samples

STEPS, WALKERS = 700, 100
_LEAST_STEPS = 20
_POINTS = 100


class Published(BasePart):
    """Forecasts by a weighted sum of curve families, as HyperDrive does."""

    others = 0

    def __init__(self, *, steps: int = STEPS, walkers: int = WALKERS) -> None:
        require_emcee()
        if steps < _LEAST_STEPS or walkers < 1:
            raise SpecError(
                f"published:steps={steps},walkers={walkers} are too few: give at least "
                f"{_LEAST_STEPS} steps and 1 walker."
            )
        self._steps = steps
        # Of the published 700 steps, 500 are burn-in; a shorter chain keeps that share.
        burn_in = min(PUBLISHED.burn_in, steps * PUBLISHED.burn_in // STEPS)
        self._settings = PUBLISHED._replace(walkers=walkers, burn_in=burn_in)

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        return [self._forecast_one(history) for history in histories]

    def _forecast_one(self, history: History) -> Forecast | None:
        losses = np.asarray(history.losses, dtype=float)
        if not len(losses) or not math.isfinite(losses[-1]):
            return None
        scale = _choose_scale(losses, history.bounds)
        if not (math.isfinite(scale.span) and scale.span > 0):
            return None
        x, y = _select_points(losses, scale)
        limit = max(history.epochs, *history.horizons)
        seed = int(stream(0, "published", _pack_hex(x, y)).random() * 2**32)
        model = WeightedSum(x, y, limit, self._settings)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            # Fits of families that a curve does not resemble fail loudly; others remain.
            warnings.simplefilter("ignore")
            try:
                samples = run_published_chain(model, self._steps, seed)
            except (ValueError, FloatingPointError, np.linalg.LinAlgError):
                samples = None
            return samples and self._read_samples(samples, history, scale)

    def _read_samples(
        self, samples: Samples, history: History, scale: AccuracyScale
    ) -> Forecast | None:
        rows = []
        for epoch in history.horizons:
            mixture = samples.mix(epoch, self._steps)
            if mixture is None:
                return None
            losses = scale.loss(np.array(mixture.quantiles()))[::-1]
            rows.append(tuple(map(float, losses)))
        if not all(math.isfinite(loss) for row in rows for loss in (row[0], row[-1])):
            return None
        return Forecast(tuple(history.horizons), tuple(rows))


def _choose_scale(losses: Array, bounds: tuple[float, float] | None) -> AccuracyScale:
    if bounds is not None:
        low, high = bounds
        return AccuracyScale(high, low)
    return choose_scale(losses[np.isfinite(losses)])


def _select_points(losses: Array, scale: AccuracyScale) -> tuple[Array, Array]:
    """Return the epochs to fit and their accuracies in [0, 1]."""
    at = np.arange(len(losses))
    if len(at) > _POINTS:
        at = np.unique(np.rint(np.linspace(0, len(at) - 1, _POINTS)).astype(int))
    known = np.where(np.isfinite(losses[at]), losses[at], scale.zero)
    return (at + 1).astype(float), np.clip(scale.accuracy(known), 0.0, 1.0)


def _pack_hex(x: Array, y: Array) -> str:
    both = (*map(float, x), *map(float, y))
    return struct.pack(f"<{len(both)}d", *both).hex()
