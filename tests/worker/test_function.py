"""Training functions of every kind: how they are called, and what they report."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import pytest
from trials import TrialUnderTest, make_start

import paceline as pl
from paceline.core.errors import SpecError, TrialError
from paceline.worker.function import check_function, classify, name_function, run_function
from paceline.worker.protocol import CheckpointWritten, EpochReport, Release
from paceline.worker.ray_compat import use_trial
from paceline.worker.stop_request import Unwind

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from paceline.worker.trial import Trial

    Run = Callable[..., list[EpochReport]]

SPACE = {"lr": pl.loguniform(1e-3, 1.0), "width": pl.randint(1, 9)}
CONFIG = {"lr": 0.5, "width": 4}


class Model:
    """An object whose methods train."""

    def fit(self, lr: float, width: int) -> float:
        return lr * width

    def __call__(self, config: dict[str, Any]) -> float:
        return float(config["lr"])


def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **more: Any) -> Any:  # noqa: ANN401
        return function(*args, **more)

    return wrapper


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Run a function on a trial of its own; return the reports it has sent."""
    made: list[TrialUnderTest] = []

    def run(train: Callable[..., Any], *sent: Any, **changes: Any) -> list[EpochReport]:  # noqa: ANN401
        start = make_start(tmp_path, **{"config": CONFIG, "epochs": 1, "goal": 9} | changes)
        made.append(TrialUnderTest(start, (), *sent))
        trial = made[-1].trial
        with use_trial(trial):
            run_function(train, trial)
        return [message for message in made[-1].read() if isinstance(message, EpochReport)]

    yield run
    for each in made:
        each.close()


def list_losses(reports: list[EpochReport]) -> list[tuple[int, float | None]]:
    return [(report.epoch, report.metrics["loss"]) for report in reports]


# Kinds


def by_trial(trial: Trial) -> float:
    return float(trial["lr"])


def by_anything(run: Trial) -> float:
    return float(run["lr"])


def by_config(cfg: dict[str, float]) -> float:
    return cfg["lr"] * cfg["width"]


def by_name(lr: float, width: int, momentum: float = 0.9) -> float:
    return lr * width


def by_name_and_trial(width: int, trial: Trial, lr: float = 0.0) -> float:
    assert trial["width"] == width
    return lr * width


def by_rest(**rest: float) -> float:
    return rest["lr"] * rest["width"]


def by_data(data: list[float], lr: float, width: int) -> float:
    return data[0] * lr * width


def by_data_and_trial(data: list[float], trial: Trial) -> float:
    return data[0] * float(trial["lr"])


@pytest.mark.parametrize(
    ("train", "kind", "loss"),
    [
        (by_trial, "trial", 0.5),
        (by_anything, "trial", 0.5),
        (by_config, "config", 2.0),
        (by_name, "named", 2.0),
        (by_name_and_trial, "named", 2.0),
        (by_rest, "named", 2.0),
        (functools.partial(by_data, [2.0]), "named", 4.0),
        (functools.partial(by_data, data=[2.0]), "named", 4.0),
        (functools.partial(by_data_and_trial, data=[2.0]), "trial", 1.0),
        (Model().fit, "named", 2.0),
        (Model(), "config", 0.5),
        (decorate(by_name), "named", 2.0),
        (decorate(by_anything), "trial", 0.5),
        (lambda lr, width, /: lr * width, "named", 2.0),
        (lambda trial, **rest: rest["lr"] * rest["width"], "trial", 2.0),
    ],
    ids=lambda value: name_function(value) if callable(value) else "",
)
def test_each_kind_of_function_is_given_what_it_takes(
    run: Run, train: Callable[..., Any], kind: str, loss: float
) -> None:
    assert classify(train, SPACE) == kind
    (report,) = run(train)
    assert (report.epoch, report.metrics, report.last) == (1, {"loss": loss}, True)


def test_the_space_decides_what_an_argument_is() -> None:
    def train(x: Any) -> None:  # noqa: ANN401
        pass

    assert classify(train, {"x": pl.uniform(0, 1)}) == "named"
    assert classify(train, {"y": pl.uniform(0, 1)}) == "trial"
    assert classify(train) == "trial"
    assert classify(lambda lr, width: None) == "named"


def test_the_seed_need_not_be_taken() -> None:
    assert classify(by_name, {**SPACE, "seed": pl.randint(0, 9)}) == "named"


@pytest.mark.parametrize(
    ("train", "space", "sentence"),
    [
        (lambda: None, SPACE, "takes nothing: a training function takes one argument, the trial"),
        (lambda data=1: None, SPACE, "takes data=1: a training function takes one argument"),
        (lambda trial, config: None, SPACE, "takes trial, config, and the space has lr, width: a"),
        (lambda a, b: None, SPACE, "takes a, b, and the space has lr, width: a training function"),
        (
            lambda lr, width, depth: None,
            SPACE,
            r"takes depth, and the space has only lr, width: add depth to the space, or give the "
            r"argument a default \(`depth=…`\)",
        ),
        (
            lambda lr: None,
            SPACE,
            r"the space has width, which <lambda> does not take: add the argument width, take",
        ),
        (lambda *args, **kwargs: None, SPACE, r"takes \*args, \*\*kwargs, .* add functools\.wraps"),
        (
            by_name,
            {"lr": pl.piecewise([(0, 1.0), (2, 0.1)]), "width": 3},
            r"lr changes during training, so it cannot be an argument .* read trial\['lr'\] inside",
        ),
        (Model, SPACE, r"Model is a class: .*ray_tune\.trainable\(Model\)"),
        (None, SPACE, "the training function is None, which cannot be called: give a function"),
        ({"lr": 1}, SPACE, r"the training function is \{'lr': 1\}, which cannot be called"),
    ],
)
def test_what_cannot_be_called_says_what_to_write(
    train: Any,  # noqa: ANN401
    space: dict[str, Any],
    sentence: str,
) -> None:
    with pytest.raises(SpecError, match=sentence):
        classify(train, space)


def test_async_functions_are_refused(run: Run) -> None:
    async def train(trial: Trial) -> float:
        return 1.0

    async def generate(trial: Trial) -> Any:  # noqa: ANN401
        yield 1.0

    class Asynchronous:
        async def __call__(self, trial: Trial) -> float:
            return 1.0

    for each in (train, generate, Asynchronous(), functools.partial(train)):
        with pytest.raises(SpecError, match="is async: a training function runs in a process"):
            check_function(each)
    with pytest.raises(TrialError, match="returned a coroutine: write it as `def`"):
        run(lambda trial: train(trial))


def test_a_function_without_a_signature_is_given_the_trial() -> None:
    assert classify(next, SPACE) == "trial"


def test_a_named_function_is_checked_against_a_config_that_came_from_outside(run: Run) -> None:
    with pytest.raises(SpecError, match="takes width, and the space has only lr"):
        run(by_name, config={"lr": 0.5})


# Return values


def test_a_returned_dict_is_a_report_of_its_numbers(run: Run) -> None:
    (report,) = run(lambda trial: {"loss": 0.5, "accuracy": 0.9, "note": "good"})
    assert report.metrics == {"loss": 0.5, "accuracy": 0.9}


def test_a_score_ends_the_trial_after_its_first_epoch(run: Run) -> None:
    (report,) = run(by_trial, epochs=9, goal=1)  # it does not wait at its goal
    assert (report.epoch, report.last) == (1, True)


def test_a_score_after_reports_is_one_more_report_if_it_differs(run: Run) -> None:
    def train(trial: Trial, score: Any) -> Any:  # noqa: ANN401
        for epoch in trial.epochs():
            trial.report(loss=1.0)
            if epoch == 1:
                break
        return score

    for score, losses in (
        (0.5, [(1, 1.0), (2, 1.0), (3, 0.5)]),
        ({"loss": 0.5}, [(1, 1.0), (2, 1.0), (3, 0.5)]),
        (1.0, [(1, 1.0), (2, 1.0)]),
        (None, [(1, 1.0), (2, 1.0)]),
        ({"history": [1.0, 1.0]}, [(1, 1.0), (2, 1.0)]),
        (Model(), [(1, 1.0), (2, 1.0)]),
    ):
        reports = run(functools.partial(train, score=score), epochs=9)
        assert list_losses(reports) == losses
        assert reports[-1].last is (len(losses) == 3)
    assert len(run(functools.partial(train, score=0.5), epochs=2)) == 2  # no epoch is left


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (None, r"train returned nothing and reported nothing: return a number such as the loss"),
        (Model(), r"train returned a Model and reported nothing: .* call trial\.report\(loss=…\)"),
        ((1.0, 2.0), "train returned a tuple and reported nothing"),
        (True, "train returned a bool and reported nothing"),
        ({"acc": 1}, "train reported nothing, and the returned dict has acc, but not the study's"),
    ],
)
def test_a_function_that_leaves_no_number_says_what_to_write(
    run: Run,
    value: Any,  # noqa: ANN401
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def train(trial: Trial) -> Any:  # noqa: ANN401
        return value

    monkeypatch.delitem(sys.modules, "ray.tune", raising=False)
    with pytest.raises(TrialError, match=sentence):
        run(train)


def test_a_function_that_may_report_to_ray_tune_is_told_of_its_wrapper(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray.tune", sys)
    with pytest.raises(TrialError, match=r"give pl\.integrations\.ray_tune\.trainable\(<lambda>\)"):
        run(lambda config: None)


def test_the_last_state_is_saved_with_a_returned_score(run: Run) -> None:
    def train(trial: Trial) -> float:
        trial.keep(weights=[1.0])
        return 0.5

    (report,) = run(train, epochs=9)
    assert isinstance(report.saved, CheckpointWritten)


# Generators


def test_what_a_generator_yields_is_reported(run: Run) -> None:
    def train(lr: float, width: int) -> Iterator[Any]:
        yield lr
        yield {"loss": 0.25, "accuracy": 1.0}

    def loop(trial: Trial) -> Iterator[float]:
        for epoch in trial.epochs():
            yield 1.0 / (epoch + 1)

    assert list_losses(run(train, epochs=3)) == [(1, 0.5), (2, 0.25)]
    assert list_losses(run(loop, epochs=2)) == [(1, 1.0), (2, 0.5)]


def test_a_generator_may_return_a_score(run: Run) -> None:
    def train(trial: Trial) -> Generator[float, None, float]:
        yield 1.0
        return 0.5

    assert list_losses(run(train, epochs=9)) == [(1, 1.0), (2, 0.5)]


def test_an_error_of_a_report_is_raised_where_the_generator_yields(run: Run) -> None:
    caught = []

    def train(trial: Trial) -> Iterator[Any]:
        try:
            yield "low"
        except TrialError as error:
            caught.append(str(error))
        yield 0.5

    assert list_losses(run(train, epochs=3)) == [(1, 0.5)]
    assert "was reported as the text 'low'" in caught[0]


def test_a_generator_unwinds(run: Run) -> None:
    unwound = []

    def train(trial: Trial) -> Iterator[float]:
        try:
            for _ in trial.epochs():
                yield 1.0
        finally:
            unwound.append(trial.id)

    with pytest.raises(Unwind):
        run(train, Release(), epochs=9)
    assert unwound == [3]


# Reports in every kind of function


def test_ray_s_spelling_works_in_every_kind_of_function(run: Run) -> None:
    def loop(trial: Trial) -> None:
        for epoch in trial.epochs():
            pl.report({"loss": float(epoch)})

    def named(lr: float, width: int) -> None:
        assert pl.get_checkpoint() is None
        pl.report({"loss": lr})

    assert list_losses(run(loop, epochs=2)) == [(1, 0.0), (2, 1.0)]
    assert list_losses(run(named)) == [(1, 0.5)]


def test_a_second_report_in_a_trial_of_one_epoch_says_what_to_write(run: Run) -> None:
    def train(config: dict[str, float]) -> None:
        for _ in range(3):
            pl.report({"loss": 1.0})

    with pytest.raises(TrialError, match=r"it reports more than once, .*: give epochs=N"):
        run(train)
