"""What policies make of the budget: when they drain, and which trials start before a deadline."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from small_studies import SmallStudy, make_table

from paceline.allocation.fixed import Fixed
from paceline.core.decisions import Close, Launch, Open
from paceline.core.events import Reported
from paceline.core.values import Budget, Status, Target
from paceline.policies.asha_stop import AshaStop
from paceline.policies.budget_rules import DeadlineAdmission
from paceline.policies.hypersched import HyperSched
from paceline.policies.pasha import Pasha

CURVES = [[float(loss)] * 9 for loss in (5, 3, 4, 1, 2, 9, 8, 7, 6)]
LIMITS = [Budget(deadline_s=1e4), Budget(target=Target(0.5)), Budget(slot_seconds=1e4)]


@pytest.mark.parametrize("kind", [HyperSched, Pasha])
def test_with_trials_alone_a_halving_policy_trains_only_what_its_rule_wants(
    kind: type[HyperSched | Pasha],
) -> None:
    state = SmallStudy(make_table(CURVES), kind(eta=3), slots=2).run().state
    assert state.epochs_trained < sum(map(len, CURVES))
    assert max(trial.epoch for trial in state.trials) == 9, "a trial has finished all the same"
    assert state.best is not None
    assert state.best.id == 3
    assert state.end is not None
    assert "nothing is left that policy given would train" in state.end.why


@pytest.mark.parametrize("kind", [HyperSched, Pasha])
@pytest.mark.parametrize("budget", LIMITS)
def test_with_another_limit_no_slot_idles_while_a_trial_is_paused(
    kind: type[HyperSched | Pasha], budget: Budget
) -> None:
    state = SmallStudy(make_table(CURVES), kind(eta=3), slots=2, budget=budget).run().state
    assert {trial.status for trial in state.trials} == {Status.FINISHED}


@pytest.mark.parametrize("kind", [HyperSched, Pasha])
def test_drain_given_as_false_holds_with_any_budget(kind: type[HyperSched | Pasha]) -> None:
    policy = kind(eta=3, drain=False)
    state = SmallStudy(make_table(CURVES), policy, slots=2, budget=LIMITS[0]).run().state
    assert state.epochs_trained < sum(map(len, CURVES))


def test_a_stopping_policy_starts_no_trial_that_cannot_report_before_the_deadline() -> None:
    played = SmallStudy(make_table(CURVES), AshaStop(eta=3), budget=Budget(deadline_s=10.5)).run()
    assert [opened.trial for opened in played.list_entries(Open)] == [0, 1]
    (closed,) = played.list_entries(Close)
    assert closed.why == "0.5 s are left, and a new trial needs 1 s to epoch 1"


def test_a_stopping_policy_without_a_deadline_starts_all_trials() -> None:
    played = SmallStudy(make_table(CURVES), AshaStop(eta=3)).run()
    assert len(played.list_entries(Open)) == len(CURVES)


class Seen(NamedTuple):
    """The part of a trial that an admission rule reads."""

    id: int
    seconds: list[float]


def test_an_epoch_on_several_slots_counts_as_one_on_one_slot() -> None:
    admission = DeadlineAdmission(eta=4)
    narrow, wide = Seen(0, []), Seen(1, [])
    for attempt, width in ((0, 1.0), (1, 4.0)):
        launch = Launch(
            attempt=attempt,
            trial=attempt,
            start=0,
            source=None,
            goal=9,
            save_at=(),
            slots=(0,),
            width=width,
            why="a test",
        )
        admission.see(launch)
    for trial, seconds in ((wide, 2.0), (narrow, 8.0), (wide, 2.0), (wide, 2.0), (wide, 2.0)):
        trial.seconds.append(seconds)
        report = Reported(
            at=1.0, attempt=trial.id, epoch=len(trial.seconds), metrics={}, seconds=seconds
        )
        admission.record(trial, report)  # type: ignore[arg-type]
    assert admission.epoch_s == 8.0
    # The first wide epoch came before any other: it counts as it was.
    assert admission.longest_s == 2.0 + 3 * 8.0


def test_where_all_trials_are_wide_their_epochs_count_as_they_are() -> None:
    curves = [[float(loss)] * 8 for loss in range(12)]
    study = SmallStudy(
        make_table(curves),
        HyperSched(eta=4),
        slots=4,
        allocator=Fixed(),
        span=2,
        budget=Budget(deadline_s=9.0),
    )
    study.run()
    (closed,) = study.list_entries(Close)
    # Epochs take 0.5 s on two slots: the eight of a new trial need 4 s.
    assert "a new trial would need 4 s to matter" in closed.why
