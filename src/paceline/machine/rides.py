"""Who trains for whom: a trial's goal becomes wishes on nodes, and wishes find an attempt.

Knows the tree, the trials and the running attempts. A trial with a goal ahead is either carried
by an attempt whose path it shares, or ready to be launched. Does not know slots or policies.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, TypeVar

from paceline.machine.paths import Paths
from paceline.machine.waiting import Waiting
from paceline.plan.tree import known_on, node_of, saved_on, shared_until, way

if TYPE_CHECKING:
    from paceline.core.events import Reported
    from paceline.machine.paces import Paces
    from paceline.machine.records import Attempt, Leaf, Trial

T = TypeVar("T")


class Rides:
    """Ready trials, carried trials, and the attempts whose order may have to change."""

    __slots__ = ("branched", "paths", "ready", "touched")

    def __init__(self, paces: Paces) -> None:
        # Longest path first; while no two trials part anywhere, longest waiting first.
        self.ready = Waiting()
        self.paths = Paths(paces)
        # Whether any two trials part after a common beginning.
        self.branched = False
        # Attempts whose members or goals changed since their orders were last looked at.
        self.touched: dict[int, Attempt] = {}

    def want(self, trial: Trial, mark: int = 0) -> None:
        """Put the trial's wish for every epoch up to its goal on the tree, and find a ride.

        At the epoch `mark` others may branch: an attempt that stands there saves before it goes on.
        """
        for node in way(trial.leaf):
            wanted = node.end > trial.epoch and node.start < trial.goal
            if wanted and trial not in node.wanted:
                node.wanted += (trial,)
        if trial.attempt is not None:
            self.touched[trial.attempt.id] = trial.attempt
        elif trial.id in self.ready:
            self._wait(trial)
        else:
            self.attach(trial)
        if mark:
            trial.mark = mark
            attempt, saved = trial.attempt, saved_on(trial.leaf, mark)
            if saved is not None and saved[0] == mark:
                return
            if attempt is not None and attempt.epoch == mark and attempt.parked:
                attempt.save_at = tuple(sorted({*attempt.save_at, mark}))

    def forget(self, trial: Trial) -> None:
        """Take the trial's wishes back: it has what it wanted, or wants nothing any more."""
        for node in way(trial.leaf):
            if trial in node.wanted:
                node.wanted = _without(node.wanted, trial)
        self.ready.discard(trial.id)
        if trial.attempt is not None:
            self._detach(trial, trial.attempt)

    def attach(self, trial: Trial) -> None:
        """Let a running attempt carry the trial, or make it ready."""
        self.branched = self.branched or trial.leaf.parent is not None
        known = known_on(trial.leaf)
        if trial.goal <= known:
            return  # it only has to be credited with what is known
        attempt = _carrier(trial, known)
        if attempt is None:
            self._wait(trial)
        else:
            trial.attempt = attempt
            attempt.members += (trial,)
            self.touched[attempt.id] = attempt

    def _wait(self, trial: Trial) -> None:
        length = inf
        if self.branched:
            saved = saved_on(trial.leaf, known_on(trial.leaf))
            length = self.paths.left(trial, 0 if saved is None else saved[0])
        self.ready.add(trial.id, length)

    def board(self, attempt: Attempt) -> None:
        """Begin an attempt: its own trial, and every ready one whose next epochs it trains."""
        trial = attempt.trial
        self.station(attempt)
        for rider in riders(trial, attempt.start):
            self.ready.discard(rider.id)
            rider.attempt = attempt
            attempt.members += (rider,)

    def station(self, attempt: Attempt) -> None:
        """Note where the attempt is, so that trials that pass there can find it."""
        leaf = attempt.trial.leaf
        for node in way(leaf):
            if attempt in node.runners:
                node.runners = _without(node.runners, attempt)
        ahead = attempt.epoch if attempt.parked else attempt.epoch + 1
        if not attempt.halting and ahead <= leaf.end:
            node_of(leaf, max(ahead, 1)).runners += (attempt,)

    def passed(self, attempt: Attempt, node: Leaf, event: Reported) -> None:
        """Note that an attempt has trained one more epoch of a path that others may leave."""
        self.paths.learn(attempt, node, event)
        # At a node's end it may stay to save; one epoch further it has moved on for certain.
        if attempt.epoch == node.end or attempt.epoch == node.start + 1:
            self.station(attempt)
        self.part(attempt)
        # One epoch before a branch it is settled who goes on there: later it may have begun to.
        if attempt.epoch + 1 in attempt.save_at:
            self.touched[attempt.id] = attempt

    def follow(self, attempt: Attempt, trial: Trial) -> None:
        """Let the attempt go on along another trial's path, which agrees with all it has done."""
        for node in way(attempt.trial.leaf):
            if attempt in node.runners:
                node.runners = _without(node.runners, attempt)
        parted = shared_until(trial.leaf, attempt.trial.leaf)
        attempt.turns += ((attempt.version, parted),)
        attempt.trial = trial
        self.station(attempt)

    def release(self, attempt: Attempt) -> None:
        """End what the attempt did for its members; each looks for another ride."""
        for node in way(attempt.trial.leaf):
            if attempt in node.runners:
                node.runners = _without(node.runners, attempt)
        members, attempt.members = attempt.members, ()
        for trial in members:
            trial.attempt = None
            self.attach(trial)

    def part(self, attempt: Attempt) -> None:
        """Let go the trials whose path the attempt has left, with no save of it still to come."""
        if len(attempt.members) == 1 and attempt.members[0] is attempt.trial:
            return
        leaving = [trial for trial in attempt.members if _left_behind(trial, attempt)]
        for trial in leaving:
            self._detach(trial, attempt)
            self.attach(trial)

    def _detach(self, trial: Trial, attempt: Attempt) -> None:
        trial.attempt = None
        attempt.members = _without(attempt.members, trial)
        self.touched[attempt.id] = attempt


def riders(trial: Trial, start: int) -> list[Trial]:
    """Return the trial and the ready ones that an attempt on its path from `start` would carry."""
    leaf = trial.leaf
    found = [trial]
    if leaf.parent is None and leaf.wanted == (trial,):
        return found
    for node in way(leaf):
        if node.end > start:
            found += (
                other
                for other in node.wanted
                if other.attempt is None and other.epoch < node.end and other not in found
            )
    return found


def _left_behind(trial: Trial, attempt: Attempt) -> bool:
    together = shared_until(trial.leaf, attempt.trial.leaf)
    if together in attempt.save_at or together >= trial.goal:
        return False
    return together < attempt.epoch or (together == attempt.epoch and not attempt.parked)


def _carrier(trial: Trial, known: int) -> Attempt | None:
    leaf = trial.leaf
    if leaf.parent is None:
        return leaf.runners[0] if leaf.runners else None
    for node in way(node_of(leaf, known + 1)):
        if node.runners:
            attempt = max(node.runners, key=lambda attempt: (attempt.epoch, -attempt.id))
            saved = saved_on(leaf, known)
            # An attempt that retrains what is known is worth waiting for only if it is ahead of
            # the checkpoint the trial could start from.
            if node.end > known or saved is None or saved[0] <= attempt.epoch:
                return attempt
    return None


def _without(items: tuple[T, ...], item: T) -> tuple[T, ...]:
    return () if len(items) == 1 else tuple(other for other in items if other is not item)
