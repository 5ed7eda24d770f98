"""Engines that break one promise each: a good one, with one fact or order bent on its way."""

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

    from paceline.core.ports import Adviser, Engine, Workload

    Tell = Callable[[e.AnyEvent], Sequence[e.AnyEvent]]
    Order = Callable[[d.AnyDecision], Sequence[d.AnyDecision]]
    Make = Callable[[Workload, Adviser], Engine]


class Bent:
    """An engine whose facts and orders pass through somebody's hands."""

    def __init__(self, engine: Engine, tell: Tell, order: Order) -> None:
        self._engine = engine
        self._tell = tell
        self._order = order

    @property
    def now(self) -> float:
        return self._engine.now

    def wait(self, patience: float | None = None) -> Sequence[e.AnyEvent] | None:
        while events := self._engine.wait(patience):
            told = [each for event in events for each in self._tell(event)]
            if told:
                return told
        return None

    def apply(self, step: d.Step) -> None:
        given = [each for decision in step.decisions for each in self._order(decision)]
        self._engine.apply(d.Step(step.number, step.event, (*given,)))

    def replay(self, step: d.Step) -> None:
        self._engine.replay(step)

    def close(self) -> None:
        self._engine.close()


class NeverCloses(Bent):
    def close(self) -> None:
        """Leave everything running."""


class AppliesAgain(Bent):
    """Takes a step that it has carried out for a new one."""

    numbers = 0

    def apply(self, step: d.Step) -> None:
        self.numbers += 1
        super().apply(replace(step, number=self.numbers))


class AnswersEveryHalt(Bent):
    """Says that an attempt has ended as often as it is told to end it."""

    def __init__(self, engine: Engine, tell: Tell, order: Order) -> None:
        super().__init__(engine, tell, order)
        self._ends: list[e.AnyEvent] = []

    def apply(self, step: d.Step) -> None:
        self._ends += (
            e.Ended(at=self.now, attempt=decision.attempt, cause=e.Cause.HALTED)
            for decision in step.decisions
            if isinstance(decision, d.Halt)
        )
        super().apply(step)

    def wait(self, patience: float | None = None) -> Sequence[e.AnyEvent] | None:
        ends, self._ends = self._ends, []
        return ends or super().wait(patience)


def same_fact(event: e.AnyEvent) -> Sequence[e.AnyEvent]:
    return (event,)


def same_order(decision: d.AnyDecision) -> Sequence[d.AnyDecision]:
    return (decision,)


def bent(tell: Tell = same_fact, order: Order = same_order, kind: type[Bent] = Bent) -> Make:
    """Return the maker of an engine with these hands in it."""
    return lambda workload, adviser: kind(
        SimEngine(workload, Cluster(slots=2), adviser), tell, order
    )


def without(*kinds: type) -> Tell:
    return lambda event: () if isinstance(event, kinds) else (event,)


def deaf_to(*kinds: type) -> Order:
    return lambda decision: () if isinstance(decision, kinds) else (decision,)


def skips_epoch_3(event: e.AnyEvent) -> Sequence[e.AnyEvent]:
    return () if isinstance(event, e.Reported) and event.epoch == 3 else (event,)


def speaks_after_the_end(event: e.AnyEvent) -> Sequence[e.AnyEvent]:
    late = e.Missed(at=event.at, attempt=0, epoch=1)
    return (event, late) if isinstance(event, e.Ended) else (event,)


def calls_all_ends_goals(event: e.AnyEvent) -> Sequence[e.AnyEvent]:
    return (replace(event, cause=e.Cause.GOAL) if isinstance(event, e.Ended) else event,)


def says_no_word(event: e.AnyEvent) -> Sequence[e.AnyEvent]:
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


def saves_at_the_goal_alone(decision: d.AnyDecision) -> Sequence[d.AnyDecision]:
    orders = isinstance(decision, d.Launch | d.Amend)
    return (replace(decision, save_at=()) if orders else decision,)


_VERSIONS = count(10)

BREAKERS: dict[str, Make] = {
    "test_the_first_fact_is_the_slots_there_are": bent(without(e.CapacityChanged)),
    "test_every_launch_is_answered_by_exactly_one_ended": bent(without(e.Ended)),
    "test_epochs_are_reported_in_order_without_a_gap": bent(skips_epoch_3),
    "test_the_checkpoint_at_the_goal_is_safe_before_the_attempt_ends": bent(without(e.Saved)),
    "test_ended_is_an_attempts_last_word": bent(speaks_after_the_end),
    "test_a_training_function_that_returns_is_finished": bent(calls_all_ends_goals),
    "test_a_training_function_that_fails_says_why_and_harms_nobody": bent(says_no_word),
    "test_a_halted_attempt_ends_once_however_often_it_is_told": bent(kind=AnswersEveryHalt),
    "test_orders_to_nobody_are_ignored": bent(kind=AnswersEveryHalt),
    "test_a_step_applied_twice_does_nothing_more": bent(kind=AppliesAgain),
    "test_a_raised_goal_lets_a_running_attempt_go_on": bent(order=deaf_to(d.Amend)),
    "test_a_goal_taken_back_ends_it_at_the_next_boundary_with_a_checkpoint": bent(
        order=deaf_to(d.Amend)
    ),
    "test_an_older_amend_is_ignored": bent(order=takes_any_version),
    "test_a_checkpoint_is_continued_with_its_epoch_and_its_values": bent(order=starts_from_nothing),
    "test_a_schedule_is_followed_and_so_is_an_amended_path": bent(order=stays_on_its_path),
    "test_a_save_that_is_asked_for_is_saved_or_missed": bent(order=saves_at_the_goal_alone),
    "test_times_never_run_backwards": bent(runs_ahead),
    "test_a_wake_comes_at_the_time_that_was_asked_for": bent(wakes_when_it_likes),
    "test_what_is_asked_is_answered_by_its_key": bent(forgets_the_key),
    "test_a_request_for_slots_is_answered": bent(order=deaf_to(d.Provide)),
    "test_after_close_nothing_is_told_and_nothing_is_left": bent(kind=NeverCloses),
}
