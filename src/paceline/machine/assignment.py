"""The assignment of trials to attempts: which attempt trains for which trials, and its order.

Knows the tree, the trials and the running attempts. A trial with a goal ahead is either assigned to
an attempt whose path it shares, or ready to be launched. Does not know slots or policies.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from paceline.core.values import AttemptId
from paceline.machine.branch_saves import BranchSaves
from paceline.machine.requirements import find_declared_width, find_stage_end
from paceline.machine.timing import CriticalPath
from paceline.machine.trial_state import TrialState
from paceline.plan.tree import (
    find_checkpoint,
    find_node,
    last_known_epoch,
    last_shared_epoch,
    path_to_root,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paceline.core.events import Reported
    from paceline.core.values import StudySpec, TrialId
    from paceline.machine.timing import EpochTimes
    from paceline.machine.trial_state import AttemptState, Leaf

_get_trial = itemgetter(2)


class ReadyQueue(dict["TrialId", tuple[float, int, "TrialId"]]):
    """Ready trials with their entries, longest path first; of equal ones the longest waiting first.

    A dict, since `in` and `len` are asked several times an event.
    """

    def __init__(self) -> None:
        # (minus the length, arrival, trial), sorted.
        self._entries: list[tuple[float, int, TrialId]] = []
        self._arrivals = 0

    def add(self, trial: TrialId, length: float) -> None:
        """Add a trial; one that is queued already keeps its arrival."""
        arrival = self._arrivals
        known = self.get(trial)
        if known is not None:
            arrival = known[1]
            self.discard(trial)
        self._arrivals += known is None
        entry = self[trial] = (-length, arrival, trial)
        insort(self._entries, entry)

    def discard(self, trial: TrialId) -> None:
        """Remove a trial if it is queued."""
        entry = self.pop(trial, None)
        if entry is not None:
            del self._entries[bisect_left(self._entries, entry)]

    def __iter__(self) -> Iterator[TrialId]:
        return map(_get_trial, self._entries)


T = TypeVar("T")


class Assignment:
    """Ready trials, assigned trials, and the attempts whose order may have to change."""

    __slots__ = ("branch_saves", "changed", "critical_path", "has_branches", "ready")

    def __init__(self, epoch_times: EpochTimes) -> None:
        self.ready = ReadyQueue()
        self.critical_path = CriticalPath(epoch_times)
        self.branch_saves = BranchSaves(self.critical_path)
        # Whether any two trials part after a common prefix.
        self.has_branches = False
        # Attempts whose members or goals changed since their orders were last planned.
        self.changed: dict[int, AttemptState] = {}

    def request(self, trial: TrialState, fork_epoch: int = 0) -> None:
        """Request all epochs up to the trial's goal; assign it to an attempt or queue it.

        Others may fork from it at `fork_epoch`: an attempt that is there saves before it goes on.
        """
        leaf = trial.leaf
        for node in (leaf,) if leaf.parent is None else path_to_root(leaf):
            wanted = node.end > trial.epoch and node.start < trial.goal
            if wanted and trial not in node.wanted_by:
                node.wanted_by += (trial,)
        if trial.attempt is not None:
            self.changed[trial.attempt.id] = trial.attempt
        elif trial.id in self.ready:
            self._queue(trial)
        else:
            self.attach(trial)
        if fork_epoch:
            trial.fork_epoch = fork_epoch
            attempt, saved = trial.attempt, find_checkpoint(trial.leaf, fork_epoch)
            if saved is not None and saved[0] == fork_epoch:
                return
            if attempt is not None and attempt.epoch == fork_epoch and attempt.saves_here:
                attempt.save_at = tuple(sorted({*attempt.save_at, fork_epoch}))

    def withdraw(self, trial: TrialState) -> None:
        """Withdraw the trial's requests: it is at its goal, or has ended."""
        leaf = trial.leaf
        for node in (leaf,) if leaf.parent is None else path_to_root(leaf):
            if trial in node.wanted_by:
                node.wanted_by = _without(node.wanted_by, trial)
        attempt = trial.attempt
        if attempt is None:
            self.ready.discard(trial.id)
        else:
            self._detach(trial, attempt)

    def attach(self, trial: TrialState) -> None:
        """Assign the trial to a running attempt on its path, or queue it."""
        leaf = trial.leaf
        if leaf.parent is not None:
            self.has_branches = True
        known = last_known_epoch(leaf)
        if trial.goal <= known:
            return  # it only has to be credited with the known epochs
        attempt = _find_attempt(trial, known)
        if attempt is None:
            self._queue(trial)
        else:
            trial.attempt = attempt
            attempt.members += (trial,)
            self.changed[attempt.id] = attempt

    def _queue(self, trial: TrialState) -> None:
        length = inf
        if self.has_branches:
            saved = find_checkpoint(trial.leaf, last_known_epoch(trial.leaf))
            length = self.critical_path.remaining_s(trial, 0 if saved is None else saved[0])
        self.ready.add(trial.id, length)

    def start(self, attempt: AttemptState) -> None:
        """Assign to a new attempt its own trial and all ready ones whose next epochs it trains."""
        self._add_to_tree(attempt)
        for trial in find_members(attempt.trial, attempt.start):
            self.ready.discard(trial.id)
            trial.attempt = attempt
            attempt.members += (trial,)

    def locate(self, attempt: AttemptState) -> None:
        """Record on the tree where the attempt is, so that trials of that path can find it."""
        self._remove_from_tree(attempt)
        self._add_to_tree(attempt)

    def _add_to_tree(self, attempt: AttemptState) -> None:
        leaf = attempt.trial.leaf
        ahead = attempt.epoch if attempt.saves_here else attempt.epoch + 1
        if not attempt.is_halting and ahead <= leaf.end:
            node = leaf if ahead > leaf.start else find_node(leaf, max(ahead, 1))
            node.attempts += (attempt,)

    def _remove_from_tree(self, attempt: AttemptState) -> None:
        leaf = attempt.trial.leaf
        for node in (leaf,) if leaf.parent is None else path_to_root(leaf):
            if attempt in node.attempts:
                node.attempts = _without(node.attempts, attempt)

    def record_epoch(self, attempt: AttemptState, node: Leaf, event: Reported) -> None:
        """Record that an attempt has trained one more epoch of a path that others may leave."""
        self.critical_path.record_epoch(attempt, node, event)
        # At a node's end it may stay to save; one epoch further it has certainly gone on.
        if attempt.epoch == node.end or attempt.epoch == node.start + 1:
            self.locate(attempt)
        self.detach_diverged(attempt)
        # Its leader after a branch is chosen one epoch before: later it may have begun the next.
        if attempt.epoch + 1 in attempt.save_at:
            self.changed[attempt.id] = attempt

    def switch_path(self, attempt: AttemptState, trial: TrialState) -> None:
        """Continue the attempt on another trial's path, which shares all epochs it has done."""
        self._remove_from_tree(attempt)
        parted = last_shared_epoch(trial.leaf, attempt.trial.leaf)
        attempt.path_changes += ((attempt.version, parted),)
        attempt.trial = trial
        self.locate(attempt)

    def release(self, attempt: AttemptState) -> None:
        """Detach all members of an attempt; each is assigned to another one or queued."""
        self._remove_from_tree(attempt)
        members, attempt.members = attempt.members, ()
        for trial in members:
            trial.attempt = None
            self.attach(trial)

    def detach_diverged(self, attempt: AttemptState) -> None:
        """Detach the trials whose path the attempt has left, unless a save for them is due."""
        if len(attempt.members) == 1 and attempt.members[0] is attempt.trial:
            return
        leaving = [trial for trial in attempt.members if _has_diverged(trial, attempt)]
        for trial in leaving:
            self._detach(trial, attempt)
            self.attach(trial)

    def _detach(self, trial: TrialState, attempt: AttemptState) -> None:
        trial.attempt = None
        attempt.members = _without(attempt.members, trial)
        if attempt.members or attempt.epoch < attempt.goal:
            self.changed[attempt.id] = attempt  # if not, it is about to end


def find_members(trial: TrialState, start: int) -> list[TrialState]:
    """Return the trial and the ready ones that an attempt on its path from `start` trains for."""
    leaf = trial.leaf
    found = [trial]
    if leaf.parent is None and leaf.wanted_by == (trial,):
        return found
    for node in path_to_root(leaf):
        if node.end > start:
            found += (
                other
                for other in node.wanted_by
                if other.attempt is None and other.epoch < node.end and other not in found
            )
    return found


def _has_diverged(trial: TrialState, attempt: AttemptState) -> bool:
    shared = last_shared_epoch(trial.leaf, attempt.trial.leaf)
    if shared in attempt.save_at or shared >= trial.goal:
        return False
    return shared < attempt.epoch or (shared == attempt.epoch and not attempt.saves_here)


def _find_attempt(trial: TrialState, known: int) -> AttemptState | None:
    leaf = trial.leaf
    if leaf.parent is None:
        return leaf.attempts[0] if leaf.attempts else None
    for node in path_to_root(find_node(leaf, known + 1)):
        # An attempt that has trained nothing yet may be too narrow for this trial's next stage.
        wide = [
            each
            for each in node.attempts
            if find_declared_width(trial, each.stage_start) <= each.width
        ]
        if wide:
            attempt = max(wide, key=lambda attempt: (attempt.epoch, -attempt.id))
            saved = find_checkpoint(leaf, known)
            # An attempt that trains known epochs again is worth waiting for only if it is ahead of
            # the checkpoint that the trial could start from.
            if node.end > known or saved is None or saved[0] <= attempt.epoch:
                return attempt
    return None


def _without(items: tuple[T, ...], item: T) -> tuple[T, ...]:
    return () if len(items) == 1 else tuple(other for other in items if other is not item)


# An order arrives at its attempt within this time.
_DELIVERY_S = 0.1


class AttemptOrder(Struct, frozen=True):
    """Follow this trial's path up to this epoch, and save at these epochs on the way."""

    trial: TrialState
    goal: int
    save_at: tuple[int, ...]


class Stage(Struct, frozen=True):
    """Where a new attempt for a trial would start, and its first order."""

    start: int
    source: AttemptId | None
    order: AttemptOrder


class PlannedStudy(Protocol):
    """A study as the planning of orders reads it."""

    spec: StudySpec
    closed: bool
    assignment: Assignment


def plan_stage(trial: TrialState, study: PlannedStudy) -> Stage:
    """Return what to launch for a ready trial: from its latest checkpoint to its goal."""
    leaf = trial.leaf
    saved = None
    if leaf.losses or leaf.parent is not None:  # else it is new and has no checkpoint
        saved = find_checkpoint(leaf, last_known_epoch(leaf))
    start, source = saved if saved is not None else (0, None)
    order = _serve_members(find_members(trial, start), trial, start, ())
    return Stage(start, source, _add_branch_saves(_cut_to_stage(order, start), start, (), study))


def plan_order(
    attempt: AttemptState, study: PlannedStudy, stage_start: int | None = None
) -> AttemptOrder:
    """Return the order that serves the attempt's members from here on, at the width it needs.

    None: in its present stage.
    """
    order = _plan_uncut(attempt, study.assignment.critical_path)
    order = _cut_to_stage(order, attempt.stage_start if stage_start is None else stage_start)
    if attempt.must_yield:
        return order
    before = attempt.save_at if order.trial is attempt.trial else ()
    # At its goal it has not begun the next epoch: it may still save here.
    passed = attempt.epoch - 1 if attempt.saves_here else attempt.epoch
    return _add_branch_saves(order, passed, before, study)


def _add_branch_saves(
    order: AttemptOrder, passed: int, before: tuple[int, ...], study: PlannedStudy
) -> AttemptOrder:
    """Return the order with saves, after the epochs `passed`, where trials are likely to branch.

    Those of the order `before` stay: an attempt is not told again and again.
    """
    branch_saves = study.assignment.branch_saves
    if not branch_saves.shares:
        return order
    candidates = branch_saves.list_candidates(passed, order.goal)
    if not candidates:
        return order
    kept = {*order.save_at, *(each for each in before if each in candidates)}
    saved = find_checkpoint(order.trial.leaf, passed)
    since = 0 if saved is None else saved[0]
    closed = study.closed and not study.spec.standing
    for each in sorted({*candidates, *kept}):
        if each in kept or branch_saves.is_worth(order.trial, since, each, closed=closed):
            kept.add(each)
            since = each
    return AttemptOrder(order.trial, order.goal, tuple(sorted(kept)))


def _plan_uncut(attempt: AttemptState, critical_path: CriticalPath) -> AttemptOrder:
    epoch, lead, members = attempt.epoch, attempt.trial, attempt.members
    if members == (lead,) and not attempt.must_yield:
        return AttemptOrder(lead, lead.goal, _keep_due(epoch, attempt.save_at))
    if lead not in members or epoch + 1 in attempt.save_at:
        ahead = _list_ahead(attempt)
        if ahead:
            lead = _choose_leader(ahead, lead, epoch, critical_path)
        elif lead not in members:
            order = _serve_members(members, lead, epoch, attempt.save_at)
            return replace(order, goal=min(attempt.goal, epoch))
    order = _serve_members(members, lead, epoch, attempt.save_at)
    return replace(order, goal=min(attempt.goal, epoch)) if attempt.must_yield else order


def _cut_to_stage(order: AttemptOrder, start: int) -> AttemptOrder:
    """Return the order up to the epoch after which its trial needs another width."""
    if not order.trial.needs:
        return order
    goal = min(order.goal, find_stage_end(order.trial, start))
    return AttemptOrder(order.trial, goal, tuple(epoch for epoch in order.save_at if epoch < goal))


def _list_ahead(attempt: AttemptState) -> list[TrialState]:
    """Return the members whose path the attempt still follows; the others only await a save.

    An attempt at its goal has not begun the next epoch, so it may take any branch there.
    """
    epoch, leaf = attempt.epoch, attempt.trial.leaf
    least = epoch if epoch >= attempt.goal else epoch + 1
    return [trial for trial in attempt.members if last_shared_epoch(trial.leaf, leaf) >= least]


def _choose_leader(
    ahead: list[TrialState], lead: TrialState, epoch: int, critical_path: CriticalPath
) -> TrialState:
    """Return the trial with the longest remaining path, which the attempt follows.

    The policy has admitted all of them, so they rank alike. The present leader is replaced only if
    another trial loses more by waiting than a launch elsewhere costs, and if the order arrives
    before the attempt has begun the next epoch.
    """
    left = {trial: critical_path.remaining_s(trial, epoch) for trial in ahead}
    best = max(ahead, key=lambda trial: (left[trial], trial.goal, -trial.id))
    if lead in left:
        pays = left[best] - left[lead] > critical_path.start_s(epoch)
        return best if pays and critical_path.epoch_s(lead) >= _DELIVERY_S else lead
    return best


def _serve_members(
    members: Sequence[TrialState], lead: TrialState, epoch: int, pending: tuple[int, ...]
) -> AttemptOrder:
    """Return the order along the leader's path that saves at every branch of a member."""
    due = _keep_due(epoch, pending)
    goal = lead.goal if lead.goal > epoch else epoch
    if len(members) == 1:
        return AttemptOrder(lead, goal, due)
    branches = set(due)
    for trial in members:
        if trial is not lead:
            shared = last_shared_epoch(trial.leaf, lead.leaf)
            goal = max(goal, min(trial.goal, shared))
            # A save that was ordered stays ordered until it is known to be done or missed.
            if trial.goal > shared and (shared >= epoch or shared in pending):
                branches.add(shared)
    # The goal itself is always saved.
    return AttemptOrder(lead, goal, tuple(sorted(branch for branch in branches if branch < goal)))


def _keep_due(epoch: int, pending: tuple[int, ...]) -> tuple[int, ...]:
    """Return the save ordered at the attempt's epoch: it stays ordered until it is done."""
    return (epoch,) if epoch in pending else ()
