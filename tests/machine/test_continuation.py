"""An attempt that has done its order trains on if its slots are for the same trial again."""

from __future__ import annotations

import pytest
from extreme_studies import make_launch, make_log, make_open, make_report, make_spec
from msgspec.structs import replace
from small_studies import SmallStudy, make_table

from paceline.allocation.leaders import Uniform
from paceline.api.registry import build_part, parse_part
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.values import Budget, Status
from paceline.machine.invariants import find_violations
from paceline.machine.state import StudyState

WHY = "the test wants it"


def write_relaunch(*between: tuple[e.AnyEvent, list[d.AnyDecision]]) -> StudyState:
    """Return the state of a log in which trial 0 is cut after an epoch and launched again."""
    cut: list[d.AnyDecision] = [
        d.Cut(trial=0, why=WHY),
        d.Amend(attempt=0, version=1, trial=0, goal=1, save_at=(), why=WHY),
    ]
    again = replace(make_launch(2, 0, (0,)), start=1, source=0)
    log = make_log(
        (e.Opened(at=0.0, spec=make_spec()), []),
        (
            e.CapacityChanged(at=0.0, slots=(0, 1)),
            [*make_open(0, 1), make_launch(0, 0, (0,)), make_launch(1, 1, (1,))],
        ),
        (make_report(1.0, 0, 1, 0.5), cut),
        *between,
        (e.Saved(at=1.0, attempt=0, epoch=1), []),
        (
            e.Ended(at=1.0, attempt=0, cause=e.Cause.GOAL),
            [d.Go(trial=0, until=3, why=WHY), again],
        ),
    )
    state = StudyState()
    for step in log:
        for entry in step.entries:
            state.apply(entry)
    return state


def test_a_trial_cut_and_launched_again_with_nothing_in_between_is_a_violation() -> None:
    (found,) = find_violations(write_relaunch())
    assert found == (
        "no_attempt_is_cut_and_relaunched_for_nothing: trial 0 was cut at epoch 1 and launched "
        "again as attempt 2 with nothing in between"
    )


def test_a_report_of_another_trial_in_between_is_a_reason_to_go_on() -> None:
    assert find_violations(write_relaunch((make_report(1.0, 1, 1, 0.7), []))) == []


@pytest.mark.parametrize("policy", ["barrier:every=2", "pasha:eta=2", "asha:eta=2", "sha:eta=2"])
def test_a_lone_trial_trains_in_one_attempt(policy: str) -> None:
    part = build_part("policy", parse_part(policy))
    study = SmallStudy(make_table([[1.0] * 9]), part, budget=Budget(trials=1))
    assert len(study.run().launches) == 1


def test_a_trial_that_keeps_its_width_in_the_next_stage_trains_on() -> None:
    configs = [{"batch": {"piecewise": [[0, 64], [3, 512]]}}]
    study = SmallStudy(
        make_table([[1.0] * 6], configs=configs),
        allocator=Uniform(),
        slots=2,
        span=2,
        needs=lambda setting: 2 if setting["batch"] > 256 else 1,
    ).run()
    assert [launch.width for launch in study.launches] == [2.0]
    assert study.state.trials[0].status is Status.FINISHED


def test_a_move_into_slots_that_have_gone_is_called_off() -> None:
    study = SmallStudy(
        make_table([[1.0] * 9, [2.0]], seconds=[1.0, 1.5], epochs=9),
        allocator=Uniform(),
        slots=2,
        span=2,
        cluster={"capacity": ((1.7, 1),)},
        budget=Budget(trials=2),
    ).run()
    resizes = study.list_entries(d.Resize)
    assert [resize.width for resize in resizes] == [2.0, 1.0]
    assert resizes[1].why == "the slots for width 2 have gone"
    assert len(study.launches) == 2
