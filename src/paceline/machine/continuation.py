"""Continuation: an attempt at the end of its order trains on if its slots are for its trial again.

Knows when an attempt is about to end at our order: at the goal of a paused trial, or where a stage
needs another width. Asks the policies and the allocator what they would do with its slots before
its process is gone, since a restart costs a save, a start and a restore. Does not know why they
choose what they choose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.decisions import Go, Resize
from paceline.machine.requirements import find_least_width, is_ending_for_width
from paceline.machine.scheduler import count_ending_slots
from paceline.plan.tree import last_known_epoch

if TYPE_CHECKING:
    from paceline.machine.decider import Decider
    from paceline.machine.scheduler import Scheduler
    from paceline.machine.state import StudyState
    from paceline.machine.trial_state import AttemptState


def is_about_to_end(attempt: AttemptState) -> bool:
    """Say whether the attempt has done what it was ordered for a trial that may train on."""
    return (
        attempt.epoch >= attempt.goal
        and attempt.trial.alive
        and not (attempt.is_halting or attempt.must_yield or attempt.members)
    )


def continue_if_next(attempt: AttemptState, scheduler: Scheduler, decider: Decider) -> None:
    """Let a paused trial train on in its process if the policy would pick it for its slots.

    If the allocator gives it another width from here on, it moves.
    """
    state, trial = decider.state, attempt.trial
    if state.moving and any(number in state.ready for number in state.moving):
        return  # the slots are for a trial that moves
    state.ending = attempt
    _, pick = scheduler.ask_policies()
    state.ending = None
    if pick is None or pick.trial != trial.id or state.end is not None:
        return
    until = min(pick.until, state.spec.epochs)
    if until <= max(trial.goal, trial.epoch):
        return
    decider.decide(
        Go(trial=trial.id, until=until, label=pick.label, width=pick.width, why=pick.why)
    )
    if last_known_epoch(trial.leaf) > trial.epoch:
        decider.credit(trial)
    if trial.attempt is attempt and state.end is None and not is_ending_for_width(attempt):
        width = _choose_next_width(attempt, scheduler, state)
        if width != attempt.width:
            why = f"from epoch {attempt.epoch + 1} on its width is {width:g}"
            decider.decide(Resize(attempt=attempt.id, width=width, why=why))


def may_begin_stage(attempt: AttemptState, scheduler: Scheduler, state: StudyState) -> bool:
    """Say whether an attempt whose next stage needs another width gets the one that it has."""
    if attempt.is_halting or attempt.must_yield or not is_ending_for_width(attempt):
        return False
    if any(number in state.ready for number in state.moving):
        return False
    return _choose_next_width(attempt, scheduler, state) == attempt.width


def is_move_void(attempt: AttemptState, scheduler: Scheduler, state: StudyState) -> bool:
    """Say whether an attempt that should move would get the width that it has, on its slots."""
    slots = state.slots
    own = slots.present.issuperset(attempt.slots) and slots.retiring.isdisjoint(attempt.slots)
    moving = own and bool(state.moving.get(attempt.trial.id)) and attempt.trial.alive
    return moving and _choose_next_width(attempt, scheduler, state) == attempt.width


def _choose_next_width(attempt: AttemptState, scheduler: Scheduler, state: StudyState) -> float:
    """Return the width that the attempt's trial would be launched with if the attempt ended."""
    trial = attempt.trial
    if not (state.elastic or trial.needs):
        return attempt.width
    state.ending = attempt
    state.new = scheduler.may_open()
    least = find_least_width(trial, state.least_width, attempt)
    idle = len(state.slots.idle) + count_ending_slots(state)
    width = max(least, scheduler.choose_width(trial, least, idle))
    state.ending = None
    # Alone on a slot that it may share, a trial has all of it.
    held = state.slots.share(attempt.slots, attempt.width)
    return attempt.width if width == held and attempt.width >= least else width
