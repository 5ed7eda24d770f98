"""Useless relaunches: an attempt ended at our order and launched again with nothing in between.

Knows how many changes there were since an attempt was ordered to end. The restart costs a save, a
start and a restore, and changes nothing: its trial should have trained on in the same process. No
policy and no allocator may cause one (`machine/invariants.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.core.values import SlotId, TrialId
from paceline.machine.requirements import is_ending_for_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Launch
    from paceline.core.values import AttemptId
    from paceline.machine.slots import Slots
    from paceline.machine.trial_state import AttemptState, TrialState

# More examples than these say nothing new.
_MOST = 10


class _EndedAttempt(Struct, frozen=True, gc=False):
    """An attempt that ended at our order; `changes`: all, if none came in between."""

    trial: TrialId
    width: float
    slots: tuple[SlotId, ...]
    changes: int


class Relaunches:
    """Finds relaunches of the attempt that ended last."""

    def __init__(self) -> None:
        # Events, and decisions about trials. Each attempt counts the events about itself.
        self.changes = 0
        self._ended: _EndedAttempt | None = None
        # (trial, epoch, attempt) of useless relaunches, the first ones.
        self.found: list[tuple[TrialId, int, AttemptId]] = []

    def record_event(self, attempt: AttemptState | None) -> None:
        """Record an event, about this attempt alone if there is one."""
        self.changes += 1
        if attempt is not None:
            attempt.own_events += 1

    def record_delivery(self, trials: Sequence[TrialState], lead: TrialState) -> None:
        """Record a report to these trials: a change if others than the attempt's own see it."""
        if trials and trials != (lead,):
            self.changes += 1

    def record_decision(self, trial: TrialId | None = None) -> None:
        """Record a decision about a trial: a change, except for the trial that ended."""
        if trial is None or self._ended is None or self._ended.trial != trial:
            self.changes += 1

    def record_order(self, attempt: AttemptState) -> None:
        """Record that an attempt has a new order, or has done what it was ordered."""
        if attempt.epoch < attempt.goal:
            attempt.ordered_at = None
        elif attempt.ordered_at is None:
            attempt.ordered_at = self.changes - attempt.own_events

    def record_end(self, attempt: AttemptState, *, reached_goal: bool) -> None:
        """Record the end of an attempt; `reached_goal`: by our order, with its checkpoint."""
        before = attempt.ordered_at
        self._ended = None
        if not reached_goal or before is None:
            return
        if attempt.trial.needs and is_ending_for_width(attempt):
            return
        changes = before + attempt.own_events
        self._ended = _EndedAttempt(attempt.trial.id, attempt.width, attempt.slots, changes)

    def record_launch(self, launch: Launch, slots: Slots) -> None:
        """Record a launch: of the trial that ended last, at its width, it is useless."""
        ended, changes = self._ended, self.changes
        self._ended = None
        self.changes += 1
        if ended is None or changes != ended.changes:
            return
        same = (ended.trial, ended.width) == (launch.trial, launch.width)
        own = slots.present.issuperset(ended.slots) and slots.retiring.isdisjoint(ended.slots)
        if same and own:
            self.found = [*self.found, (launch.trial, launch.start, launch.attempt)][:_MOST]
