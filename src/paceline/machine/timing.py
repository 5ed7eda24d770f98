"""How fast trials go at each width, and what moving one costs: learned from reports.

Knows durations and widths. What is not measured yet is a stated prior, which measurements soon
outweigh. Speeds are means of logarithms of what the same trial took at two widths, so that no
noise makes one negative or infinite.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.core.speedup import SpeedUp
from paceline.plan.tree import way

if TYPE_CHECKING:
    from paceline.core.events import Reported
    from paceline.core.values import AttemptId, TrialId
    from paceline.machine.trial_state import Attempt, Leaf, Trial


# Amdahl's law with 94 % in parallel: 1.89, 3.39 and 5.63 times on 2, 4 and 8 slots; and k trials
# on a slot take 1 + (k-1)/2 times as long.
_PRIOR = SpeedUp(parallel=0.94, interference=0.5)
# The prior counts like so many epochs that were measured at both widths: epochs of one trial differ
# by a few per cent, and what was thought of its speed by far more.
_PRIOR_EPOCHS = 0.25
# One pair of epochs says no more than this about a speed: clocks stop, machines swap.
_MOST_SAID = math.log(8.0)
_SHORTEST_S = 1e-9


def prior_speed(width: float) -> float:
    """Return how many times as fast as on one slot a trial should be, before any is measured."""
    return _PRIOR.of(width) if width >= 1.0 else _PRIOR.shared(round(1.0 / width))


class Mean(Struct):
    """A running mean."""

    count: int = 0
    total: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value

    @property
    def value(self) -> float:
        """The mean; 0 of nothing."""
        return self.total / self.count if self.count else 0.0


class Paces:
    """What epochs took at each width, trial by trial; and what starting and saving took."""

    def __init__(self) -> None:
        # For each living trial, its epochs' log-durations at each width.
        self._trials: dict[TrialId, dict[float, Mean]] = {}
        # For two widths, the lesser first: how much is known of their ratio, and its sum.
        self._pairs: dict[tuple[float, float], tuple[float, float]] = {}
        self._speeds: dict[float, float] = {}
        # Log-durations of all epochs as they would be on one slot.
        self._epochs = Mean()
        # What passes from a launch to the first epoch; what the first epoch takes more than the
        # second; what a save takes.
        self._starts, self._warm_ups, self._saves = Mean(), Mean(), Mean()
        self._firsts: dict[AttemptId, float] = {}

    def reported(self, attempt: Attempt, event: Reported, width: float) -> None:
        """Take the duration of an epoch at a width: a share of a slot by how many share it."""
        seconds = event.seconds
        if event.epoch == attempt.start + 1:
            self._starts.add(max(event.at - attempt.launched_at - seconds, 0.0))
            self._firsts[attempt.id] = seconds
        elif attempt.id in self._firsts:
            self._warm_ups.add(max(self._firsts.pop(attempt.id) - seconds, 0.0))
        took = math.log(max(seconds, _SHORTEST_S))
        self._epochs.add(took + math.log(self.speed(width)))
        known = self._trials.setdefault(attempt.trial.id, {})
        here = known.get(width)
        if here is None:
            here = known[width] = Mean()
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
        """Add what a trial says of two widths, or take back what it said before."""
        weight = float(min(there.count, here.count))
        if not weight:
            return
        faster = max(-_MOST_SAID, min(_MOST_SAID, there.value - here.value))
        pair = (min(other, width), max(other, width))
        if other > width:
            faster = -faster
        known, total = self._pairs.get(pair, (0.0, 0.0))
        self._pairs[pair] = (known + sign * weight, total + sign * weight * faster)

    def saved(self, seconds: float) -> None:
        """Take what a save took."""
        self._saves.add(max(seconds, 0.0))

    def ended(self, attempt: AttemptId) -> None:
        """Forget an attempt that is gone."""
        self._firsts.pop(attempt, None)

    def forget(self, trial: TrialId) -> None:
        """Forget a trial that is over; what it taught stays."""
        self._trials.pop(trial, None)

    def epoch_s(self, trial: TrialId) -> float:
        """Return what an epoch of this trial takes on one slot: as measured, or as others' do."""
        known = self._trials.get(trial)
        if known:
            count = sum(mean.count for mean in known.values())
            total = sum(
                mean.total + mean.count * math.log(self.speed(width))
                for width, mean in known.items()
            )
            return math.exp(total / count)
        return math.exp(self._epochs.value)

    @property
    def save_s(self) -> float:
        """What a save takes; nothing before one was made."""
        return self._saves.value

    @property
    def move_s(self) -> float:
        """What it costs to move a trial: save, start, restore, warm up."""
        return self._saves.value + self._starts.value + self._warm_ups.value

    def speed(self, width: float) -> float:
        """Return how many times as fast as on one slot trials are at this width.

        One that was never measured is as far off the prior as the nearest one that was.
        """
        if width == 1.0:
            return 1.0
        found = self._speeds.get(width)
        if found is not None:
            return found
        side = [other for other in self._speeds if (other > 1.0) == (width > 1.0)]
        if not side:
            return prior_speed(width)
        near = min(side, key=lambda other: abs(math.log(other / width)))
        return prior_speed(width) * self._speeds[near] / prior_speed(near)

    def measured(self) -> dict[float, tuple[float, float]]:
        """Return each width that was measured: its speed, and how many epochs tell."""
        epochs: dict[float, float] = {}
        for pair, (weight, _) in self._pairs.items():
            for width in pair:
                epochs[width] = epochs.get(width, 0.0) + weight
        return {width: (self._speeds[width], epochs[width]) for width in sorted(self._speeds)}

    def _settle(self) -> None:
        """Work from one slot outwards: each width rests on those nearer to one."""
        self._speeds = {}
        widths = {width for pair in self._pairs for width in pair} - {1.0}
        for width in sorted(widths, key=lambda width: (abs(math.log(width)), width)):
            weight = _PRIOR_EPOCHS
            total = _PRIOR_EPOCHS * math.log(prior_speed(width))
            for (low, high), (said, ratio) in self._pairs.items():
                other = high if low == width else low if high == width else None
                if other == 1.0 or other in self._speeds:
                    weight += said
                    total += said * math.log(self.speed(other))
                    total += ratio if other == low else -ratio
            self._speeds[width] = math.exp(total / weight)


class Paths:
    """What epochs took under each setting, and what a path takes by that."""

    def __init__(self, paces: Paces) -> None:
        self._paces = paces
        self._settings: dict[bytes, Mean] = {}
        self._all = Mean()
        # What passes from a launch to the first epoch: from nothing, and from a checkpoint.
        self._fresh, self._restored = Mean(), Mean()

    def learn(self, attempt: Attempt, node: Leaf, event: Reported) -> None:
        """Take what an epoch of a node took."""
        self._all.add(event.seconds)
        if event.epoch == attempt.start + 1:
            began = self._restored if attempt.start else self._fresh
            began.add(max(event.at - attempt.launched_at - event.seconds, 0.0))
        at = bisect_left(node.stretches, event.epoch, key=lambda stretch: stretch[0])
        before = node.stretches[at - 1][0] if at else node.start
        until, setting = node.stretches[at]
        # One that holds for a single epoch is seldom met again: there would be no end of them.
        if until - before > 1:
            self._settings.setdefault(setting, Mean()).add(event.seconds)

    def start_s(self, start: int) -> float:
        """Return what a launch at this epoch costs before it trains."""
        began = self._restored if start and self._restored.count else self._fresh
        return began.value

    def left(self, trial: Trial, start: int) -> float:
        """Return the seconds from a launch at this epoch to the trial's goal.

        An epoch takes what its setting has taken; before that is known, what the trial's own last
        epochs took; before that, what any epoch took. There is a save at each branch on the way.
        """
        own, nodes = self.epoch_s(trial), way(trial.leaf)
        seconds = self.start_s(start)
        for node in nodes:
            if node.end <= start or node.start >= trial.goal:
                continue
            seconds += self._paces.save_s
            before = max(node.start, start)
            for until, setting in node.stretches:
                until = min(until, trial.goal)
                if until > before:
                    known = self._settings.get(setting)
                    seconds += (until - before) * (own if known is None else known.value)
                    before = until
        # What is equal must not differ by how it was added up.
        return round(seconds, 6)

    def epoch_s(self, trial: Trial) -> float:
        """Return what the last epochs known on the trial's path took; or any, or else a second."""
        for node in way(trial.leaf):
            if node.seconds:
                return sum(node.seconds) / len(node.seconds)
        return self._all.value if self._all.count else 1.0


class Meter:
    """Adds up slot time. Running attempts are counted up to the moment one asks."""

    def __init__(self) -> None:
        # The width of everything that runs.
        self.held = 0.0
        # What ended attempts used, and the sum of width x start over those that run.
        self._past = 0.0
        self._since = 0.0
        # Slot time there was up to the last change of capacity.
        self._offered = 0.0
        self._offered_until = 0.0

    def start(self, width: float, now: float) -> None:
        """An attempt of this width starts now."""
        self.held += width
        self._since += width * now

    def end(self, width: float, started: float, now: float) -> None:
        """An attempt of this width, started then, ends now."""
        self._past += width * (now - started)
        self.held -= width
        self._since -= width * started
        if self.held < 1e-9:
            self.held = self._since = 0.0  # no dust from adding and subtracting shares

    def used(self, now: float) -> float:
        """Return the slot time used so far."""
        return self._past + self.held * now - self._since

    def offer(self, capacity: int, now: float) -> None:
        """Settle the slot time there was, before the number of slots changes."""
        self._offered = self.offered(capacity, now)
        self._offered_until = now

    def offered(self, capacity: int, now: float) -> float:
        """Return the slot time there was so far, used or not."""
        return self._offered + capacity * (now - self._offered_until)
