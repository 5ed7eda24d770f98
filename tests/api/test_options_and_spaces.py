"""Options and spaces as users write them: what is taken over, and in which types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from ray import tune
from scipy import stats

import paceline as pl
from paceline.api.option_checks import check_options
from paceline.api.options import StudyOptions
from paceline.api.spaces import convert_space
from paceline.core.errors import SpecError


@pytest.mark.parametrize(
    ("given", "domain"),
    [
        (stats.uniform(1, 2), pl.uniform(1.0, 3.0)),
        (stats.uniform(loc=1, scale=2), pl.uniform(1.0, 3.0)),
        (stats.loguniform(1e-4, 1), pl.loguniform(1e-4, 1.0)),
        (stats.randint(1, 5), pl.randint(1, 5)),
        (FloatDistribution(0, 1), pl.uniform(0.0, 1.0)),
        (FloatDistribution(1e-3, 1, log=True), pl.loguniform(1e-3, 1.0)),
        (FloatDistribution(0, 1, step=0.25), pl.quniform(0.0, 1.0, 0.25)),
        (FloatDistribution(0.1, 0.7, step=0.2), pl.choice([0.1, 0.3, 0.5, 0.7])),
        (IntDistribution(1, 8), pl.randint(1, 9)),
        (IntDistribution(1, 8, log=True), pl.lograndint(1, 9)),
        (IntDistribution(2, 8, step=3), pl.choice([2, 5, 8])),
        (CategoricalDistribution(["a", 1]), pl.choice(["a", 1])),
        (tune.uniform(0, 1), pl.uniform(0, 1)),
        (tune.grid_search([1, 2]), pl.grid([1, 2])),
        (tune.choice([tune.uniform(0, 1), 2]), pl.choice([pl.uniform(0, 1), 2])),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (pl.choice(np.array([1, 2])), pl.choice([1, 2])),
        (pl.choice([(0.9, 0.999)]), pl.choice([[0.9, 0.999]])),
        ([pl.uniform(0, 1), 0.999], [pl.uniform(0, 1), 0.999]),
        (pl.piecewise([(0, 0.1), (5, 0.01)]), pl.piecewise([(0, 0.1), (5, 0.01)])),
        ({"deep": FloatDistribution(0, 1)}, {"deep": pl.uniform(0.0, 1.0)}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_domain_of_another_library_becomes_ours(given: Any, domain: Any) -> None:  # noqa: ANN401
    converted = convert_space({"x": given})["x"]
    assert converted == domain
    assert type(converted) is type(domain)


def test_a_steps_domain_with_too_many_values_is_refused() -> None:
    with pytest.raises(SpecError, match="x has 9999 steps that do not start at a multiple"):
        convert_space({"x": IntDistribution(1, 19_997, step=2)})


@pytest.mark.parametrize(
    ("name", "given", "taken"),
    [
        ("epochs", np.int64(3), 3),
        ("trials", np.int32(5), 5),
        ("target", np.float64(0.5), 0.5),
        ("target", 1, 1.0),
        ("store", Path("runs.db"), "runs.db"),
        ("range", [0, 1], (0.0, 1.0)),
        ("first", ({"lr": 1},), [{"lr": 1}]),
        ("plan", None, None),
    ],
)
def test_an_option_is_taken_in_its_own_type(name: str, given: Any, taken: Any) -> None:  # noqa: ANN401
    found = check_options({name: given})
    assert found == {name: taken}
    assert type(found[name]) is type(taken)


def test_an_option_that_is_none_is_left_out() -> None:
    assert check_options({"trials": None, "retries": None, "policy": None}) == {}


def test_every_option_is_checked() -> None:
    from paceline.api import option_checks

    assert set(StudyOptions.__struct_fields__) == set(option_checks._CHECKS)


def test_an_optuna_sampler_is_a_generator() -> None:
    sampler = optuna.samplers.RandomSampler()
    assert check_options({"generator": sampler}) == {"generator": sampler}


class Wrong:
    """Nothing an option takes."""


@pytest.mark.parametrize("name", sorted(StudyOptions.__struct_fields__))
def test_no_option_takes_an_object_that_means_nothing(name: str) -> None:
    with pytest.raises(SpecError) as error:
        check_options({name: Wrong()})
    assert str(error.value).startswith(f"{name}=Wrong(…) is ")
    assert "0x" not in str(error.value)
