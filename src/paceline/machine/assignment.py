"""Who trains for whom: a trial's goal becomes wishes on nodes, and wishes find an attempt.

Knows the tree, the trials and the running attempts. A trial with a goal ahead is either carried
by an attempt whose path it shares, or ready to be launched. Does not know slots or policies.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from math import inf
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from paceline.machine.requirements import stage_end
from paceline.machine.timing import Paths
from paceline.plan.tree import known_on, node_of, saved_on, shared_until, way

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paceline.core.events import Reported
    from paceline.core.values import AttemptId, TrialId
    from paceline.machine.timing import Paces
    from paceline.machine.trial_state import Attempt, Leaf, Trial


class Waiting(Collection["TrialId"]):
    """Trials in order; adding and taking one costs O(log n), but for moving the others up."""

    def __init__(self) -> None:
        # (minus the length, arrival, trial), sorted; and each trial's own.
        self._line: list[tuple[float, int, TrialId]] = []
        self._places: dict[TrialId, tuple[float, int, TrialId]] = {}
        self._arrivals = 0

    def add(self, trial: TrialId, length: float) -> None:
        """Let a trial wait; one that waits already keeps its arrival."""
        arrival = self._arrivals
        known = self._places.get(trial)
        if known is not None:
            arrival = known[1]
            self.discard(trial)
        self._arrivals += known is None
        place = self._places[trial] = (-length, arrival, trial)
        insort(self._line, place)

    def discard(self, trial: TrialId) -> None:
        """Let it wait no more, if it does."""
        place = self._places.pop(trial, None)
        if place is not None:
            del self._line[bisect_left(self._line, place)]

    def __contains__(self, trial: object) -> bool:
        return trial in self._places

    def __iter__(self) -> Iterator[TrialId]:
        return (trial for _, _, trial in self._line)

    def __len__(self) -> int:
        return len(self._line)


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


# In this time an order has certainly come to the attempt that it is for.
_HEARD_S = 0.1


class Order(NamedTuple):
    """Follow this trial's path up to this epoch, and save at these on the way."""

    trial: Trial
    goal: int
    save_at: tuple[int, ...]


class Stage(NamedTuple):
    """Where a new attempt for a trial would start, and its first order."""

    start: int
    source: AttemptId | None
    order: Order


def stage_for(trial: Trial) -> Stage:
    """Return what to launch for a ready trial: from its latest checkpoint to its goal."""
    saved = saved_on(trial.leaf, known_on(trial.leaf))
    start, source = saved if saved is not None else (0, None)
    order = _order(riders(trial, start), trial, start, ())
    return Stage(start, source, _fitted(order, start))


def order_for(attempt: Attempt, paths: Paths) -> Order:
    """Return the order that serves the attempt's members from here on, at the width it needs."""
    return _fitted(_wanted_of(attempt, paths), attempt.start)


def _wanted_of(attempt: Attempt, paths: Paths) -> Order:
    epoch, lead, members = attempt.epoch, attempt.trial, attempt.members
    if members == (lead,) and not attempt.yielding:
        return Order(lead, lead.goal, _due(attempt.epoch, attempt.save_at))
    if lead not in members or epoch + 1 in attempt.save_at:
        ahead = _ahead(attempt)
        if ahead:
            lead = _leader(ahead, lead, epoch, paths)
        elif lead not in members:
            return _order(members, lead, epoch, attempt.save_at)._replace(
                goal=min(attempt.goal, epoch)
            )
    order = _order(members, lead, epoch, attempt.save_at)
    return order._replace(goal=min(attempt.goal, epoch)) if attempt.yielding else order


def _fitted(order: Order, start: int) -> Order:
    """Return the order up to where its trial needs another width than from the start on."""
    if not order.trial.needs:
        return order
    goal = min(order.goal, stage_end(order.trial, start))
    return Order(order.trial, goal, tuple(epoch for epoch in order.save_at if epoch < goal))


def _ahead(attempt: Attempt) -> list[Trial]:
    """Return the members whose path is still the attempt's; the others only await a save.

    An attempt at its goal has not begun the next epoch, so it may take any branch there.
    """
    epoch, leaf = attempt.epoch, attempt.trial.leaf
    least = epoch if epoch >= attempt.goal else epoch + 1
    return [trial for trial in attempt.members if shared_until(trial.leaf, leaf) >= least]


def _leader(ahead: list[Trial], lead: Trial, epoch: int, paths: Paths) -> Trial:
    """Return whose path to follow: the longest that is left.

    All of them are cleared by the policy, so that it treats them alike. Whoever leads is replaced
    only where the other loses more by waiting than it costs to start elsewhere, and where the
    attempt will hear of it before it has begun the next epoch.
    """
    left = {trial: paths.left(trial, epoch) for trial in ahead}
    best = max(ahead, key=lambda trial: (left[trial], trial.goal, -trial.id))
    if lead in left:
        worth = left[best] - left[lead] > paths.start_s(epoch)
        return best if worth and paths.epoch_s(lead) >= _HEARD_S else lead
    return best


def _order(members: Sequence[Trial], lead: Trial, epoch: int, pending: tuple[int, ...]) -> Order:
    due = _due(epoch, pending)
    if len(members) == 1:
        return Order(lead, max(lead.goal, epoch), due)
    goal = max(lead.goal, epoch)
    branches = set(due)
    for trial in members:
        if trial is not lead:
            together = shared_until(trial.leaf, lead.leaf)
            goal = max(goal, min(trial.goal, together))
            # A save that was ordered stays ordered until it is known to be done or missed.
            if trial.goal > together and (together >= epoch or together in pending):
                branches.add(together)
    # The goal itself is saved in any case.
    return Order(lead, goal, tuple(sorted(branch for branch in branches if branch < goal)))


def _due(epoch: int, pending: tuple[int, ...]) -> tuple[int, ...]:
    """Return the save that was ordered where the attempt stands: it stays ordered until done."""
    return (epoch,) if epoch in pending else ()
