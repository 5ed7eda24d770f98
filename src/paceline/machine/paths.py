"""How long a trial's path still is: the epochs that are asked for, at what each setting has taken.

Knows durations of epochs, by setting, and what a start and a save take, as far as they were
measured on paths that trials share. Does not know who runs, who waits or how wide.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from paceline.machine.paces import Mean
from paceline.plan.tree import way

if TYPE_CHECKING:
    from paceline.core.events import Reported
    from paceline.machine.paces import Paces
    from paceline.machine.records import Attempt, Leaf, Trial


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
