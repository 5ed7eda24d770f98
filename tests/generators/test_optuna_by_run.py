"""Samplers without a space: they learn what training functions ask for, from the log alone."""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING, Any

import optuna
import pytest
from optuna.trial import FixedTrial

import paceline as pl
from paceline.api.registry import build_part, build_parts
from paceline.core.domains import Domain, FloatDomain, IntDomain, make_choices
from paceline.core.space import Space
from paceline.core.values import Part
from paceline.generators.optuna.distributions import (
    describe_dimension,
    to_distribution,
    to_domain,
)
from paceline.generators.optuna.growing_space import GrowingSpace
from paceline.machine.machine import Machine
from paceline.machine.replay import replay

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.api.results import Result
    from paceline.core.decisions import Step

UNIT = FloatDomain(low=0.0, high=1.0)


def tell(objective: Callable[[Any], float], trials: int, **options: Any) -> Result:  # noqa: ANN401
    """Run a study in this process, one trial after the other; return its result."""
    with pl.optuna.create_study(**options) as study:
        for _ in range(trials):
            trial = study.ask()
            study.tell(trial, objective(trial))
        return study.result


def quadratic(trial: Any) -> float:  # noqa: ANN401
    """Return the squared distance to a point, in a space of which one branch is better."""
    x, y = trial.suggest_float("x", -10, 10), trial.suggest_float("y", -10, 10)
    if trial.suggest_categorical("branch", ["far", "near"]) == "far":
        return float(x**2 + y**2 + 50 + trial.suggest_float("more", 0, 9))
    return float((x - 3) ** 2 + (y + 4) ** 2)


def test_tpe_finds_a_better_optimum_than_random_search() -> None:
    def search(generator: str) -> float:
        return mean(
            tell(quadratic, 50, sampler=generator, seed=seed).best_value for seed in range(3)
        )

    assert search("tpe") < 0.5 * search("random")


def test_the_same_seed_gives_the_same_study() -> None:
    first, second = (tell(quadratic, 14, seed=5) for _ in range(2))
    assert [trial.config for trial in first.trials] == [trial.config for trial in second.trials]
    assert first.trials[0].config != tell(quadratic, 1, seed=6).trials[0].config


def test_results_have_the_hyperparameters_that_each_trial_used() -> None:
    for trial in tell(quadratic, 14).trials:
        assert ("more" in trial.config) == (trial.config["branch"] == "far")
        assert list(trial.config) == list(trial.domains)


def test_limits_may_depend_on_other_values() -> None:
    def objective(trial: Any) -> float:  # noqa: ANN401
        layers = trial.suggest_int("layers", 1, 6)
        return float(abs(trial.suggest_int("last", 1, layers) - 3))

    result = tell(objective, 30)
    for trial in result.trials:
        layers = trial.config["layers"]
        assert trial.domains["last"] == IntDomain(low=1, high=layers)
        assert trial.config["last"] <= layers
    assert {trial.config["layers"] for trial in result.trials} > {1}


def test_choices_may_change_from_trial_to_trial() -> None:
    def objective(trial: Any) -> float:  # noqa: ANN401
        many = trial.suggest_categorical("many", [True, False])
        return float(len(trial.suggest_categorical("name", ["a", "bb", "ccc"][: 3 if many else 2])))

    result = tell(objective, 24)
    assert result.best_value == 1.0
    assert all(trial.domains["name"].find(trial.config["name"]) for trial in result.trials)


def test_the_log_alone_gives_every_decision_again() -> None:
    result = tell(quadratic, 14)
    log: list[Step] = list(result.log)
    spec = log[0].event.spec  # type: ignore[union-attr]
    machine = Machine(build_parts(spec))
    for step in log:
        machine.fold(step)
    assert [trial.config for trial in machine.state.trials] == [t.config for t in result.trials]
    assert replay(log, build_parts(spec)) is None


@pytest.mark.parametrize("sampler", ["cmaes", "gp", "qmc", "random"])
def test_every_sampler_by_name_can_be_used(sampler: str) -> None:
    result = tell(quadratic, 13, sampler=sampler)
    assert len(result.trials) == 13


def test_a_sampler_object_can_be_used() -> None:
    sampler = optuna.samplers.TPESampler(n_startup_trials=4, seed=1)
    assert len(tell(quadratic, 8, sampler=sampler).trials) == 8


def test_configs_to_try_first_are_used_as_far_as_they_fit() -> None:
    first = [{"x": 3.0, "branch": "near"}, {"x": 99.0, "y": -4.0}]
    for generator in ("tpe", "random"):
        one, two = tell(quadratic, 2, first=first, sampler=generator).trials
        assert (one.config["x"], one.config["branch"]) == (3.0, "near")
        assert two.config["y"] == -4.0
        assert two.config["x"] != 99.0


@pytest.mark.parametrize("name", ["branching", "grid", "sobol"])
def test_a_generator_that_needs_a_space_is_refused(name: str) -> None:
    with pytest.raises(pl.SpecError, match=f"generator '{name}' needs a space: give space="):
        pl.Study(quadratic, generator=name)


def test_random_search_cannot_order_what_it_does_not_know() -> None:
    with pytest.raises(pl.SpecError, match="order='subtrees' sorts configs before they are"):
        build_part("generator", Part("random", {"space": None, "order": "subtrees"}))


def test_a_parameter_of_another_form_is_another_parameter_of_the_sampler() -> None:
    space = GrowingSpace()
    space.learn({"x": UNIT, "n": IntDomain(low=1, high=4)})
    space.learn({"n": IntDomain(low=3, high=9)})
    config = space.fill(FixedTrial({"x": 0.5, "n": 9}))
    assert config == {"x": 0.5, "n": 9}
    logarithmic: dict[str, Domain] = {"x": FloatDomain(low=0.1, high=1.0, log=True)}
    space.learn(logarithmic)
    params, distributions = space.describe({"x": 0.5, "n": 2})
    assert len(space) == len(params) == len(distributions) == 2
    assert "x" not in params
    # A trial that used the first form keeps it; values outside of a domain are left out.
    assert space.describe({"x": 0.5, "n": 99}, {"x": UNIT, "n": UNIT})[0] == {"x": 0.5}


DOMAINS: list[Domain] = [
    UNIT,
    FloatDomain(low=1e-5, high=1.0, log=True),
    FloatDomain(low=0.0, high=1.0, step=0.25),
    IntDomain(low=1, high=9, step=2),
    IntDomain(low=1, high=9, log=True),
    make_choices(["relu", None, 3, 0.5, True]),
]


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_a_domain_is_the_same_after_a_visit_to_optuna(domain: Domain) -> None:
    assert to_domain(to_distribution(domain)) == domain


def test_every_domain_of_a_space_has_a_distribution() -> None:
    space = Space(
        {
            "a": pl.uniform(0, 1),
            "b": pl.loguniform(1, 2),
            "c": pl.quniform(0.1, 1, 0.25),
            "d": pl.randint(1, 5),
            "e": pl.lograndint(1, 5),
            "f": pl.choice(["x", [1, 2]]),
        }
    )
    found = {each.name: to_distribution(describe_dimension(each)) for each in space.dimensions}
    assert (found["d"].low, found["d"].high) == (1, 4)  # type: ignore[attr-defined]
    assert (found["c"].low, found["c"].high) == (0.25, 1.0)  # type: ignore[attr-defined]
    assert found["f"].choices == ("x", "[1, 2]")  # type: ignore[attr-defined]
