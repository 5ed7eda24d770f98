"""The policy and the generator of a study that names none, and how the choice is told."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest

import paceline as pl
from paceline.api.kept_state import keeps_state
from paceline.core.values import Part
from paceline.integrations import ray_tune

if TYPE_CHECKING:
    from collections.abc import Callable

SPACE = {"x": pl.uniform(0.0, 1.0)}
LOSS: dict[str, Any] = {"metric": "loss", "mode": "min"}


def forgets(trial: Any) -> None:  # noqa: ANN401
    for _ in trial.epochs():
        trial.report(loss=trial["x"])


def keeps(trial: Any) -> None:  # noqa: ANN401
    trial.keep(state=[0])
    forgets(trial)


def calls_a_function_that_keeps(trial: Any) -> None:  # noqa: ANN401
    keeps(trial)


def keeps_in_an_inner_function(trial: Any) -> None:  # noqa: ANN401
    def restore() -> Any:  # noqa: ANN401
        return trial.keep(state=[0])

    restore()


def saves_like_ray(config: dict[str, Any]) -> None:
    pl.report({"loss": config["x"]}, checkpoint=None)


def restores_like_ray(config: dict[str, Any]) -> None:
    pl.get_checkpoint()


def reports_like_ray(config: dict[str, Any]) -> None:
    pl.report({"loss": config["x"]})


class Trainer:
    """An object that can be called, and keeps its state in another method."""

    def __call__(self, trial: Any) -> None:  # noqa: ANN401
        self.fit(trial)

    def fit(self, trial: Any) -> None:  # noqa: ANN401
        trial.keep(state=[0])


@pytest.mark.parametrize(
    "train",
    [
        keeps,
        calls_a_function_that_keeps,
        keeps_in_an_inner_function,
        saves_like_ray,
        restores_like_ray,
        Trainer(),
        Trainer().fit,
        functools.partial(keeps),
        ray_tune.trainable(restores_like_ray),
    ],
)
def test_a_function_whose_code_keeps_state_is_recognised(train: Callable[..., Any]) -> None:
    assert keeps_state(train)


@pytest.mark.parametrize(
    "train",
    [
        forgets,
        reports_like_ray,
        lambda trial: trial["x"],
        functools.partial(forgets),
        ray_tune.trainable(reports_like_ray),
        len,
    ],
)
def test_a_function_whose_code_keeps_nothing_is_recognised(train: Callable[..., Any]) -> None:
    assert not keeps_state(train)


@pytest.mark.parametrize(
    ("train", "options", "policy"),
    [
        (keeps, {"epochs": 1}, "fifo"),
        (keeps, {"epochs": 9}, "planner"),
        (keeps, {"epochs": 9, "deadline": 60}, "planner"),
        (forgets, {"epochs": 9}, "asha_stop"),
        (forgets, {"epochs": 9, "deadline": 60}, "asha_stop"),
        (forgets, {"epochs": 9, "policy": "asha"}, "asha"),
        (forgets, {"epochs": 9, "policy": None}, "asha_stop"),
    ],
)
def test_the_policy_depends_on_the_function_and_the_epochs(
    train: Callable[..., Any], options: dict[str, Any], policy: str
) -> None:
    study = pl.Study(train, space=SPACE, trials=3, **LOSS, **options)
    assert study.spec.policy == Part(policy)


def test_studies_that_run_together_have_the_default_policy() -> None:
    studies = [pl.Study(keeps, space=SPACE, epochs=2, trials=1, **LOSS) for _ in range(2)]
    results = pl.together(*studies, deadline=60, slots="cpu:1", progress=False)
    assert [result.summary().policy for result in results] == ["planner"] * 2


def test_the_log_says_which_policy_was_chosen_and_why() -> None:
    result = pl.tune(
        forgets, space=SPACE, epochs=3, trials=1, slots="cpu:1", progress=False, **LOSS
    )
    opened = result.log[0].event
    assert opened.spec.policy == Part("asha_stop")  # type: ignore[union-attr]
    assert "policy asha_stop: the function keeps no state" in result.story()


def test_a_space_of_grids_is_tried_point_by_point_and_then_the_study_ends() -> None:
    space = {"a": pl.grid([1, 2]), "b": pl.grid(["x", "y", "z"])}
    assert pl.Study(forgets, space=space).spec.generator == Part("grid", {"space": space})
    result = pl.tune(lambda a, b: a, space=space, slots="cpu:1", progress=False)
    assert [(t.config["a"], t.config["b"]) for t in result.trials] == [
        (a, b) for a in (1, 2) for b in ("x", "y", "z")
    ]


def test_grids_beside_other_domains_are_combined_and_the_others_drawn() -> None:
    space = {"a": pl.grid([1, 2, 3]), "x": pl.uniform(0.0, 1.0)}
    generator = pl.Study(forgets, space=space).spec.generator
    assert generator == Part("grid", {"space": space, "others": "drawn"})


def test_a_generator_that_was_given_samples_grids() -> None:
    space = {"a": pl.grid([1, 2, 3])}
    assert pl.Study(forgets, space=space, generator="tpe").spec.generator.name == "tpe"


def test_a_list_of_configs_is_a_generator_beside_a_space() -> None:
    configs = [{"lr": 0.1, "n": 2}, {"lr": 0.3, "n": 1}]
    options: dict[str, Any] = {
        "space": {"lr": pl.uniform(0, 1), "n": pl.choice([1, 2])},
        "slots": "inline",
        "progress": False,
    }
    queued = pl.Part("queued", {"configs": configs})
    result = pl.tune(lambda lr, n: lr * n, generator=queued, **options)
    assert [trial.config for trial in result.trials] == configs
    with pytest.raises(pl.SpecError, match=r"configs\[0\] and the space differ in n: "):
        pl.tune(lambda lr, n: lr, generator=pl.Part("queued", {"configs": [{"lr": 1}]}), **options)
    with pytest.raises(pl.SpecError, match=r"has no configs: give pl\.Part"):
        pl.tune(lambda lr, n: lr, generator="queued", **options)
