"""Measured times: epochs at each width, the cost of a move, the critical path, slot time used.

Learned from reports. Before anything is measured a stated prior holds, which measurements soon
outweigh. Speeds are means of logarithms of the durations of one trial at two widths, so that noise
makes none negative or infinite. Does not decide anything.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.core.speedup import SpeedUp
from paceline.plan.tree import path_to_root

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.core.events import Reported
    from paceline.core.values import AttemptId, TrialId
    from paceline.machine.trial_state import AttemptState, Leaf, TrialState


# Amdahl's law with 94 % in parallel: 1.89, 3.39 and 5.63 times on 2, 4 and 8 slots; and k trials
# on a slot take 1 + (k-1)/2 times as long.
_PRIOR = SpeedUp(parallel=0.94, interference=0.5)
# The prior weighs as much as this many epochs measured at both widths: epochs of one trial differ
# by a few per cent, its true speed from the prior by far more.
_PRIOR_EPOCHS = 0.25
# One pair of epochs changes a speed by no more than this: clocks stop, machines swap.
_MAX_LOG_RATIO = math.log(8.0)
_SHORTEST_S = 1e-9


def prior_speed(width: float) -> float:
    """Return the speed of a trial relative to one slot, before any was measured."""
    return _PRIOR.of(width) if width >= 1.0 else _PRIOR.shared(round(1.0 / width))


def estimate_speed(width: float, measured: Mapping[float, float]) -> float:
    """Return the speed at a width by the speeds that were measured at some widths.

    A width that was not measured is as far off the prior as the nearest one that was, on the same
    side of one slot.
    """
    if width == 1.0:
        return 1.0
    found = measured.get(width)
    if found is not None:
        return found
    side = [other for other in measured if other != 1.0 and (other > 1.0) == (width > 1.0)]
    if not side:
        return prior_speed(width)
    near = min(side, key=lambda other: abs(math.log(other / width)))
    return prior_speed(width) * measured[near] / prior_speed(near)


class Mean(Struct):
    """A running mean."""

    count: int = 0
    total: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value

    @property
    def value(self) -> float:
        """The mean; 0 if nothing was added."""
        return self.total / self.count if self.count else 0.0


class EpochTimes:
    """Durations of epochs at each width, by trial; and of starts and saves."""

    def __init__(self) -> None:
        # For each live trial, the log-durations of its epochs at each width.
        self._trials: dict[TrialId, dict[float, Mean]] = {}
        # Of epochs during which the number of trials on the slot changed, as on one slot.
        self._mixed: dict[TrialId, Mean] = {}
        # For two widths, the smaller first: the weight of their ratio, and its weighted sum.
        self._pairs: dict[tuple[float, float], tuple[float, float]] = {}
        self._speeds: dict[float, float] = {}
        # Log-durations of all epochs as they would be on one slot.
        self._epochs = Mean()
        # Seconds from a launch to the first epoch; by which the first epoch is longer than the
        # second; of a save.
        self._starts, self._warm_ups, self._saves = Mean(), Mean(), Mean()
        self._firsts: dict[AttemptId, float] = {}
        # The number of trials that have had an epoch on a slot of their own.
        self.count_alone = 0

    def record_epoch(
        self, attempt: AttemptState, event: Reported, width: float, *, mixed: bool = False
    ) -> None:
        """Record the duration of an epoch at a width; a shared slot counts by the trials on it.

        `mixed`: their number has changed during the epoch, so that it tells no speed.
        """
        seconds = event.seconds
        if event.epoch == attempt.start + 1:
            self._starts.add(max(event.at - attempt.launched_at - seconds, 0.0))
            self._firsts[attempt.id] = seconds
        elif attempt.id in self._firsts:
            self._warm_ups.add(max(self._firsts.pop(attempt.id) - seconds, 0.0))
        took = math.log(max(seconds, _SHORTEST_S))
        self._epochs.add(took + math.log(self.speed(width)))
        if mixed:
            took += math.log(self.speed(width))
            self._mixed.setdefault(attempt.trial.id, Mean()).add(took)
            return
        known = self._trials.setdefault(attempt.trial.id, {})
        here = known.get(width)
        if here is None:
            here = known[width] = Mean()
            self.count_alone += width == 1.0
        for other, there in known.items():
            if other != width:
                self._learn(other, there, width, here, -1)
        here.add(took)
        for other, there in known.items():
            if other != width:
                self._learn(other, there, width, here, 1)
        if len(known) > 1:
            self._settle()

    def _learn(self, other: float, there: Mean, width: float, here: Mean, sign: int) -> None:
        """Add a trial's ratio of two widths, or remove the one added before."""
        weight = float(min(there.count, here.count))
        if not weight:
            return
        faster = max(-_MAX_LOG_RATIO, min(_MAX_LOG_RATIO, there.value - here.value))
        pair = (min(other, width), max(other, width))
        if other > width:
            faster = -faster
        known, total = self._pairs.get(pair, (0.0, 0.0))
        self._pairs[pair] = (known + sign * weight, total + sign * weight * faster)

    def record_save(self, seconds: float) -> None:
        """Record the duration of a save."""
        self._saves.add(0.0 if seconds < 0.0 else seconds)

    def forget_attempt(self, attempt: AttemptId) -> None:
        """Forget an attempt that has ended."""
        self._firsts.pop(attempt, None)

    def forget_trial(self, trial: TrialId) -> None:
        """Forget a trial that has ended; the speeds learned from it stay."""
        self._trials.pop(trial, None)
        self._mixed.pop(trial, None)

    def is_measured(self, trial: TrialId, width: float) -> bool:
        """Say whether a live trial has had an epoch at this width."""
        return width in self._trials.get(trial, ())

    @property
    def is_started(self) -> bool:
        """Whether an epoch was measured."""
        return self._epochs.count > 0

    @property
    def start_s(self) -> float:
        """The mean seconds from a launch to the first epoch; 0 before the first one."""
        return self._starts.value

    @property
    def mean_epoch_s(self) -> float:
        """The seconds of an epoch on one slot, in the mean of all trials."""
        return math.exp(self._epochs.value)

    @property
    def has_measured_sharing(self) -> bool:
        """Whether a trial was measured alone on its slot and beside others."""
        return any(low < 1.0 == high for (low, high) in self._pairs)

    def epoch_s(self, trial: TrialId) -> float:
        """Return the seconds of an epoch of this trial on one slot; unmeasured: the mean of all."""
        known = self._trials.get(trial)
        if known:
            count = sum(mean.count for mean in known.values())
            total = sum(
                mean.total + mean.count * math.log(self.speed(width))
                for width, mean in known.items()
            )
            return math.exp(total / count)
        return math.exp(self._mixed.get(trial, self._epochs).value)

    @property
    def save_s(self) -> float:
        """The seconds of a save; 0 before the first one."""
        return self._saves.value

    @property
    def move_s(self) -> float:
        """The seconds that moving a trial costs: save, start, restore, warm up."""
        return self._saves.value + self._starts.value + self._warm_ups.value

    def speed(self, width: float) -> float:
        """Return the speed of trials at this width relative to one slot."""
        return 1.0 if width == 1.0 else estimate_speed(width, self._speeds)

    def list_measured(self) -> dict[float, tuple[float, float]]:
        """Return the speed of each measured width, and the number of epochs behind it."""
        epochs: dict[float, float] = {}
        for pair, (weight, _) in self._pairs.items():
            for width in pair:
                epochs[width] = epochs.get(width, 0.0) + weight
        return {width: (self._speeds[width], epochs[width]) for width in sorted(self._speeds)}

    def _settle(self) -> None:
        """Compute the speeds that fit all measured ratios best, in the mean of squares."""
        widths = sorted({width for pair in self._pairs for width in pair} - {1.0})
        place = {width: at for at, width in enumerate(widths)}
        # Normal equations of the logarithms; the speed of one slot is known.
        rows = [[0.0] * len(widths) + [0.0] for _ in widths]
        for width, at in place.items():
            rows[at][at] += _PRIOR_EPOCHS
            rows[at][-1] += _PRIOR_EPOCHS * math.log(prior_speed(width))
        for (low, high), (weight, ratio) in self._pairs.items():
            for width, other, faster in ((low, high, -ratio), (high, low, ratio)):
                if width != 1.0:
                    row = rows[place[width]]
                    row[place[width]] += weight
                    row[-1] += faster
                    if other != 1.0:
                        row[place[other]] -= weight
        solved = _solve(rows)
        self._speeds = {width: math.exp(log) for width, log in zip(widths, solved, strict=True)}


def _solve(rows: list[list[float]]) -> list[float]:
    """Solve linear equations, given by rows with their right sides; the matrix is definite."""
    size = len(rows)
    for at in range(size):
        for below in range(at + 1, size):
            factor = rows[below][at] / rows[at][at]
            for column in range(at, size + 1):
                rows[below][column] -= factor * rows[at][column]
    found = [0.0] * size
    for at in reversed(range(size)):
        rest = sum(rows[at][column] * found[column] for column in range(at + 1, size))
        found[at] = (rows[at][-1] - rest) / rows[at][at]
    return found


class CriticalPath:
    """Durations of epochs under each setting, and the time a path needs by that."""

    def __init__(self, epoch_times: EpochTimes) -> None:
        self._epoch_times = epoch_times
        self._settings: dict[bytes, Mean] = {}
        self._all = Mean()
        # Seconds from a launch to the first epoch: from scratch, and from a checkpoint.
        self._fresh, self._restored = Mean(), Mean()

    def record_epoch(self, attempt: AttemptState, node: Leaf, event: Reported) -> None:
        """Record the duration of an epoch of a node."""
        self._all.add(event.seconds)
        if event.epoch == attempt.start + 1:
            began = self._restored if attempt.start else self._fresh
            began.add(max(event.at - attempt.launched_at - event.seconds, 0.0))
        at = bisect_left(node.stretches, event.epoch, key=lambda stretch: stretch[0])
        before = node.stretches[at - 1][0] if at else node.start
        until, setting = node.stretches[at]
        # A setting of a single epoch is seldom met again: keeping them all would cost memory.
        if until - before > 1:
            self._settings.setdefault(setting, Mean()).add(event.seconds)

    def start_s(self, start: int) -> float:
        """Return the seconds from a launch at this epoch to the start of training."""
        began = self._restored if start and self._restored.count else self._fresh
        return began.value

    @property
    def save_s(self) -> float:
        """The seconds of a save; 0 before the first one."""
        return self._epoch_times.save_s

    def remaining_s(self, trial: TrialState, start: int) -> float:
        """Return the seconds from a launch at this epoch to the trial's goal.

        An epoch counts with the mean of its setting; before that is known, with the mean of the
        trial's own last epochs; before that, of all epochs. Each branch on the way adds a save.
        """
        branches = sum(
            node.end > start and node.start < trial.goal for node in path_to_root(trial.leaf)
        )
        seconds = self.start_s(start) + branches * self._epoch_times.save_s
        # Rounded: equal sums must not differ by the order of addition.
        return round(seconds + self.train_s(trial, start, trial.goal), 6)

    def train_s(self, trial: TrialState, start: int, goal: int) -> float:
        """Return the seconds of the epochs of a trial's path after `start` up to `goal`."""
        own, seconds = self.epoch_s(trial), 0.0
        for node in path_to_root(trial.leaf):
            if node.end <= start or node.start >= goal:
                continue
            before = max(node.start, start)
            for until, setting in node.stretches:
                until = min(until, goal)
                if until > before:
                    known = self._settings.get(setting)
                    seconds += (until - before) * (own if known is None else known.value)
                    before = until
        return seconds

    def epoch_s(self, trial: TrialState) -> float:
        """Return the mean seconds of the last known epochs of the path; or of all; or 1."""
        for node in path_to_root(trial.leaf):
            if node.seconds:
                return sum(node.seconds) / len(node.seconds)
        return self._all.value if self._all.count else 1.0


class SlotTime:
    """The slot time of a study; running attempts count up to the time of the query."""

    def __init__(self) -> None:
        # The width of all running attempts.
        self.held = 0.0
        # Slot time of ended attempts, and the sum of width x start over running ones.
        self._past = 0.0
        self._since = 0.0
        # Slot time available up to the last change of capacity.
        self._offered = 0.0
        self._offered_until = 0.0

    def start(self, width: float, now: float) -> None:
        """Count an attempt of this width from now on."""
        self.held += width
        self._since += width * now

    def end(self, width: float, started: float, now: float) -> None:
        """End the count of an attempt of this width."""
        self._past += width * (now - started)
        self.held -= width
        self._since -= width * started
        if self.held < 1e-9:
            self.held = self._since = 0.0  # no rounding errors of shares remain

    def used(self, now: float) -> float:
        """Return the slot time used so far."""
        return self._past + self.held * now - self._since

    def settle_capacity(self, capacity: int, now: float) -> None:
        """Add the slot time available so far, before the number of slots changes."""
        self._offered = self.offered(capacity, now)
        self._offered_until = now

    def offered(self, capacity: int, now: float) -> float:
        """Return the slot time available so far, used or not."""
        return self._offered + capacity * (now - self._offered_until)
