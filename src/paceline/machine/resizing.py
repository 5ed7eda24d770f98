"""When a running trial moves to another width: one rule for every allocator.

Rule: widen if s(new) * (left - move) > 1.1 * s(now) * left, where `left` is the time to its goal
at the width it has, or to the deadline if that is sooner, and `move` what saving, starting,
restoring and warming up were measured to take; and only into slots that are free now. Narrow
if somebody waits, or can be widened by it. Either way at most a tenth of a trial's time goes into
moving: it stays at a width for ten times a move, and for an epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.machine.records import Attempt
    from paceline.machine.state import StudyState

# A wider trial must get this much further in the time that is left.
MARGIN = 1.1
# A trial stays at a width for so many times what a move costs.
REST = 10.0


def left_s(attempt: Attempt, state: StudyState) -> float:
    """Return how long the attempt would go on at its width: to its goal, or to the deadline."""
    paces, trial = state.paces, attempt.trial
    goal = (attempt.goal - attempt.epoch) * paces.epoch_s(trial.id) / paces.speed(attempt.width)
    return goal if state.deadline_s is None else min(goal, state.deadline_s - state.now)


def rested(attempt: Attempt, state: StudyState) -> bool:
    """Say whether the attempt has been at its width long enough to move again."""
    if attempt.halting or attempt.yielding or attempt.epoch == attempt.start:
        return False
    return state.now - attempt.launched_at >= REST * state.paces.move_s


def why_wider(attempt: Attempt, width: float, state: StudyState) -> str | None:
    """Return why widening pays; None where it does not."""
    paces = state.paces
    left, move = left_s(attempt, state), paces.move_s
    now, then = paces.speed(attempt.width), paces.speed(width)
    if then * (left - move) <= MARGIN * now * left:
        return None
    return (
        f"width {width:g} instead of {attempt.width:g} is {then / now:.3g} times as fast, for the "
        f"{left:.4g} s it has left; a move costs {move:.3g} s"
    )


def why_narrower(attempt: Attempt, width: float, state: StudyState, whom: str) -> str | None:
    """Return why narrowing pays; None where the attempt is almost done."""
    left, move = left_s(attempt, state), state.paces.move_s
    if left <= move:
        return None
    return (
        f"width {width:g} instead of {attempt.width:g} makes room for {whom}; it has {left:.4g} s "
        f"left, and a move costs {move:.3g} s"
    )


def slots_to_spare(state: StudyState) -> int:
    """Return the idle slots that no trial on the move is about to take."""
    return len(state.slots.idle) - sum(
        slots_more(attempt, attempt.wanted, state)
        for attempt in state.attempts.values()
        if attempt.wanted is not None
    )


def slots_more(attempt: Attempt, width: float, state: StudyState) -> int:
    """Return the idle slots that moving to this width takes; below 0 where it frees some."""
    if width < 1.0:
        return -int(attempt.width)  # it finds its share of the first slot that is free
    if attempt.width >= 1.0:
        return int(width) - int(attempt.width)
    (slot,) = attempt.slots
    alone = state.slots.held[slot] <= attempt.width + 1e-9
    return int(width) - alone
