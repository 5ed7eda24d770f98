"""What a sampler may learn from: what has become of each proposal, as a fold of the log.

Knows proposals by their number, the trials opened with them, and how losses after different numbers
of epochs are compared. Knows no sampler and no config.
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


class _Past:
    """What has become of one proposal."""

    __slots__ = ("curve", "ended", "working")

    def __init__(self) -> None:
        # The best loss so far, epoch by epoch.
        self.curve = array("d")
        # It trains, or will: false where it waits, or has ended.
        self.working = True
        self.ended: Status | None = None

    def loss(self, epoch: int) -> float:
        """Return the best loss in so many epochs; infinite where it never got there."""
        if len(self.curve) >= epoch:
            return self.curve[epoch - 1]
        return self.curve[-1] if self.curve and self.ended is Status.FINISHED else NO_LOSS


class Evidence:
    """All proposals so far and their pasts, told in the log's order.

    Losses after different numbers of epochs cannot be compared. So, as in BOHB (Falkner et al.,
    ICML 2018), trials are compared at one epoch: the last that `least` of them have reached.
    """

    def __init__(self, least: int) -> None:
        self._pasts: list[_Past] = []
        self._least = least
        self._epoch = 1
        # How many have reached each epoch, and how many have finished.
        self._reached: list[int] = []
        self._finished = 0
        self._awaited: set[int] = set()
        self._offers: deque[int] = deque()
        self._trials: dict[TrialId, int] = {}
        self._gone: list[int] = []
        # How many pasts of another study's trials come before the first proposal's.
        self.before = 0

    def recalled(self, losses: list[float], finished: bool) -> None:
        """Take what a trial of another study came to, before anything is proposed here."""
        past = _Past()
        past.curve.extend(accumulate(losses, min))
        past.working = False
        past.ended = Status.FINISHED if finished else Status.STOPPED
        self._pasts.append(past)
        self.before += 1
        # It counts as far as it trained: at later epochs its study never was.
        self._reached += [0] * (len(losses) - len(self._reached))
        for epoch in range(len(losses)):
            self._reached[epoch] += 1
        self._compare()

    def proposed(self) -> None:
        """Take note of the next proposal, before anything has become of it."""
        self._pasts.append(_Past())

    def asked(self, number: int) -> None:
        """Wait for this proposal's answer to be in the log."""
        self._awaited.add(number)

    def answered(self, number: int) -> None:
        """Offer this proposal to the next trial."""
        # An answer that nobody waits for, or that comes twice, is none.
        if number in self._awaited:
            self._awaited.discard(number)
            self._offers.append(number)

    def opened(self, trial: TrialId) -> None:
        """Give the trial the proposal that has been offered longest."""
        if self._offers:
            self._trials[trial] = self.before + self._offers.popleft()

    def reported(self, trial: TrialId, loss: float, working: bool) -> None:
        """Take one more epoch of a trial, which goes on or waits."""
        if trial not in self._trials:
            return
        past = self._pasts[self._trials[trial]]
        past.curve.append(min(loss, past.curve[-1]) if past.curve else loss)
        past.working = working
        epoch = len(past.curve)
        if epoch > len(self._reached):
            self._reached.append(self._finished)
        self._reached[epoch - 1] += 1
        self._compare()

    def moved(self, trial: TrialId, working: bool) -> None:
        """Let a trial go on, or wait."""
        if trial in self._trials:
            self._pasts[self._trials[trial]].working = working

    def ended(self, trial: TrialId, how: Status) -> None:
        """End a trial for good."""
        number = self._trials.pop(trial, None)
        if number is None:
            return
        self._gone.append(number)
        past = self._pasts[number]
        past.working = False
        past.ended = how
        if how is Status.FINISHED:
            # It will not train on: its best loss holds for all later epochs too.
            self._finished += 1
            for later in range(len(past.curve), len(self._reached)):
                self._reached[later] += 1
            self._compare()

    def gone(self) -> list[int]:
        """Return, once, the proposals whose trials have ended since the last call."""
        gone, self._gone = self._gone, []
        return gone

    def values(self) -> list[float | None]:
        """Return what each proposal has come to: lower is better, None is not known yet.

        Whoever has reached the epoch of comparison counts by its best loss up to there. Whoever was
        stopped or waits before it comes after all of these, the furthest first and at one epoch by
        loss; then whoever failed or never had a number. These values are made up: each next one is
        worse by the mean distance between those that are known. What ended before its first report
        tells nothing: not a number.
        """
        values: list[float | None] = []
        behind: list[tuple[bool, int, float, int]] = []
        for number, past in enumerate(self._pasts):
            loss, failed = past.loss(self._epoch), past.ended is Status.FAILED
            values.append(loss if loss < NO_LOSS and not failed else None)
            if values[-1] is None and not past.working:
                best = past.curve[-1] if past.curve else NO_LOSS
                if past.curve or failed:
                    behind.append((failed or best == NO_LOSS, -len(past.curve), best, number))
                else:
                    values[-1] = math.nan
        known = [value for value in values if value is not None and not math.isnan(value)]
        worst = max(known, default=0.0)
        steps = len(known) - 1
        gap = worst / steps - min(known) / steps if steps > 0 else 0.0
        for rank, (_, _, _, number) in enumerate(sorted(behind), 1):
            values[number] = worst + rank * (gap or 1.0)
        return values

    def _compare(self) -> None:
        while self._epoch < len(self._reached) and self._reached[self._epoch] >= self._least:
            self._epoch += 1
