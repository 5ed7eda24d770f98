"""Stopping rules beside a policy that schedules, and breadth first."""

from __future__ import annotations

import math

import pytest
from build import Played, table

from paceline.api.registry import build, parse_part
from paceline.api.simulation import Simulation
from paceline.core.decisions import Go, Pause, Stop
from paceline.core.errors import SpecError
from paceline.core.events import Reported
from paceline.core.values import Part, Status
from paceline.policies.barrier import Barrier
from paceline.policies.kill_below import KillBelow
from paceline.policies.plateau import Plateau

STILL = [[1.0 - 0.1 * min(epoch, 3) for epoch in range(12)], [2.0 - 0.1 * k for k in range(12)]]


def test_who_stands_still_is_stopped_when_patience_is_over() -> None:
    played = Played(table(STILL), Plateau(patience=4)).run()
    (stop,) = played.of(Stop)
    assert played.state.trials[0].epoch == 8
    assert stop.why == "loss has not improved in the 4 epochs since epoch 4"


def test_a_small_improvement_may_count_as_none() -> None:
    played = Played(table(STILL), Plateau(patience=4, least=0.35)).run()
    # The second falls by 0.4 every four epochs, the first by 0.3 in all.
    assert [trial.epoch for trial in played.state.trials] == [5, 12]


def test_a_curve_without_numbers_stands_still_from_its_first_epoch() -> None:
    played = Played(table([[math.nan] * 12]), Plateau(patience=4)).run()
    assert played.state.trials[0].epoch == 5


def test_who_has_learned_nothing_by_then_is_stopped() -> None:
    curves = [[0.1, 0.1, 0.12, 0.1], [0.1, 0.1, 0.3, 0.2]]
    played = Played(table(curves, mode="max"), KillBelow(value=0.15, after=3)).run()
    (stop,) = played.of(Stop)
    assert played.state.trials[0].epoch == 3
    assert stop.why == "best loss 0.12 by epoch 3 is worse than 0.15"


def test_policies_joined_by_a_plus_are_one_of_which_the_first_schedules() -> None:
    text = "asha:eta=2+plateau:patience=2,least=1e+0"
    part = parse_part(text)
    assert str(part) == text
    curves = [[3.0 - 0.1 * number] * 8 for number in range(6)]
    played = Played(table(curves), build("policy", part)).run()
    assert {type(decision) for decision in played.decisions} >= {Pause, Go, Stop}
    assert all("has not improved" in stop.why for stop in played.of(Stop))


def test_what_is_joined_must_be_policies_that_there_are() -> None:
    with pytest.raises(SpecError, match="unknown policy 'nobody'"):
        build("policy", parse_part("asha+nobody"))
    with pytest.raises(SpecError, match="unknown generator 'random\\+tpe'"):
        build("generator", parse_part("random+tpe"))


def test_a_log_that_lists_what_was_joined_is_still_understood() -> None:
    old = Part("any_of", {"policies": ["fifo", "plateau:patience=2"]})
    played = Played(table([[1.0] * 8]), build("policy", old)).run()
    assert played.state.trials[0].epoch == 3


def test_a_simulation_is_named_after_all_that_was_joined() -> None:
    simulation = Simulation(source="toy", policy="asha:eta=2+plateau:patience=2", trials=2)
    assert simulation.run().study == "toy-asha+plateau-s4-0"


def test_nobody_starts_a_round_before_all_have_ended_the_last() -> None:
    curves = [[1.0] * 6 for _ in range(5)]
    seconds = [1.0, 3.0, 1.0, 2.0, 1.0]
    played = Played(table(curves, seconds=seconds), Barrier(every=2), slots=2).run()
    rounds = [
        (step.event.epoch - 1) // 2 for step in played.steps if isinstance(step.event, Reported)
    ]
    assert rounds == sorted(rounds)
    assert all(trial.status is Status.FINISHED for trial in played.state.trials)


def test_a_cohort_of_a_given_size_needs_no_budget() -> None:
    curves = [[1.0] * 4 for _ in range(9)]
    played = Played(table(curves), Barrier(every=2, size=3), slots=1).run()
    first = [trial.id for trial in played.state.trials if trial.opened_at < 6.0]
    assert first == [0, 1, 2]
    assert len(played.state.trials) == 9


@pytest.mark.parametrize(
    "made",
    [
        lambda: Plateau(patience=0),
        lambda: Plateau(least=-1.0),
        lambda: KillBelow(value=0.1, after=0),
        lambda: Barrier(every=0),
        lambda: Barrier(size=0),
    ],
)
def test_what_cannot_be_meant_is_refused(made: object) -> None:
    with pytest.raises(SpecError, match="cannot be meant"):
        made()  # type: ignore[operator]
