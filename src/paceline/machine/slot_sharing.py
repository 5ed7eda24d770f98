"""Sharing slots: which slot a trial with a share of one gets, and how the cost of it is measured.

Knows attempts, their slots and how long they have to go. Does not know which trial starts: the
scheduler does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.values import SlotId
    from paceline.machine.state import StudyState
    from paceline.machine.trial_state import AttemptState

# To measure what sharing costs, a trial has its slot alone for an epoch. The shares that stay free
# meanwhile may be this part of all.
_MOST_FREE = 1.0 / 16.0


def find_held_width(attempt: AttemptState, state: StudyState) -> float:
    """Return the width an attempt has now: on a shared slot 1/k if k attempts are on it."""
    return state.slots.share(attempt.slots, attempt.width)


def find_share(
    width: float,
    near: str,
    state: StudyState,
    count_expected: Callable[[], float],
    *,
    measure: bool,
) -> tuple[SlotId, ...] | None:
    """Return the slot for a trial that may share it; None: none has room.

    An idle slot comes first. Where trials may be wide and are few, or need whole slots, a shared
    slot does, so that others get these. `measure` keeps one slot for its trial alone until the cost
    is known.
    """
    spread = state.spec.span == 1 or (
        len(state.attempts) + len(state.ready) + count_expected() > state.capacity
    )
    spread = spread and not state.spec.fit
    kept = find_kept_slot(state, count_expected) if measure else None
    return state.slots.find_share(width, near, spread=spread, kept=kept)


def find_kept_slot(state: StudyState, count_expected: Callable[[], float]) -> SlotId | None:
    """Return the slot that no trial may join, so that its last trial is alone for an epoch.

    Its epochs alone and beside others are compared: other trials have other configs, so they tell
    less. Chosen is the slot where the fewest shares stay free for that; none if these are too many
    of all, or if a trial that was alone is on its way already.
    """
    times, pack = state.epoch_times, state.spec.pack
    if pack == 1 or times.has_measured_sharing:
        return None
    by_slot: dict[SlotId, list[AttemptState]] = {}
    for attempt in state.attempts.values():
        if times.is_measured(attempt.trial.id, 1.0) and attempt.epoch < attempt.goal:
            return None
        if attempt.width < 1.0:
            by_slot.setdefault(attempt.slots[0], []).append(attempt)
    unit = times.start_s + times.mean_epoch_s if times.is_started else 0.0
    # In starts with an epoch: all that were and will be, or that there was time for.
    seats = len(state.trials) + count_expected()
    if unit:
        seats = max(seats, state.now * state.capacity * pack / unit)
    budget = seats * _MOST_FREE - times.count_alone * (pack - 1)
    costs = [
        ((pack - 1) + wait_s / unit if wait_s else pack - 1, slot)
        for slot, attempts in by_slot.items()
        if (wait_s := _estimate_wait(attempts, state)) is not None and (unit or not wait_s)
    ]
    cost, slot = min(costs, default=(0.0, None))
    return slot if cost <= budget else None


def _estimate_wait(attempts: Sequence[AttemptState], state: StudyState) -> float | None:
    """Return the seconds that shares of a slot stay free until its longest trial is alone.

    None: that trial has too few epochs to go to be measured alone and beside others.
    """
    times = state.epoch_times
    left = sorted(
        (
            (attempt.goal - attempt.epoch)
            * times.epoch_s(attempt.trial.id)
            / times.speed(find_held_width(attempt, state))
            + (times.start_s if attempt.epoch == attempt.start else 0.0),
            attempt.goal - attempt.epoch,
            attempt.id,
        )
        for attempt in attempts
    )
    (_, epochs, _), others = left[-1], left[:-1]
    if epochs < 2:
        return None
    return sum(others[-1][0] - seconds for seconds, _, _ in others) if others else 0.0
