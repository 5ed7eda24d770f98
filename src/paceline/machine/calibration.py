"""Calibration of forecasts in this study: a fold of what was forecast and what was reported.

Knows rows of quantiles and the losses reported later. Corrects chances by them, and says when they
are worse than the base rate. Only epochs that a trial reaches are scored: a trial stopped before
does not show whether its forecast was right.

The map follows Kuleshov, Fenner and Ermon, "Accurate Uncertainties for Deep Learning Using
Calibrated Regression" (ICML 2018): the share of all scored losses below each level.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from paceline.core.forecast_quantiles import LEVELS, blur, brier_score, compute_density, is_covered
from paceline.core.values import NO_LOSS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.forecast_quantiles import Forecast
    from paceline.core.values import TrialId

# The map starts as the identity, which weighs as much as this many scored losses.
_PRIOR = 50.0
# Chances are judged by the last _RECENT scored ones, once there are _LEAST.
_RECENT, _LEAST = 100, 20
# A model is wrong if fewer than half of its last losses lie in its 95 % intervals.
_COVERED, _LEAST_COVERED = 0.5, 5
# The shares of losses that the two central intervals should hold.
_SHARES = (0.8, 0.95)
# For the log score a row is blurred by this share of its size, so that no row is a point.
_BLUR = 0.001


class _OpenForecast(NamedTuple):
    """A forecast of later epochs of a trial, to be scored when each is reported."""

    forecast: Forecast
    # The best loss of the study at that time, and the chance to reach it at its first epoch.
    best: float
    chance: float


class Calibration:
    """Forecasts, scored by the losses reported later."""

    def __init__(self) -> None:
        # Scored forecasts. Each counts one, however many epochs it covers: their errors are
        # correlated.
        self.met = 0.0
        self._inside = dict.fromkeys(_SHARES, 0.0)
        self._logs = 0.0
        # Scored losses below the first level, between the first and the second, and so on.
        self._bins = [0.0] * (len(LEVELS) + 1)
        self._open: dict[TrialId, dict[int, list[_OpenForecast]]] = {}
        # For each scored chance: its squared error, and that of the base rate.
        self._errors: deque[tuple[float, float]] = deque(maxlen=_RECENT)
        self._judged = self._happened = 0
        # Whether each of the last losses was inside its forecast's 95 % interval.
        self._covered: deque[bool] = deque(maxlen=_RECENT)

    def add_forecast(self, trial: TrialId, forecast: Forecast, best: float) -> None:
        """Keep a forecast until its epochs are reported."""
        awaited = self._open.setdefault(trial, {})
        opened = _OpenForecast(forecast, best, self.chance(forecast, forecast.epochs[0], best))
        for epoch in forecast.epochs:
            awaited.setdefault(epoch, []).append(opened)

    def record_loss(self, trial: TrialId, epoch: int, loss: float) -> None:
        """Score the forecasts of this epoch."""
        awaited = self._open.get(trial)
        for opened in awaited.pop(epoch, ()) if awaited else ():
            row = opened.forecast.row(epoch)
            weight = 1.0 / len(opened.forecast.epochs)
            self.met += weight
            # On a tie the loss counts in the middle of its possible bins.
            self._bins[(bisect_left(row, loss) + bisect_right(row, loss)) // 2] += weight
            for share in _SHARES:
                self._inside[share] += weight * is_covered(row, loss, share)
            self._logs += weight * _log_density(row, loss)
            if epoch == opened.forecast.epochs[0]:
                self._judge(opened.chance, loss <= opened.best)
                self._covered.append(is_covered(row, loss, _SHARES[-1]))

    def _judge(self, chance: float, happened: bool) -> None:
        base = (self._happened + 1.0) / (self._judged + 2.0)
        self._errors.append((brier_score(chance, happened), brier_score(base, happened)))
        self._judged += 1
        self._happened += happened

    def forget(self, trial: TrialId) -> None:
        """Drop the forecasts of a trial that has ended."""
        self._open.pop(trial, None)

    def chance(self, forecast: Forecast, epoch: int, loss: float) -> float:
        """Return the probability of `loss` or lower, corrected by the scores of this study."""
        return self.correct(forecast.chance(epoch, loss))

    def correct(self, stated: float) -> float:
        """Return a stated probability, corrected by the scores of this study."""
        if not self.met:
            return stated
        at = bisect_right(LEVELS, stated)
        low, high = (0.0, *LEVELS)[at], (*LEVELS, 1.0)[at]
        below, above = self._share(at), self._share(at + 1)
        return below + (stated - low) / (high - low) * (above - below)

    def _share(self, at: int) -> float:
        """Return the share of losses below the level before bin `at`, drawn towards that level."""
        level = (0.0, *LEVELS, 1.0)[at]
        return (sum(self._bins[:at]) + _PRIOR * level) / (self.met + _PRIOR)

    @property
    def coverage(self) -> tuple[float, float] | None:
        """The shares of losses in the 80 % and in the 95 % intervals; None before the first."""
        if not self.met:
            return None
        narrow, wide = (self._inside[share] / self.met for share in _SHARES)
        return narrow, wide

    @property
    def log_score(self) -> float | None:
        """The mean log density of reported losses, in the metric's units; None before the first."""
        return self._logs / self.met if self.met else None

    @property
    def brier(self) -> tuple[float, float] | None:
        """The mean squared errors of recent chances and of the base rate; None if too few."""
        if len(self._errors) < _LEAST:
            return None
        count = len(self._errors)
        own, base = (sum(column) / count for column in zip(*self._errors, strict=True))
        return own, base

    @property
    def scored(self) -> int:
        """The number of forecasts whose first epoch was reported."""
        return self._judged

    @property
    def distrust(self) -> str:
        """Why chances should not be used now; empty if they may be used."""
        count, inside = len(self._covered), sum(self._covered)
        if count >= _LEAST_COVERED and inside < _COVERED * count:
            return (
                f"forecasts have been wrong: {inside} of {count} losses were in the 95 % interval"
            )
        scores = self.brier
        if scores is None:
            return ""
        own, base = scores
        count = len(self._errors)
        gaps = [mine - theirs for mine, theirs in self._errors]
        spread = sum((gap - (own - base)) ** 2 for gap in gaps) / (count - 1)
        # Worse by more than one standard error of the mean.
        if own - base <= (spread / count) ** 0.5:
            return ""
        return (
            f"forecasts have been worse than the base rate: Brier score {own:.3f} against "
            f"{base:.3f} over the last {count}"
        )


def _log_density(row: Sequence[float], loss: float) -> float:
    # Not so small that the blur vanishes, and not so large that it overflows.
    size = min(max(row[-1] - row[0], abs(row[-1]), abs(row[0]), 1e-9), 1e200)
    spread = blur(row, _BLUR * size)
    apart = spread[0] < spread[1] and spread[-2] < spread[-1] < NO_LOSS
    found = compute_density(spread, loss) if loss < NO_LOSS and apart else 0.0
    # A smaller density is not distinguishable.
    return math.log(max(found, 1e-12 / size))
