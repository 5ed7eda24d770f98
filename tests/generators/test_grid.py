"""The grid generator: every combination of all values, or of the grids alone."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from small_studies import make_table

import paceline as pl
from paceline.core.events import Opened
from paceline.core.values import Budget
from paceline.generators.grid import Grid
from paceline.machine.state import StudyState
from paceline.testing.simulations import make_spec

if TYPE_CHECKING:
    from paceline.core.values import Config


def propose_all(
    space: dict[str, Any],
    budget: Budget,
    most: int = 20,
    **params: Any,  # noqa: ANN401
) -> list[Config]:
    """Return what a grid proposes until it ends, or this many configs."""
    state = StudyState()
    state.apply(Opened(at=0.0, spec=make_spec(make_table([[1.0]]), budget=budget)))
    generator = Grid(space=space, others="drawn", **params)
    found: list[Config] = []
    for number in count():
        config = generator.propose(number, state)
        if config is None or number == most:
            return found
        found.append(config)
    return found


SPACE = {"a": pl.grid([1, 2, 3]), "x": pl.uniform(0.0, 1.0)}


def test_grids_are_gone_through_once_if_nothing_else_ends_the_study() -> None:
    configs = propose_all(SPACE, Budget())
    assert [config["a"] for config in configs] == [1, 2, 3]
    assert len({config["x"] for config in configs}) == 3


def test_grids_are_gone_through_again_with_other_draws_if_the_budget_has_more_trials() -> None:
    configs = propose_all(SPACE, Budget(trials=7), most=7)
    assert [config["a"] for config in configs] == [1, 2, 3, 1, 2, 3, 1]
    assert len({config["x"] for config in configs}) == 7
    assert propose_all(SPACE, Budget(trials=7), most=7) == configs


def test_a_grid_inside_an_option_that_is_drawn_is_drawn_too() -> None:
    space = {"a": pl.grid([1, 2]), "b": pl.choice([{"c": pl.grid([3, 4])}, 0])}
    assert [config["a"] for config in propose_all(space, Budget())] == [1, 2]


def test_a_grid_inside_a_grid_counts_where_its_option_holds() -> None:
    space = {"a": pl.grid([{"c": pl.grid([3, 4])}, 0]), "x": pl.uniform(0.0, 1.0)}
    assert [config["a"] for config in propose_all(space, Budget())] == [{"c": 3}, {"c": 4}, 0]


def test_first_configs_are_completed_with_draws_and_come_before_the_grid() -> None:
    configs = propose_all(SPACE, Budget(), first=[{"x": 0.5}])
    assert configs[0]["x"] == 0.5
    assert [config["a"] for config in configs[1:]] == [1, 2, 3]
