"""Observations: what a sampler may learn from each proposal, folded from the log.

Knows proposals by number, the trials opened with them, and how to compare losses after different
numbers of epochs. Does not know samplers or configs.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING

from paceline.core.values import NO_LOSS, Status

if TYPE_CHECKING:
    from paceline.core.values import TrialId


class _Observation:
    """The result of one proposal so far."""

    __slots__ = ("curve", "ended", "is_training")

    def __init__(self) -> None:
        # The best loss so far, epoch by epoch.
        self.curve = array("d")
        # True also before the first epoch; false for a trial that is paused or has ended.
        self.is_training = True
        self.ended: Status | None = None

    def get_loss(self, epoch: int) -> float:
        """Return the best loss up to an epoch; infinite if the trial never reached it."""
        if len(self.curve) >= epoch:
            return self.curve[epoch - 1]
        return self.curve[-1] if self.curve and self.ended is Status.FINISHED else NO_LOSS


class Observations:
    """The results of all proposals, taken in the order of the log.

    Losses after different numbers of epochs cannot be compared. As in BOHB (Falkner et al., ICML
    2018), trials are compared at one epoch: the last that `min_reached` of them have reached.
    """

    def __init__(self, min_reached: int) -> None:
        self._observations: list[_Observation] = []
        self.min_reached = min_reached
        self._epoch = 1
        # The number of trials that have reached each epoch, and that have finished.
        self._reached: list[int] = []
        self._finished = 0
        self._awaited: set[int] = set()
        self._offers: deque[int] = deque()
        self._trials: dict[TrialId, int] = {}
        self._ended: list[int] = []
        # The number of other studies' trials in front of the first proposal.
        self.prior_count = 0

    def add_prior(self, losses: list[float], finished: bool) -> None:
        """Add a trial of another study, before anything is proposed here."""
        observation = _Observation()
        observation.curve.extend(accumulate(losses, min))
        observation.is_training = False
        observation.ended = Status.FINISHED if finished else Status.STOPPED
        self._observations.append(observation)
        self.prior_count += 1
        # It counts up to its last epoch: the other study may have had fewer epochs than this one.
        self._reached += [0] * (len(losses) - len(self._reached))
        for epoch in range(len(losses)):
            self._reached[epoch] += 1
        self._advance_epoch()

    def add_proposal(self) -> None:
        """Add the next proposal, without a result."""
        self._observations.append(_Observation())

    def expect_answer(self, number: int) -> None:
        """Wait for this proposal's answer to be in the log."""
        self._awaited.add(number)

    def accept_answer(self, number: int) -> None:
        """Offer this proposal to the next trial; ignore an unexpected or repeated answer."""
        if number in self._awaited:
            self._awaited.discard(number)
            self._offers.append(number)

    def open_trial(self, trial: TrialId) -> None:
        """Assign the proposal that was offered first to a trial."""
        if self._offers:
            self._trials[trial] = self.prior_count + self._offers.popleft()

    def find_number(self, trial: TrialId) -> int | None:
        """Return the place of a trial's proposal among all; None if it was not proposed here."""
        return self._trials.get(trial)

    def add_report(self, trial: TrialId, loss: float, is_training: bool) -> None:
        """Add one epoch of a trial, which trains on or is paused."""
        if trial not in self._trials:
            return
        observation = self._observations[self._trials[trial]]
        curve = observation.curve
        curve.append(min(loss, curve[-1]) if curve else loss)
        observation.is_training = is_training
        epoch = len(curve)
        if epoch > len(self._reached):
            self._reached.append(self._finished)
        self._reached[epoch - 1] += 1
        self._advance_epoch()

    def set_training(self, trial: TrialId, is_training: bool) -> None:
        """Note that a trial trains on or is paused."""
        if trial in self._trials:
            self._observations[self._trials[trial]].is_training = is_training

    def end_trial(self, trial: TrialId, status: Status) -> None:
        """End a trial for good."""
        number = self._trials.pop(trial, None)
        if number is None:
            return
        self._ended.append(number)
        observation = self._observations[number]
        observation.is_training = False
        observation.ended = status
        if status is Status.FINISHED:
            # It trains no further: its best loss holds for all later epochs too.
            self._finished += 1
            for later in range(len(observation.curve), len(self._reached)):
                self._reached[later] += 1
            self._advance_epoch()

    def take_ended(self) -> list[int]:
        """Return, once, the proposals whose trials have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def compute_values(self) -> list[float | None]:
        """Return a value for each proposal: lower is better, None is not known yet.

        A trial that has reached the epoch of comparison counts by its best loss up to there. A
        trial that was stopped or paused before it ranks behind all of these, the furthest first
        and at one epoch by loss; then come trials that failed or never reported a number. These
        values are made up: each next one is worse by the mean distance between the known ones. A
        trial that ended before its first report has NaN.
        """
        values: list[float | None] = []
        behind: list[tuple[bool, int, float, int]] = []
        for number, observation in enumerate(self._observations):
            loss, failed = observation.get_loss(self._epoch), observation.ended is Status.FAILED
            values.append(loss if loss < NO_LOSS and not failed else None)
            if values[-1] is None and not observation.is_training:
                curve = observation.curve
                best = curve[-1] if curve else NO_LOSS
                if curve or failed:
                    behind.append((failed or best == NO_LOSS, -len(curve), best, number))
                else:
                    values[-1] = math.nan
        known = [value for value in values if value is not None and not math.isnan(value)]
        worst = max(known, default=0.0)
        steps = len(known) - 1
        gap = worst / steps - min(known) / steps if steps > 0 else 0.0
        for rank, (_, _, _, number) in enumerate(sorted(behind), 1):
            values[number] = worst + rank * (gap or 1.0)
        return values

    def _advance_epoch(self) -> None:
        while self._epoch < len(self._reached) and self._reached[self._epoch] >= self.min_reached:
            self._epoch += 1
