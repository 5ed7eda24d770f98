"""How far forecasts can be trusted in this study: a fold of what was forecast and what came.

Knows rows of quantiles and the losses that were met later. Corrects chances by it, and says when
they are worth less than the base rate. Only horizons that a trial lives to see are scored: whoever
was stopped before is silent about whether that was right.

The map follows Kuleshov, Fenner and Ermon, "Accurate Uncertainties for Deep Learning Using
Calibrated Regression" (ICML 2018): of all losses met so far, how many lay below each level.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from paceline.core.forecast_quantiles import blurred, brier, covered, density
from paceline.core.values import LEVELS, NO_LOSS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.values import Forecast, TrialId

# The map starts as the identity, which weighs like so many losses met.
_PRIOR = 50.0
# Chances are judged by the last so many that can be, once there are so few.
_RECENT, _LEAST = 100, 20
# Intervals that should hold four of five, and nineteen of twenty, losses.
_SHARES = (0.8, 0.95)
# For the log score a row is blurred by this share of its size, so that none is a point.
_BLUR = 0.001


class _Bet(NamedTuple):
    """What was said about one later epoch of a trial."""

    forecast: Forecast
    # The best loss of the study at that time, and the chance of coming below it.
    best: float
    chance: float


class Foresight:
    """Forecasts and what became of them."""

    def __init__(self) -> None:
        # Forecasts that were met. Each counts one, however many epochs it is about: what it says of
        # them goes wrong together.
        self.met = 0.0
        self._inside = dict.fromkeys(_SHARES, 0.0)
        self._logs = 0.0
        # How many lay below the first level, between the first and the second, and so on.
        self._bins = [0.0] * (len(LEVELS) + 1)
        self._open: dict[TrialId, dict[int, list[_Bet]]] = {}
        # For each chance that can be judged: its squared error, and that of the base rate.
        self._errors: deque[tuple[float, float]] = deque(maxlen=_RECENT)
        self._judged = self._happened = 0

    def given(self, trial: TrialId, forecast: Forecast, best: float) -> None:
        """Remember a forecast until its epochs come."""
        bets = self._open.setdefault(trial, {})
        for epoch in forecast.epochs:
            bet = _Bet(forecast, best, self.chance(forecast, epoch, best))
            bets.setdefault(epoch, []).append(bet)

    def reached(self, trial: TrialId, epoch: int, loss: float) -> None:
        """Score what was said about this epoch."""
        bets = self._open.get(trial)
        for bet in bets.pop(epoch, ()) if bets else ():
            row = bet.forecast.row(epoch)
            weight = 1.0 / len(bet.forecast.epochs)
            self.met += weight
            # On a tie a loss lies between the places it could have.
            self._bins[(bisect_left(row, loss) + bisect_right(row, loss)) // 2] += weight
            for share in _SHARES:
                self._inside[share] += weight * covered(row, loss, share)
            self._logs += weight * _log_density(row, loss)
            if epoch == bet.forecast.epochs[0]:
                self._judge(bet.chance, loss <= bet.best)

    def _judge(self, chance: float, happened: bool) -> None:
        base = (self._happened + 1.0) / (self._judged + 2.0)
        self._errors.append((brier(chance, happened), brier(base, happened)))
        self._judged += 1
        self._happened += happened

    def forget(self, trial: TrialId) -> None:
        """The trial has ended: its later epochs never come."""
        self._open.pop(trial, None)

    def chance(self, forecast: Forecast, epoch: int, loss: float) -> float:
        """Return the probability of `loss` or lower, as experience in this study corrects it."""
        said = forecast.chance(epoch, loss)
        if not self.met:
            return said
        at = bisect_right(LEVELS, said)
        low, high = (0.0, *LEVELS)[at], (*LEVELS, 1.0)[at]
        below, above = self._share(at), self._share(at + 1)
        return below + (said - low) / (high - low) * (above - below)

    def _share(self, at: int) -> float:
        """Return how many losses lay below the level before bin `at`, drawn towards that level."""
        level = (0.0, *LEVELS, 1.0)[at]
        return (sum(self._bins[:at]) + _PRIOR * level) / (self.met + _PRIOR)

    @property
    def coverage(self) -> tuple[float, float] | None:
        """How many losses lay in the 80 % and in the 95 % intervals; None before the first."""
        if not self.met:
            return None
        narrow, wide = (self._inside[share] / self.met for share in _SHARES)
        return narrow, wide

    @property
    def log_score(self) -> float | None:
        """The mean log density of what came, in the metric's units; None before the first."""
        return self._logs / self.met if self.met else None

    @property
    def brier(self) -> tuple[float, float] | None:
        """The mean squared errors of recent chances and of the base rate; None where too few."""
        if len(self._errors) < _LEAST:
            return None
        count = len(self._errors)
        own, base = (sum(column) / count for column in zip(*self._errors, strict=True))
        return own, base

    @property
    def distrust(self) -> str:
        """Why chances should not be used now; empty where they may be."""
        brier = self.brier
        if brier is None:
            return ""
        own, base = brier
        count = len(self._errors)
        gaps = [mine - theirs for mine, theirs in self._errors]
        spread = sum((gap - (own - base)) ** 2 for gap in gaps) / (count - 1)
        # Worse by more than chance would explain: one standard error of the mean.
        if own - base <= (spread / count) ** 0.5:
            return ""
        return (
            f"forecasts have been worse than the base rate: Brier score {own:.3f} against "
            f"{base:.3f} over the last {count}"
        )


def _log_density(row: Sequence[float], loss: float) -> float:
    # Neither so small that the blur vanishes nor so large that it has no end.
    size = min(max(row[-1] - row[0], abs(row[-1]), abs(row[0]), 1e-9), 1e200)
    spread = blurred(row, _BLUR * size)
    apart = spread[0] < spread[1] and spread[-2] < spread[-1] < NO_LOSS
    found = density(spread, loss) if loss < NO_LOSS and apart else 0.0
    # What came as far out as that could not be told apart any more.
    return math.log(max(found, 1e-12 / size))
