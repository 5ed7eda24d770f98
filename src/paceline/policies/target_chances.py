"""The chances of trials to reach the target, and how well they tell trials apart.

Knows forecasts, their calibration and the target. Does not decide anything.

A confidence is the corrected chance that the target is reached in the time left. The correction is
taken anew with each forecast and holds for all, so that equal forecasts always have equal
confidences. As published by HyperDrive, chances are neither corrected nor made monotone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from paceline.core.decisions import Launch
from paceline.core.events import Ended, Reported
from paceline.core.forecast_quantiles import (
    LEVELS,
    average_reports,
    compute_confidence,
    compute_published_confidence,
)
from paceline.core.values import NO_LOSS
from paceline.policies.quantiles import RunningQuantile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.core.decisions import Entry
    from paceline.core.forecast_quantiles import Forecast
    from paceline.core.values import AttemptId, TrialId
    from paceline.core.views import StudyView, TrialView

# The skill is that of the first forecasts: at most, and at least.
_FIRSTS, _LEAST_FIRSTS = 100, 8
# Without a target: the best loss, improved by this share of the gain since the start.
_BETTER = 0.01
# With this skill or more, forecasts are trusted fully.
_FULL_SKILL = 0.3
# A correction is a line between any two of these.
_KNOTS = (0.0, *LEVELS, 1.0)


class StatedChance(NamedTuple):
    """What a trial's newest forecast states about the target."""

    forecast: Forecast
    epoch: int
    # The chance as stated, and the expected epochs until the target is reached.
    chance: float
    expected: float

    @property
    def left(self) -> int:
        """The epochs that the trial has left in time."""
        return self.forecast.epochs[-1] - self.epoch


class TargetChances:
    """The confidence of each live trial that has a forecast, and their order by it."""

    def __init__(self, *, published: bool) -> None:
        self._published = published
        self._start = RunningQuantile(0.5)
        self._stated: dict[TrialId, StatedChance] = {}
        self._target = NO_LOSS
        # (falling chance, expected epochs, trial), the best first.
        self._ranked: list[tuple[float, float, TrialId]] = []
        # The corrected chance at each of the knots.
        self._corrected: tuple[float, ...] = _KNOTS
        # The chance that each of the last trials had by its first forecast.
        self._firsts: deque[float] = deque(maxlen=_FIRSTS)
        self._forecasted: set[TrialId] = set()
        # From 0 to 1: how far the forecasts tell trials apart.
        self.trust = 0.0
        self.pace = EpochPace()

    def see(self, entry: Entry, study: StudyView) -> None:
        """Note the durations of epochs, and what trials start with."""
        self.pace.see(entry, study)
        for trial in study.delivered:
            if trial.epoch == 1:
                self._start.add(trial.loss)

    def add(self, trial: TrialView, epoch: int, study: StudyView) -> None:
        """Take a trial's new forecast, made at this epoch, into account."""
        if trial.forecast is not None and trial.alive:
            target = self._get_target_loss(study)
            if target != self._target:
                self._target = target
                for number, stated in self._stated.items():
                    self._state(number, stated.forecast, stated.epoch)
            over = study.spec.budget.target.over if study.spec.budget.target else 1
            mean = average_reports(trial.forecast, trial.losses[:epoch], over)
            if mean is not None:
                self._state(trial.id, mean, epoch)
                if trial.id not in self._forecasted:
                    self._forecasted.add(trial.id)
                    self._firsts.append(self._stated[trial.id].chance)
        if not self._published:
            self._corrected = tuple(study.calibration.correct(knot) for knot in _KNOTS)
        self.trust = self._compute_trust(study)

    def _state(self, number: TrialId, forecast: Forecast, epoch: int) -> None:
        chances = [(later, forecast.chance(later, self._target)) for later in forecast.epochs]
        compute = compute_published_confidence if self._published else compute_confidence
        self._forget_rank(number)
        stated = StatedChance(forecast, epoch, *compute(chances, epoch))
        self._stated[number] = stated
        insort(self._ranked, (-stated.chance, stated.expected, number))

    def _forget_rank(self, number: TrialId) -> bool:
        """Remove a trial from the order; return whether it was there."""
        stated = self._stated.get(number)
        if stated is None:
            return False
        del self._ranked[bisect_left(self._ranked, (-stated.chance, stated.expected, number))]
        return True

    def _correct(self, stated: float) -> float:
        at = min(bisect_right(_KNOTS, stated), len(LEVELS) + 1)
        low, high = _KNOTS[at - 1], _KNOTS[at]
        below, above = self._corrected[at - 1], self._corrected[at]
        return below + (stated - low) / (high - low) * (above - below)

    def get_confidence(self, trial: TrialId) -> float | None:
        """Return a trial's confidence; None without a forecast."""
        stated = self._stated.get(trial)
        return None if stated is None else self._correct(stated.chance)

    def iterate_confidences(self) -> Iterator[tuple[TrialId, float]]:
        """Yield trials with their confidences, the most confident first."""
        for chance, _, trial in self._ranked:
            yield trial, self._correct(-chance)

    def _compute_trust(self, study: StudyView) -> float:
        """Return the share of full trust that the spread of first confidences deserves.

        If forecasts are right on average, the variance of their chances over that of the outcome
        is the share of the outcome that they explain.
        """
        if len(self._firsts) < _LEAST_FIRSTS or study.calibration.distrust:
            return 0.0
        chances = [self._correct(stated) for stated in self._firsts]
        mean = sum(chances) / len(chances)
        if not 0.0 < mean < 1.0:
            return 0.0
        variance = sum((chance - mean) ** 2 for chance in chances) / len(chances)
        return min(1.0, variance / (mean * (1.0 - mean)) / _FULL_SKILL)

    def drop(self, trial: TrialId) -> bool:
        """Forget a trial that has ended; return whether it had a confidence."""
        was_ranked = self._forget_rank(trial)
        self._stated.pop(trial, None)
        self.pace.drop(trial)
        return was_ranked

    def _get_target_loss(self, study: StudyView) -> float:
        spec = study.spec
        if spec.budget.target is not None:
            return spec.sign * spec.budget.target.value
        best, start = study.best_loss, self._start.value
        return best - _BETTER * (start - best) if best < start < NO_LOSS else best

    def get_left_share(self, trial: TrialId, study: StudyView) -> float:
        """Return the share of a whole training that the trial has left in time."""
        return self._stated[trial].left / study.spec.epochs

    def estimate_s(self, trial: TrialId) -> float:
        """Return the expected remaining time (ERT) until the target is reached, at its width."""
        stated = self._stated.get(trial)
        return 0.0 if stated is None else stated.expected * self.pace.get(trial)


class EpochPace:
    """The mean duration of the epochs that each trial trained at its present width."""

    def __init__(self) -> None:
        self._widths: dict[AttemptId, float] = {}
        # For each trial: the width of its last attempt, the epochs trained with it, their seconds.
        self._means: dict[TrialId, tuple[float, int, float]] = {}

    def see(self, entry: Entry, study: StudyView) -> None:
        """Note the width of an attempt, and the duration of an epoch."""
        if isinstance(entry, Launch):
            self._widths[entry.attempt] = entry.width
        elif isinstance(entry, Ended):
            self._widths.pop(entry.attempt, None)
        width = self._widths.get(entry.attempt, 0.0) if isinstance(entry, Reported) else 0.0
        for trial in study.delivered:
            before, count, total = self._means.get(trial.id, (width, 0, 0.0))
            if before != width and width:
                before, count, total = width, 0, 0.0
            self._means[trial.id] = (before, count + 1, total + trial.seconds[-1])

    def get(self, trial: TrialId) -> float:
        """Return the seconds of an epoch; 0 before the first one."""
        _, count, total = self._means.get(trial, (0.0, 0, 0.0))
        return total / count if count else 0.0

    def get_width(self, trial: TrialId) -> float:
        """Return the width of the trial's last attempt that reported; 1 before its first."""
        return self._means.get(trial, (1.0, 0, 0.0))[0] or 1.0

    def drop(self, trial: TrialId) -> None:
        """Forget a trial that has ended."""
        self._means.pop(trial, None)
