"""Whatever is composed: every value that a trial sees is that of its config trained alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from compositions import (
    POLICIES,
    ComposedStudy,
    Composition,
    compositions,
    find_wrong_values,
    make_composed_parts,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_studies import SmallStudy, make_table

from paceline.api.registry import list_parts
from paceline.core.decisions import AskForecast, Cut, Go, Pause
from paceline.core.errors import SpecError
from paceline.core.events import ChangeSlots
from paceline.core.ports import Pick, see_nothing
from paceline.machine.invariants import find_violations
from paceline.machine.machine import Machine
from paceline.machine.replay import replay
from paceline.testing.simulations import AddingWorkload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.events import Command
    from paceline.core.ports import Verdict
    from paceline.core.views import StudyView, TrialView

# By each policy; there are sixteen.
_QUICK, _ALL = 14, 135
# In the quick suite, invariants are checked after every so many steps.
_STRIDE = 9


def check_composition(composition: Composition, stride: int) -> None:
    """Run a composition; compare every value with the oracle, and check invariants and replay."""
    try:
        study = ComposedStudy(composition)
    except SpecError as refusal:
        assert_is_a_sentence(str(refusal))
        return
    study.run()
    assert find_wrong_values(study.state, study.workload) == []
    assert find_violations(study.state) == []
    assert replay(study.steps, make_composed_parts(study.spec, composition)) is None
    machine = Machine(make_composed_parts(study.spec, composition))
    for number, step in enumerate(study.steps):
        machine.fold(step)
        if number % stride == 0:
            assert find_violations(machine.state) == [], step


def assert_is_a_sentence(text: str) -> None:
    """Check that a refusal says what cannot be, and what to do."""
    assert text.endswith("."), text
    assert len(text.split()) >= 6, text
    assert ":" in text, text


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=_QUICK, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_value_is_that_of_the_config_trained_alone(policy: str, data: st.DataObject) -> None:
    check_composition(data.draw(compositions(policy)), _STRIDE)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=_ALL, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_value_is_that_of_the_config_trained_alone_in_many_compositions(
    policy: str, data: st.DataObject
) -> None:
    check_composition(data.draw(compositions(policy)), 1)


def test_slots_for_a_trial_that_moves_are_not_given_to_a_new_one() -> None:
    options = {
        "source": "quadratic:epochs=3,stages=1",
        "policy": "plateau:patience=2",
        "curves": "last",
        "allocator": "confidence:width=2",
        "span": 2,
        "slots": 1,
        "needs": None,
        "generator": "sobol",
        "save_every_s": 0.0,
        "deadline_s": 6.0,
        "trials": 60,
    }
    commands: dict[int, Command] = {12: ChangeSlots(by=2), 30: ChangeSlots(by=-2)}
    check_composition(Composition(options=options, commands=commands), 1)


def test_every_policy_is_composed() -> None:
    assert {*POLICIES} == {*list_parts("policy"), "both"}


class CutsOnForecast:
    """Trains both trials to their branch, the first beyond it; cuts that one for the other."""

    see = staticmethod(see_nothing)

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        number, epoch = trial.id, trial.epoch
        if number == 0 and trial.forecast is not None and trial.goal > epoch:
            return (Cut(trial=0, why="the other trial is better"),)
        if number == 0 and epoch == BRANCH and trial.forecast is None:
            ask = AskForecast(trial=0, epoch=epoch, horizons=(6,), why="it is at the branch")
            return (ask, Go(trial=0, until=6, why="it trains on while its forecast is computed"))
        return (Pause(trial=number, why="it is at the branch"),) if epoch == BRANCH else ()

    def next(self, study: StudyView) -> Pick | None:
        for ready in study.ready:
            return Pick(ready, 0, "it was interrupted")
        if study.new:
            return Pick(None, BRANCH, "a slot is free")
        first, *others = study.trials
        if first.forecast is None or first.goal > first.epoch:
            return None
        return next(
            (Pick(each.id, 6, "its turn has come") for each in others if each.goal < 6), None
        )

    def admit(self, study: StudyView) -> int | None:
        return None


BRANCH = 3


def test_an_epoch_begun_before_the_attempt_changed_its_path_is_no_epoch_of_the_new_path() -> None:
    configs = [
        {"step": {"piecewise": [[0, -1.0], [BRANCH, after]]}} for after in (-0.1, -0.2, -0.3)
    ]
    workload = AddingWorkload()
    study = SmallStudy(
        make_table([[0.0] * 6] * 3, configs=configs),
        CutsOnForecast(),
        slots=2,
        workload=workload,
        cluster={"forecast_s": 0.4},
        share=True,
    ).run()
    assert study.list_entries(Cut)
    assert find_wrong_values(study.state, workload) == []
    # The attempt was in the middle of an epoch of the path that it had to leave.
    assert study.state.strays == 1
    assert [trial.epoch for trial in study.state.trials] == [BRANCH, 6, 6]
