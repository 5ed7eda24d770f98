"""Proposals: a policy may choose among the next configs, if the generator leaves the order free."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import paceline as pl
from paceline.core.decisions import Open
from paceline.core.values import Budget
from paceline.generators.queued import Queued
from paceline.generators.random import Random
from paceline.machine.taken_proposals import TakenProposals
from paceline.policies.combined import AnyOf
from paceline.policies.fifo import Fifo
from paceline.policies.plateau import Plateau
from paceline.testing.simulations import (
    CALM,
    Scenario,
    find_replay_difference,
    make_falling_curves,
    make_parts,
    make_study,
    make_table,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.core.decisions import Step
    from paceline.core.ports import Generator, Policy
    from paceline.core.values import Config
    from paceline.core.views import StudyView
    from paceline.machine.decider import Parts
    from paceline.testing.simulations import SimulatedStudy

TABLE = make_table(make_falling_curves(7, 3))


class Chooser(Fifo):
    """Takes the config with the largest number of the next three."""

    window = 3

    def choose(self, configs: Mapping[int, Config], study: StudyView) -> int:
        return max(configs)


class Ordered(Queued):
    """A list whose order counts."""

    ordered = None  # type: ignore[assignment]


def list_runs(study: SimulatedStudy) -> list[int]:
    return [trial.config["run"] for trial in study.state.trials]


def make_chooser(generator: Generator | None = None, policy: Policy | None = None) -> Parts:
    return make_parts(TABLE, policy or Chooser(), generator=generator)


@given(st.lists(st.integers(0, 9), max_size=60))
def test_free_numbers_are_those_that_nothing_has_taken(places: list[int]) -> None:
    taken, naive = TakenProposals(), set[int]()
    for place in places:
        free = [number for number in range(100) if number not in naive][:10]
        assert taken.list_next(10) == free
        assert (taken.first, len(taken)) == (free[0], len(naive))
        # Number 0 of those that are free is taken without being named.
        taken.add(free[place] if place else None)
        naive.add(free[place])


def test_a_policy_chooses_among_the_next_configs_and_all_of_them_come_at_last() -> None:
    study = make_study(TABLE, make_chooser()).run()
    assert list_runs(study) == [2, 3, 4, 5, 6, 1, 0]
    opened = study.list_entries(Open)
    assert [each.number for each in opened] == [2, 3, 4, 5, 6, 1, None]
    assert "number 2 is the most promising" in opened[0].why
    assert not find_replay_difference(study.steps, make_chooser())


@pytest.mark.parametrize("steps", [1, 4, 9, 15])
def test_a_resumed_study_chooses_as_if_it_had_not_stopped(steps: int) -> None:
    whole = make_study(TABLE, make_chooser()).run()
    resumed = make_study(TABLE, make_chooser()).resume(whole.steps[:steps])
    assert list_runs(resumed) == list_runs(whole)


class Stranger(Chooser):
    """Returns a number that it was not given."""

    def choose(self, configs: Mapping[int, Config], study: StudyView) -> int:
        return 99


def test_a_choice_that_is_not_on_offer_is_refused_with_what_is() -> None:
    with pytest.raises(pl.SpecError, match=r"chose config 99: must be one of the 3 .* from 0 to 2"):
        make_study(TABLE, make_chooser(policy=Stranger())).run()


@pytest.mark.parametrize("number", [2, -1, 5_000_000_000])
def test_a_log_in_which_a_config_is_taken_twice_or_out_of_reach_is_refused(number: int) -> None:
    taken = TakenProposals()
    taken.add(2)
    with pytest.raises(
        pl.LogError, match=f"config {number} of a trial was taken before or is too far"
    ):
        taken.add(number)


def test_a_generator_whose_order_counts_is_taken_in_order() -> None:
    configs = [run.config for run in TABLE.runs]
    study = make_study(TABLE, make_chooser(Ordered(configs=configs))).run()
    assert list_runs(study) == [*range(7)]
    assert {each.number for each in study.list_entries(Open)} == {None}


def test_the_users_own_configs_come_first() -> None:
    space = {"run": pl.randint(0, 7)}
    generator = Random(space=space, first=[{"run": 6}, {"run": 5}])
    scenario = Scenario("trials end it", CALM.cluster, {"budget": Budget(trials=6)})
    study = make_study(TABLE, make_chooser(generator), scenario).run()
    assert list_runs(study)[:2] == [6, 5]
    assert [each.number for each in study.list_entries(Open)][:3] == [None, None, 4]


def test_each_of_several_studies_has_its_own_proposals() -> None:
    searches = (pl.Search(policy="planner", trials=40), pl.Search(policy="planner", trials=40))
    steps: list[Step] = []
    options = pl.Simulation(source="cifar10_cnn14", searches=searches, slots=4)
    options.run(remember=steps.extend)
    opened = [each for step in steps for each in step.decisions if isinstance(each, Open)]
    for group in range(2):
        numbers = [each.number for each in opened if each.group == group and each.number]
        assert len(set(numbers)) == len(numbers) > 20


def test_the_first_of_several_policies_chooses() -> None:
    study = make_study(TABLE, make_chooser(policy=AnyOf([Chooser(), Plateau()]))).run()
    assert list_runs(study) == [2, 3, 4, 5, 6, 1, 0]


def test_random_draws_that_are_sorted_or_made_while_a_trial_runs_are_taken_in_order() -> None:
    space = {"run": pl.randint(0, 7)}
    assert (Random(space=space).ordered, Random(space=space, first=[{"run": 1}]).ordered) == (0, 1)
    assert Random(space=space, order="subtrees").ordered is None
    assert Random(space=None).ordered is None
