"""The order an attempt should have, given what its members want.

Knows goals, branches and who leads. Pure arithmetic: the machine compares the answer with the
order the attempt has, and amends it where they differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from paceline.machine.fitting import stage_end
from paceline.machine.rides import riders
from paceline.plan.tree import known_on, saved_on, shared_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.values import AttemptId
    from paceline.machine.paths import Paths
    from paceline.machine.records import Attempt, Trial

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
