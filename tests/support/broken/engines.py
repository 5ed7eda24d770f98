"""Engines that break one clause each: a good engine with some events or decisions changed."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from msgspec.structs import replace

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.engines.sim.cluster import Cluster
from paceline.engines.sim.engine import SimEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.ports import Advisor, Engine, Workload
    from paceline.core.views import EngineView

    ChangeEvent = Callable[[e.AnyEvent], Sequence[e.AnyEvent]]
    ChangeDecision = Callable[[d.AnyDecision], Sequence[d.AnyDecision]]
    Make = Callable[[Workload, Advisor], Engine]


class ChangedEngine:
    """Wraps an engine and changes its events and decisions by functions."""

    def __init__(
        self, engine: Engine, change_event: ChangeEvent, change_decision: ChangeDecision
    ) -> None:
        self._engine = engine
        self._change_event = change_event
        self._change_decision = change_decision

    @property
    def now(self) -> float:
        return self._engine.now

    def wait(self, patience: float | None = None) -> Sequence[e.AnyEvent] | None:
        while events := self._engine.wait(patience):
            changed = [each for event in events for each in self._change_event(event)]
            if changed:
                return changed
        return None

    def apply(self, step: d.Step, study: EngineView) -> None:
        given = [each for decision in step.decisions for each in self._change_decision(decision)]
        self._engine.apply(d.Step(step.number, step.event, (*given,)), study)

    def close(self) -> None:
        self._engine.close()


class NeverCloses(ChangedEngine):
    def close(self) -> None:
        """Leave everything running."""


class AppliesEveryStepAgain(ChangedEngine):
    """Carries out every step again."""

    numbers = 0

    def apply(self, step: d.Step, study: EngineView) -> None:
        self.numbers += 1
        super().apply(replace(step, number=self.numbers), study)


class AnswersEveryHalt(ChangedEngine):
    """Sends an Ended for every Halt."""

    def __init__(
        self, engine: Engine, change_event: ChangeEvent, change_decision: ChangeDecision
    ) -> None:
        super().__init__(engine, change_event, change_decision)
        self._ends: list[e.AnyEvent] = []

    def apply(self, step: d.Step, study: EngineView) -> None:
        self._ends += (
            e.Ended(at=self.now, attempt=decision.attempt, cause=e.Cause.HALTED)
            for decision in step.decisions
            if isinstance(decision, d.Halt)
        )
        super().apply(step, study)

    def wait(self, patience: float | None = None) -> Sequence[e.AnyEvent] | None:
        ends, self._ends = self._ends, []
        return ends or super().wait(patience)


def keep_event(event: e.AnyEvent) -> Sequence[e.AnyEvent]:
    return (event,)


def keep_decision(decision: d.AnyDecision) -> Sequence[d.AnyDecision]:
    return (decision,)


def make_changed(
    change_event: ChangeEvent = keep_event,
    change_decision: ChangeDecision = keep_decision,
    kind: type[ChangedEngine] = ChangedEngine,
) -> Make:
    """Return a function that makes a changed engine."""
    return lambda workload, advisor: kind(
        SimEngine(workload, Cluster(slots=2), advisor), change_event, change_decision
    )


def drop_events(*kinds: type) -> ChangeEvent:
    return lambda event: () if isinstance(event, kinds) else (event,)


def drop_decisions(*kinds: type) -> ChangeDecision:
    return lambda decision: () if isinstance(decision, kinds) else (decision,)


def skips_epoch_3(event: e.AnyEvent) -> Sequence[e.AnyEvent]:
    return () if isinstance(event, e.Reported) and event.epoch == 3 else (event,)


def sends_events_after_the_end(event: e.AnyEvent) -> Sequence[e.AnyEvent]:
    late = e.Missed(at=event.at, attempt=0, epoch=1)
    return (event, late) if isinstance(event, e.Ended) else (event,)


def calls_all_ends_goals(event: e.AnyEvent) -> Sequence[e.AnyEvent]:
    return (replace(event, cause=e.Cause.GOAL) if isinstance(event, e.Ended) else event,)


def clears_notes(event: e.AnyEvent) -> Sequence[e.AnyEvent]:
    return (replace(event, note="") if isinstance(event, e.Ended) else event,)


def runs_ahead(event: e.AnyEvent) -> Sequence[e.AnyEvent]:
    return (replace(event, at=event.at + 0.05) if isinstance(event, e.Reported) else event,)


def wakes_when_it_likes(event: e.AnyEvent) -> Sequence[e.AnyEvent]:
    return (replace(event, at=event.at + 0.01) if isinstance(event, e.Woke) else event,)


def forgets_the_key(event: e.AnyEvent) -> Sequence[e.AnyEvent]:
    return (replace(event, epoch=1) if isinstance(event, e.Forecasted) else event,)


def takes_any_version(decision: d.AnyDecision) -> Sequence[d.AnyDecision]:
    return (
        replace(decision, version=next(_VERSIONS)) if isinstance(decision, d.Amend) else decision,
    )


def starts_from_nothing(decision: d.AnyDecision) -> Sequence[d.AnyDecision]:
    launch = isinstance(decision, d.Launch)
    return (replace(decision, start=0, source=None) if launch else decision,)


def stays_on_its_path(decision: d.AnyDecision) -> Sequence[d.AnyDecision]:
    return (replace(decision, trial=1) if isinstance(decision, d.Amend) else decision,)


def saves_only_at_the_goal(decision: d.AnyDecision) -> Sequence[d.AnyDecision]:
    orders = isinstance(decision, d.Launch | d.Amend)
    return (replace(decision, save_at=()) if orders else decision,)


_VERSIONS = count(10)

BREAKERS: dict[str, Make] = {
    "test_the_first_event_is_the_capacity": make_changed(drop_events(e.CapacityChanged)),
    "test_every_launch_is_answered_by_exactly_one_ended": make_changed(drop_events(e.Ended)),
    "test_epochs_are_reported_in_order_without_a_gap": make_changed(skips_epoch_3),
    "test_the_checkpoint_at_the_goal_is_safe_before_the_attempt_ends": make_changed(
        drop_events(e.Saved)
    ),
    "test_ended_is_an_attempts_last_event": make_changed(sends_events_after_the_end),
    "test_a_training_function_that_returns_is_finished": make_changed(calls_all_ends_goals),
    "test_a_training_function_that_fails_carries_its_error_and_harms_no_other": make_changed(
        clears_notes
    ),
    "test_a_halted_attempt_ends_once_however_often_it_is_halted": make_changed(
        kind=AnswersEveryHalt
    ),
    "test_orders_for_unknown_attempts_are_ignored": make_changed(kind=AnswersEveryHalt),
    "test_a_step_applied_twice_takes_effect_once": make_changed(kind=AppliesEveryStepAgain),
    "test_a_raised_goal_lets_a_running_attempt_go_on": make_changed(
        change_decision=drop_decisions(d.Amend)
    ),
    "test_a_lowered_goal_ends_it_at_the_next_epoch_with_a_checkpoint": make_changed(
        change_decision=drop_decisions(d.Amend)
    ),
    "test_an_older_amend_is_ignored": make_changed(change_decision=takes_any_version),
    "test_a_checkpoint_is_continued_with_its_epoch_and_its_values": make_changed(
        change_decision=starts_from_nothing
    ),
    "test_a_schedule_is_followed_and_so_is_an_amended_path": make_changed(
        change_decision=stays_on_its_path
    ),
    "test_a_requested_checkpoint_is_saved_or_missed": make_changed(
        change_decision=saves_only_at_the_goal
    ),
    "test_time_never_runs_backwards": make_changed(runs_ahead),
    "test_a_wake_comes_at_the_requested_time": make_changed(wakes_when_it_likes),
    "test_every_request_is_answered_by_its_key": make_changed(forgets_the_key),
    "test_a_request_for_slots_is_answered": make_changed(change_decision=drop_decisions(d.Provide)),
    "test_close_ends_all_events_and_all_processes": make_changed(kind=NeverCloses),
}
