"""Functions as people have them, each in a live study: the first attempts of a newcomer.

`tests/worker/test_function.py` has every kind of function and every error; here is what needs a
driver, worker processes and a policy.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import pytest

import paceline as pl
from paceline.core.errors import SpecError, StudyFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SPACE = {"lr": pl.uniform(0.0, 1.0), "width": pl.randint(1, 9)}


def tune(train: Callable[..., Any], **options: Any) -> pl.Result:  # noqa: ANN401
    settings: dict[str, Any] = {"space": SPACE, "trials": 2, "slots": 2, "generator": "random"}
    return pl.tune(train, **settings | options, progress=False)


# The attempts of FINDINGS, part 3, section 2 (b), in the order in which a user makes them.


def return_score(trial: pl.Trial) -> float:
    return float(trial["lr"]) * 2


def report_accuracy(trial: pl.Trial) -> None:
    trial.report(accuracy=trial["lr"] * 2)


def return_from_config(config: dict[str, float]) -> float:
    return config["lr"] * 2


def return_dict_from_config(config: dict[str, float]) -> dict[str, float]:
    return {"accuracy": config["lr"] * 2}


def report_from_config(config: dict[str, float]) -> None:
    pl.report({"accuracy": config["lr"] * 2})


def return_by_name(lr: float, width: int) -> float:
    return lr * 2


ACCURACY = {"metric": "accuracy", "mode": "max"}


@pytest.mark.parametrize(
    ("train", "options"),
    [
        (return_score, {}),
        (return_score, {"epochs": 1}),
        (report_accuracy, ACCURACY),
        (return_from_config, ACCURACY),
        (return_dict_from_config, ACCURACY),
        (report_from_config, ACCURACY),
        (return_by_name, {"mode": "max"}),
    ],
)
def test_a_score_is_all_that_a_study_needs(
    train: Callable[..., Any], options: dict[str, Any]
) -> None:
    result = tune(train, **options)
    values = [trial.config["lr"] * 2 for trial in result.trials]
    assert result.best.value == (max(values) if options.get("mode") == "max" else min(values))
    assert [trial.status for trial in result.trials] == ["finished", "finished"]
    assert [trial.values for trial in result.trials] == [[value] for value in values]


def test_without_a_metric_the_number_counts_and_lower_is_better() -> None:
    spec = pl.Study(return_score, space=SPACE).spec
    assert (spec.metric, spec.mode, spec.epochs) == ("value", "min", 1)
    with pytest.raises(SpecError, match="mode is missing: give mode='max' if higher is better"):
        pl.Study(return_score, space=SPACE, metric="loss")


def test_functions_that_read_their_hyperparameters_once_share_nothing() -> None:
    assert pl.Study(return_score, space=SPACE).spec.share
    assert not pl.Study(return_from_config, space=SPACE).spec.share
    assert not pl.Study(return_by_name, space=SPACE).spec.share


def test_a_wrong_argument_is_an_error_at_the_call() -> None:
    with pytest.raises(SpecError, match="takes depth, and the space has only lr, width"):
        pl.tune(lambda lr, width, depth: 0.0, space=SPACE)
    with pytest.raises(SpecError, match="the training function is None"):
        pl.tune(None, space=SPACE)  # type: ignore[arg-type]


# Epochs, with a policy that pauses and stops


def yield_losses(lr: float, width: int) -> Iterator[dict[str, float]]:
    for epoch in range(3):
        yield {"loss": lr + 1.0 / (epoch + 1)}


def report_in_own_loop(trial: pl.Trial) -> None:
    for epoch in range(30):  # `epochs` ends it
        trial.report(trial["lr"] + 1.0 / (epoch + 1), epoch)


def return_early(trial: pl.Trial) -> float:
    for _ in trial.epochs():
        trial.report(loss=trial["lr"] + 1.0)
        break
    return float(trial["lr"])


@pytest.mark.filterwarnings("ignore:.*keeps nothing")
@pytest.mark.parametrize("train", [yield_losses, report_in_own_loop])
def test_a_function_with_its_own_loop_starts_over_after_a_pause(train: Callable[..., Any]) -> None:
    options: dict[str, Any] = {"metric": "loss", "mode": "min", "epochs": 3, "policy": "asha"}
    result = tune(train, trials=4, **options)
    best = min(result.trials, key=lambda trial: trial.config["lr"])
    assert result.best.id == best.id
    for trial in result.trials:
        lr = trial.config["lr"]
        assert trial.values == [lr + 1.0, lr + 1.0 / 2, lr + 1.0 / 3][: len(trial.values)]
    assert best.status == "finished"


@pytest.mark.parametrize(("train", "epochs"), [(return_score, 1), (return_early, 2)])
def test_a_trial_whose_function_returns_has_finished_whatever_the_policy_s_goal(
    train: Callable[..., Any], epochs: int
) -> None:
    options: dict[str, Any] = {"metric": "loss", "mode": "min", "epochs": 9}
    result = tune(train, policy="fifo", **options)
    assert [trial.status for trial in result.trials] == ["finished", "finished"]
    assert [len(trial.values) for trial in result.trials] == [epochs, epochs]
    result = tune(return_score, policy="asha", **options)  # its first goal is epoch 1
    assert [trial.status for trial in result.trials] == ["finished", "finished"]


# Failures


def test_two_reports_in_a_trial_of_one_epoch_fail_with_the_way_out() -> None:
    with pytest.raises(StudyFailed, match=r"it reports more than once, .*: give epochs=N"):
        tune(report_in_own_loop, trials=1)


def test_a_failure_names_the_error_and_the_user_s_line() -> None:
    def train(config: dict[str, float]) -> float:
        return config["depth"]

    line = train.__code__.co_firstlineno + 1
    with pytest.raises(StudyFailed, match=rf"KeyError: 'depth'.* ?test_functions\.py:{line}"):
        tune(train, trials=1)


def test_a_module_that_starts_a_study_when_it_is_imported_is_refused_in_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "starts_at_import.py").write_text(
        "import paceline as pl\n"
        "def train(lr):\n    return lr\n"
        "pl.tune(train, space={'lr': pl.uniform(0, 1)}, trials=1, slots=1, progress=False)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SpecError, match=r"put the call of pl\.tune under `if __name__ =="):
        importlib.import_module("starts_at_import")


def test_workers_have_the_arguments_of_the_program() -> None:
    expected = list(sys.argv)

    def train(config: dict[str, float]) -> float:
        return float(sys.argv == expected)

    assert tune(train, trials=1).best.value == 1.0
