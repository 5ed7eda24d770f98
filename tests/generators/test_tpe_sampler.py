"""TPE on arrays proposes what Optuna's TPESampler proposes, for the same trials and seed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import optuna
import pytest
from optuna.samplers import TPESampler

from paceline.generators.optuna.sampler import SamplerFactory
from paceline.generators.optuna.tpe_sampler import TpeSampler

if TYPE_CHECKING:
    from collections.abc import Callable

    from optuna.trial import Trial

# Enough for the weights of old trials to fall, with a model in most proposals.
TRIALS = 60


def numbers(trial: Trial) -> float:
    """Uniform and logarithmic floats."""
    x = trial.suggest_float("x", -2.0, 1.0)
    rate = trial.suggest_float("rate", 1e-6, 1.0, log=True)
    return (x - 0.3) ** 2 + math.log10(rate / 1e-3) ** 2


def steps(trial: Trial) -> float:
    """Whole numbers, plain and logarithmic, and floats with a step: many values are equal."""
    layers = trial.suggest_int("layers", 1, 9)
    width = trial.suggest_int("width", 8, 1024, log=True)
    dropout = trial.suggest_float("dropout", 0.0, 0.5, step=0.125)
    return abs(layers - 4) + abs(math.log2(width / 64)) + dropout


def choices(trial: Trial) -> float:
    """Choices, one with a hyperparameter of its own."""
    kind = trial.suggest_categorical("kind", ["sgd", "adam", "none"])
    size = trial.suggest_categorical("size", [16, 32])
    momentum = trial.suggest_float("momentum", 0.0, 1.0) if kind == "sgd" else 0.5
    return (kind == "none") + size / 32 + momentum


@pytest.fixture(autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def propose(
    sampler: optuna.samplers.BaseSampler, objective: Callable[[Trial], float], known: list[Any]
) -> dict[str, Any]:
    """Return what a sampler proposes after these trials."""
    study = optuna.create_study(sampler=sampler)
    study.add_trials(known)
    trial = study.ask()
    objective(trial)
    return trial.params


@pytest.mark.parametrize("objective", [numbers, steps, choices])
def test_proposals_are_those_of_optunas_sampler(objective: Callable[[Trial], float]) -> None:
    study = optuna.create_study(sampler=TPESampler(seed=0))
    study.ask()  # a running trial, which has no parameters yet
    for seed in range(TRIALS):
        expected = propose(TPESampler(seed=seed), objective, study.get_trials())
        found = propose(TpeSampler(seed=seed), objective, study.get_trials())
        assert found == pytest.approx(expected, rel=1e-9)
        study.enqueue_trial(expected)
        trial = study.ask()
        value = objective(trial)
        if seed % 7:  # the others stay running, or fail
            study.tell(trial, value)
        elif seed % 2:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)


def test_a_sampler_that_has_seen_trials_proposes_as_a_new_one() -> None:
    study = optuna.create_study(sampler=TPESampler(seed=0))
    used = TpeSampler()
    study.sampler = used
    for seed in range(30):
        known = study.get_trials()
        used.set_seed(seed)
        trial = study.ask()
        value = choices(trial)
        assert trial.params == propose(TpeSampler(seed=seed), choices, known)
        study.tell(trial, value)


def test_tpe_with_options_is_optunas_own() -> None:
    plain = SamplerFactory("tpe", 5, {}).make_sampler(0, 0)
    with_options = SamplerFactory("tpe", None, {"n_ei_candidates": 5}).make_sampler(0, 0)
    assert isinstance(plain, TpeSampler)
    assert isinstance(with_options, TPESampler)
