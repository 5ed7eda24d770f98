"""The machine: an event goes in, decisions come out, each with a reason.

Knows the order of work after an event: fold it in, react to it, bring the attempts' orders in line,
fill the free slots, drop checkpoints, end the study when it is over. Does not know any algorithm:
policy, generator and allocator are called through their ports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.decisions import Step
from paceline.core.values import Status
from paceline.machine.assignment import AttemptOrder, plan_order
from paceline.machine.continuation import (
    continue_if_next,
    is_about_to_end,
    is_move_void,
    may_begin_stage,
)
from paceline.machine.decider import Decider
from paceline.machine.failures import shorten_place
from paceline.machine.scheduler import Scheduler, choose_slots_to_retire
from paceline.plan.settings import canonicalize

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.decisions import Entry
    from paceline.machine.decider import Parts
    from paceline.machine.trial_state import AttemptState, TrialState

# Why a study without a space opens no further trials.
NO_PARAMS = (
    "the training function asks for no hyperparameter, so every trial would be the same: give "
    "space={…}, or call trial.suggest_float(…) in it"
)


class Machine:
    """A study that decides: its state, its parts, and the reactions to events."""

    def __init__(self, parts: Parts) -> None:
        self._decider = Decider(parts)
        self._scheduler = Scheduler(self._decider, parts)
        self.state = self._decider.state

    @property
    def over(self) -> bool:
        """Whether the study has ended."""
        return self.state.end is not None

    def handle(self, event: e.AnyEvent) -> Step:
        """Fold one event in and return it with the decisions it causes, which are folded in too."""
        state, decider = self.state, self._decider
        number = state.number
        decisions = decider.decisions = []
        decider.take(event)
        if state.end is None and not (state.is_limited and self._end_if_spent()):
            react = _REACT.get(type(event))
            if react is not None:
                react(self, event)
            is_followed = _IS_FOLLOWED.get(type(event))
            if state.end is None and (is_followed is None or not is_followed(event)):
                self._settle(event)
        return Step(number, event, tuple(decisions)) if decisions else Step(number, event)

    def fold(self, step: Step) -> None:
        """Fold in a step that was decided before, without deciding anything."""
        for entry in step.entries:
            self._decider.take(entry)
        self.state.assignment.changed.clear()
        self.state.checkpoints.to_recheck.clear()

    def take(self, entry: Entry) -> None:
        """Fold one entry into the state and show it to the parts."""
        self._decider.take(entry)

    def _settle(self, event: e.AnyEvent) -> None:
        """Bring orders in line and fill what is free, if something can have changed."""
        state = self.state
        if state.assignment.changed:
            self._amend()
        slots = state.slots
        if slots.idle or slots.partial or state.elastic:
            self._scheduler.fill()
            if state.assignment.changed:
                self._amend()
        if type(event) is e.Reported and state.end is None:
            attempt = state.attempts.get(event.attempt)
            if attempt is not None and attempt.epoch >= attempt.goal:
                self._continue(attempt)
        if state.checkpoints.to_recheck:
            self._decider.drop_checkpoints()
        if (state.is_limited or not state.attempts) and state.end is None:
            self._scheduler.watch()

    def _continue(self, attempt: AttemptState) -> None:
        """Let an attempt that has done its order train on if its slots are for its trial again."""
        state = self.state
        if attempt.must_yield and is_move_void(attempt, self._scheduler, state):
            why = f"the slots for width {state.moving[attempt.trial.id]:g} have gone"
            self._decider.decide(d.Resize(attempt=attempt.id, width=attempt.width, why=why))
            self._amend()
        if is_about_to_end(attempt):
            continue_if_next(attempt, self._scheduler, self._decider)
            if state.assignment.changed:
                self._amend()
        if (
            attempt.trial.needs
            and state.end is None
            and may_begin_stage(attempt, self._scheduler, state)
        ):
            self._order(attempt, plan_order(attempt, state, stage_start=attempt.epoch))

    def _end_if_spent(self) -> bool:
        """End the study if its time or its slot time is used up."""
        state = self.state
        deadline, limit = state.deadline_s, state.spec.budget.slot_seconds
        if deadline is not None and state.now >= deadline:
            cause = d.EndCause.DEADLINE
            why = f"the deadline of {state.return_s:g} s has come"
        # A sum of many floats may miss the limit by its last digits.
        elif limit is not None and state.slot_seconds >= limit * (1 - 1e-9):
            cause, why = d.EndCause.SLOT_SECONDS, f"{limit:g} slot-seconds are used up"
        else:
            return False
        self._decider.end_group(state, cause, why)
        return True

    # Reactions to events

    def _extended(self, event: e.Extended) -> None:
        self._begun(event)
        for group in self.state.groups:
            self._decider.end_if_reached(group)
        if not self.state.spec.standing:
            for trial in list(self.state.trials):
                self._decider.readmit(trial)

    def _begun(self, event: e.Opened | e.Resumed | e.Extended | e.DeadlineChanged) -> None:
        deadline = self.state.deadline_s
        if deadline is not None:
            self._decider.decide(d.WakeAt(at=deadline, why="the deadline ends the study"))

    def _reported(self, event: e.Reported) -> None:
        state = self.state
        for trial in state.delivered:
            self._decider.review(trial)
        attempt = state.attempts.get(event.attempt) if state.assignment.has_branches else None
        if (
            attempt is not None
            and attempt.path_changes
            and not attempt.is_halting
            and attempt.has_strayed(event.epoch, event.version)
        ):
            why = f"it had passed epoch {attempt.epoch} when the order to leave its path arrived"
            self._decider.decide(d.Halt(attempt=attempt.id, why=why))

    def _attempt_ended(self, event: e.Ended) -> None:
        trial = self.state.subject
        if trial is None:
            return
        if trial.alive and event.cause is e.Cause.PRUNED:
            self._decider.decide(d.Stop(trial=trial.id, why="its function raised TrialPruned"))
        if self.state.spec.define_by_run:
            self._close_without_params(trial)
        if not trial.alive or event.cause is not e.Cause.FAILED:
            return
        failure, retries = trial.failure, self.state.spec.retries
        assert failure is not None
        if trial.failures > retries:
            why = f"failure {trial.failures}, and only {retries} may be retried"
            why += f": {failure.headline}" * bool(event.note or event.error)
        elif self.state.errors.get(failure.kind, 0) > 1:
            where = shorten_place(failure.place)
            why = f"{failure.error} at {where} again: the same error is not retried"
        else:
            return
        self._decider.fail_trial(trial, why)

    def _close_without_params(self, trial: TrialState) -> None:
        """Open no further trials if a complete one has asked for no hyperparameter."""
        complete = trial.ended in (Status.FINISHED, Status.STOPPED)
        group = self.state.find_group(trial)
        if complete and not trial.domains and not group.closed:
            self._decider.decide(d.Close(group=group.index, why=NO_PARAMS))

    def _subject(self, event: e.Forecasted | e.Woke) -> None:
        trial = self.state.subject
        if trial is not None and trial.alive:
            self._decider.judge(trial, self.state.find_group(trial))

    def _commanded(self, event: e.Commanded) -> None:
        decider = self._decider
        match event.command:
            case e.StopStudy():
                decider.end_group(self.state, d.EndCause.COMMAND, "a command asked for it")
            case e.ChangeSlots(by=by) if by > 0:
                decider.decide(d.Provide(slots=by, why=f"a command gives {by} more"))
            case e.ChangeSlots(by=by):
                slots = choose_slots_to_retire(self.state, -by)
                if slots:
                    why = f"a command takes {len(slots)} away"
                    decider.decide(d.Retire(slots=slots, why=why))

    def _submitted(self, event: e.Submitted) -> None:
        until = min(max(event.until, 1), self.state.spec.epochs)
        why = "an outside tuner asks for it"
        self._decider.credit(self._decider.open_trial(canonicalize(event.config), until, why))

    def _adopted(self, event: e.Adopted) -> None:
        for trial in self.state.trials:
            self._decider.credit(trial)

    # Orders of attempts

    def _amend(self) -> None:
        """Bring the orders of attempts whose members or goals changed in line."""
        state, decide = self.state, self._decider.decide
        changed = state.assignment.changed
        while changed:
            attempt = changed.pop(next(iter(changed)))
            if attempt.id not in state.attempts or attempt.is_halting:
                continue
            if not attempt.members and attempt.epoch >= attempt.goal:
                continue  # it has done its work and is about to end
            if not attempt.members and not attempt.trial.alive:
                decide(d.Halt(attempt=attempt.id, why="no trial needs it any more"))
                continue
            order = plan_order(attempt, state)
            if order != AttemptOrder(attempt.trial, attempt.goal, attempt.save_at):
                self._order(attempt, order)

    def _order(self, attempt: AttemptState, order: AttemptOrder) -> None:
        self._decider.decide(
            d.Amend(
                attempt=attempt.id,
                version=attempt.version + 1,
                trial=order.trial.id,
                goal=order.goal,
                save_at=order.save_at,
                why=_explain_amend(attempt.goal, order.goal),
            )
        )


def _explain_amend(before: int, after: int) -> str:
    if after > before:
        return f"its goal moved on from epoch {before} to {after}"
    if after < before:
        return f"its goal moved back from epoch {before} to {after}"
    return "a trial needs another checkpoint or path"


# Whether another event must come before slots are filled: more configs of the same group follow a
# Submitted, the slots of the driver an Extended.
_IS_FOLLOWED: dict[type, Callable[[Any], bool]] = {
    e.Extended: lambda event: True,
    e.Submitted: lambda event: event.more > 0,
}
_REACT: dict[type, Callable[[Machine, Any], None]] = {
    e.Opened: Machine._begun,
    e.Resumed: Machine._begun,
    e.Extended: Machine._extended,
    e.DeadlineChanged: Machine._begun,
    e.Reported: Machine._reported,
    e.Ended: Machine._attempt_ended,
    e.Forecasted: Machine._subject,
    e.Woke: Machine._subject,
    e.Commanded: Machine._commanded,
    e.Submitted: Machine._submitted,
    e.Adopted: Machine._adopted,
}
