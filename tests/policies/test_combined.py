"""Combined policies: plateau and kill_below beside a policy that schedules, and barrier."""

from __future__ import annotations

import math

import pytest
from small_studies import SmallStudy, make_table

from paceline.api.registry import build_part, parse_part
from paceline.api.simulation import Simulation
from paceline.core.decisions import Go, Pause, Stop
from paceline.core.errors import SpecError
from paceline.core.events import Reported
from paceline.core.values import Part, Status
from paceline.policies.barrier import Barrier
from paceline.policies.kill_below import KillBelow
from paceline.policies.plateau import Plateau

STILL = [[1.0 - 0.1 * min(epoch, 3) for epoch in range(12)], [2.0 - 0.1 * k for k in range(12)]]


def test_a_trial_on_a_plateau_is_stopped_after_its_patience() -> None:
    played = SmallStudy(make_table(STILL), Plateau(patience=4)).run()
    (stop,) = played.list_entries(Stop)
    assert played.state.trials[0].epoch == 8
    assert stop.why == "loss has not improved in the 4 epochs since epoch 4"


def test_an_improvement_below_least_does_not_count() -> None:
    played = SmallStudy(make_table(STILL), Plateau(patience=4, least=0.35)).run()
    # The second falls by 0.4 every four epochs, the first by 0.3 in all.
    assert [trial.epoch for trial in played.state.trials] == [5, 12]


def test_a_curve_without_numbers_is_a_plateau_from_its_first_epoch() -> None:
    played = SmallStudy(make_table([[math.nan] * 12]), Plateau(patience=4)).run()
    assert played.state.trials[0].epoch == 5


def test_a_trial_below_the_threshold_is_stopped() -> None:
    curves = [[0.1, 0.1, 0.12, 0.1], [0.1, 0.1, 0.3, 0.2]]
    played = SmallStudy(make_table(curves, mode="max"), KillBelow(value=0.15, after=3)).run()
    (stop,) = played.list_entries(Stop)
    assert played.state.trials[0].epoch == 3
    assert stop.why == "best loss 0.12 by epoch 3 is worse than 0.15"


def test_of_combined_policies_the_first_one_schedules() -> None:
    text = "asha:eta=2+plateau:patience=2,least=1e+0"
    part = parse_part(text)
    assert str(part) == text
    curves = [[3.0 - 0.1 * number] * 8 for number in range(6)]
    played = SmallStudy(make_table(curves), build_part("policy", part)).run()
    assert {type(decision) for decision in played.decisions} >= {Pause, Go, Stop}
    assert all("has not improved" in stop.why for stop in played.list_entries(Stop))


def test_combining_an_unknown_policy_is_refused() -> None:
    with pytest.raises(SpecError, match="unknown policy 'absent'"):
        build_part("policy", parse_part("asha+absent"))
    with pytest.raises(SpecError, match="unknown generator 'random\\+tpe'"):
        build_part("generator", parse_part("random+tpe"))


def test_a_log_with_a_list_of_combined_policies_can_be_read() -> None:
    old = Part("any_of", {"policies": ["fifo", "plateau:patience=2"]})
    played = SmallStudy(make_table([[1.0] * 8]), build_part("policy", old)).run()
    assert played.state.trials[0].epoch == 3


def test_a_simulation_is_named_after_all_combined_policies() -> None:
    simulation = Simulation(source="toy", policy="asha:eta=2+plateau:patience=2", trials=2)
    assert simulation.run().study == "toy-asha+plateau-s4-0"


def test_no_trial_starts_a_round_before_all_have_ended_the_last() -> None:
    curves = [[1.0] * 6 for _ in range(5)]
    seconds = [1.0, 3.0, 1.0, 2.0, 1.0]
    played = SmallStudy(make_table(curves, seconds=seconds), Barrier(every=2), slots=2).run()
    rounds = [
        (step.event.epoch - 1) // 2 for step in played.steps if isinstance(step.event, Reported)
    ]
    assert rounds == sorted(rounds)
    assert all(trial.status is Status.FINISHED for trial in played.state.trials)


def test_a_cohort_of_a_given_size_needs_no_budget() -> None:
    curves = [[1.0] * 4 for _ in range(9)]
    played = SmallStudy(make_table(curves), Barrier(every=2, size=3), slots=1).run()
    first = [trial.id for trial in played.state.trials if trial.opened_at < 6.0]
    assert first == [0, 1, 2]
    assert len(played.state.trials) == 9


@pytest.mark.parametrize(
    "make",
    [
        lambda: Plateau(patience=0),
        lambda: Plateau(least=-1.0),
        lambda: KillBelow(value=0.1, after=0),
        lambda: Barrier(every=0),
        lambda: Barrier(size=0),
    ],
)
def test_invalid_parameters_are_refused(make: object) -> None:
    with pytest.raises(SpecError, match="is invalid"):
        make()  # type: ignore[operator]
