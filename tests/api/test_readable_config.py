"""What a user prints of a config can be pasted into a script, and read epoch by epoch."""

from __future__ import annotations

import json
from typing import Any

import pytest

import paceline as pl
from paceline.plan.config_code import ReadableConfig
from paceline.plan.settings import canonicalize

CONFIGS: list[dict[str, Any]] = [
    {"lr": 0.1, "name": "a'b", "layers": [32, None, True], "inner": {"x": 1e-09}},
    {"lr": pl.piecewise([(0, 0.1), (9, 0.01)]), "opt": pl.piecewise([(0, "sgd"), (3, "adam")])},
    {"lr": pl.cosine(0.3, 5), "wd": pl.linear(0.1, 0.0, 4), "b": pl.cyclic(0.1, 0.2, 4)},
    {"a": pl.step_decay(32, every=10, factor=2), "b": pl.step_decay(1.0, drops=[3, 5])},
    {"lr": pl.warmup(pl.exponential(0.3, 0.9), 3), "s": pl.smooth(pl.linear(1.0, 0.0, 3))},
    {"inner": {"lr": pl.each_epoch([0.3, 0.2, 0.1])}, "several": [pl.cosine(1.0, 3), 2]},
]


@pytest.mark.parametrize("config", CONFIGS)
def test_a_printed_config_is_code_that_makes_the_config(config: dict[str, Any]) -> None:
    config = canonicalize(config)
    shown = ReadableConfig(config)
    assert eval(str(shown), {"pl": pl}) == config == shown
    assert json.loads(json.dumps(shown)) == config


def test_a_config_without_schedules_prints_as_the_dict_it_is() -> None:
    config = {"lr": 0.1, "layers": [1, 2]}
    assert str(ReadableConfig(config)) == str(config)


def test_a_result_shows_schedules_as_code_and_their_values_by_epoch() -> None:
    def train(trial: pl.Trial) -> None:
        for _ in trial.epochs():
            trial.report(trial["lr"])

    space = {"lr": pl.piecewise([(0, 0.5), (2, 0.25)]), "width": 64}
    result = pl.tune(train, space=space, epochs=3, trials=1, slots="inline", progress=False)
    assert str(result.best.config) == "{'lr': pl.piecewise([(0, 0.5), (2, 0.25)]), 'width': 64}"
    assert str(result.best_params) == str(result.best.params) == str(result.best.config)
    assert [setting["lr"] for setting in result.best.settings] == [0.5, 0.5, 0.25]
    assert result.best.settings[-1] == {"lr": 0.25, "width": 64}
    again = pl.tune(
        train,
        space=space,
        epochs=3,
        trials=1,
        slots="inline",
        progress=False,
        first=[result.best.config],
    )
    assert again.best.config == result.best.config
