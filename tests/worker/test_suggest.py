"""What a training function asks for while it runs, and what it learns of the policy's decisions."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
import pytest
from trials import TrialUnderTest, make_start

import paceline as pl
from paceline.core.domains import FloatDomain, IntDomain
from paceline.worker.protocol import (
    AskJudgement,
    AttrsSet,
    EpochReport,
    ParamsUsed,
    Release,
    ReportJudged,
    UpdateOrder,
)
from paceline.worker.stop_request import Unwind
from paceline.worker.suggest import is_pruned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Open = Callable[..., TrialUnderTest]


@pytest.fixture
def open_trial(tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens a trial whose function asks for its hyperparameters."""
    opened: list[TrialUnderTest] = []

    def make(**changes: Any) -> TrialUnderTest:  # noqa: ANN401
        start = make_start(tmp_path, **{"config": {}, "define_by_run": True, **changes})
        opened.append(TrialUnderTest(start))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def test_a_proposed_value_is_used_if_the_domain_holds_it(open_trial: Open) -> None:
    trial = open_trial(config={"lr": 0.25, "layers": 7, "act": None}).trial
    assert trial.suggest_float("lr", 0.0, 1.0) == 0.25
    assert 1 <= trial.suggest_int("layers", 1, 3) <= 3
    assert trial.suggest_categorical("act", ["relu", None]) is None
    assert trial.params == trial.config
    assert list(trial.params) == ["lr", "layers", "act"]


def test_a_value_that_was_not_proposed_is_drawn_by_seed_trial_and_name(open_trial: Open) -> None:
    def draw(**changes: Any) -> tuple[float, float]:  # noqa: ANN401
        trial = open_trial(**changes).trial
        return trial.suggest_float("a", 0, 1), trial.suggest_float("b", 0, 1)

    first = draw()
    assert first == draw()
    assert first[0] != first[1]
    assert draw(trial=4) != first
    assert draw(seed=6) != first


def test_asking_twice_returns_the_same_value(open_trial: Open) -> None:
    trial = open_trial().trial
    assert trial.suggest_float("x", 0, 1) == trial.suggest_float("x", 0, 1)
    two_ways = "'x' was asked for in two ways in one trial, as a number from 0 to 1 and as a whole"
    with pytest.raises(pl.TrialError, match=two_ways):
        trial.suggest_int("x", 0, 1)


def test_a_choice_is_returned_as_it_was_given(open_trial: Open) -> None:
    trial = open_trial(config={"shape": [64, 32]}).trial
    assert trial.suggest_categorical("shape", [(8,), (64, 32)]) == (64, 32)


def test_scalars_of_numpy_are_choices(open_trial: Open) -> None:
    trial = open_trial(config={"width": 32, "rate": 0.5}).trial
    assert trial.suggest_categorical("width", np.array([16, 32])) == 32
    assert trial.suggest_categorical("rate", [np.float32(0.25), np.float32(0.5)]) == 0.5
    assert [type(each) for each in trial.params.values()] == [int, float]
    with pytest.raises(pl.TrialError, match="choice 0 is of class ndarray, which cannot be"):
        trial.suggest_categorical("both", [np.array([1, 2])])


def test_what_was_used_is_told_once_before_the_report(open_trial: Open) -> None:
    under = open_trial()
    x = under.trial.suggest_float("x", 0, 1, step=0.5)
    under.trial.set_user_attr("size", 3)
    under.trial.report(0.5, 0)
    under.trial.report(0.4, 1)
    used, noted, *reports = under.read()
    assert used == ParamsUsed(params={"x": x}, domains={"x": FloatDomain(low=0, high=1, step=0.5)})
    assert noted == AttrsSet(attrs={"size": 3})
    assert [type(each) for each in reports] == [EpochReport, EpochReport]


def test_a_hyperparameter_asked_for_later_is_told_with_the_next_report(open_trial: Open) -> None:
    under = open_trial()
    under.trial.suggest_int("n", 1, 4)
    under.trial.report(0.5, 0)
    under.trial.suggest_int("late", 1, 4)
    under.trial.report(0.4, 1)
    told = [each for each in under.read() if isinstance(each, ParamsUsed)]
    assert [sorted(each.params) for each in told] == [["n"], ["late", "n"]]
    assert told[1].domains["late"] == IntDomain(low=1, high=4)


def test_a_study_with_a_space_gives_the_values_of_its_space(open_trial: Open) -> None:
    under = open_trial(config={"lr": 0.1}, define_by_run=False)
    assert under.trial.suggest_float("lr", 0.0, 1.0) == 0.1
    with pytest.raises(pl.TrialError, match="asks for 'width', and the study's space has lr"):
        under.trial.suggest_int("width", 1, 8)
    with pytest.raises(pl.TrialError, match=r"lr=0\.1 comes from the study's space, and the"):
        open_trial(config={"lr": 0.1}, define_by_run=False).trial.suggest_float("lr", 1, 2)
    under.trial.report(0.5)
    assert not [each for each in under.read() if isinstance(each, ParamsUsed)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda trial: trial.suggest_float("x", 1, 0),
            r"suggest_float\('x', …\): low=1.0 is above",
        ),
        (lambda trial: trial.suggest_int("x", 0, 1.5), "1.5 is not a whole number"),
        (lambda trial: trial.suggest_int("x", 0, 9, log=True), "low=0 has no logarithm"),
        (lambda trial: trial.suggest_categorical("x", "abc"), "is a string: give a list"),
        (lambda trial: trial.suggest_categorical("x", [int]), "choice 0 is of class type"),
        (lambda trial: trial.suggest_float("", 0, 1), "is named ''"),
        (lambda trial: trial.set_user_attr("model", object()), "'model' is of class object"),
    ],
)
def test_a_mistake_is_answered_in_a_sentence(
    call: Callable[[Any], Any], message: str, open_trial: Open
) -> None:
    with pytest.raises(pl.TrialError, match=message):
        call(open_trial().trial)


def test_names_that_optuna_has_dropped_say_what_to_write(open_trial: Open) -> None:
    with pytest.raises(AttributeError, match=r"use trial.suggest_float\(name, low, high, log=True"):
        open_trial().trial.suggest_loguniform("x", 1, 2)
    with pytest.raises(AttributeError, match=r"the trial has no .*'sugest_float'"):
        open_trial().trial.sugest_float("x", 1, 2)


# should_prune


def answer(under: TrialUnderTest, *messages: Any) -> threading.Thread:  # noqa: ANN401
    """Answer the trial's next question from another thread."""

    def work() -> None:
        while not isinstance(under.driver.receive(wait=True), AskJudgement):
            pass
        for message in messages:
            under.driver.send(message)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_trial_goes_on_if_the_policy_lets_it(open_trial: Open) -> None:
    under = open_trial()
    under.trial.report(0.5, 0)
    thread = answer(under, ReportJudged(epoch=1, stops=False))
    assert not under.trial.should_prune()
    thread.join()


def test_a_trial_that_the_policy_stopped_is_told_to_prune(open_trial: Open) -> None:
    under = open_trial()
    under.trial.report(0.5, 0)
    # The signal comes between the report and the question: the function is not interrupted.
    under.stop.handle_signal()
    assert under.trial.should_prune()
    with pytest.raises(Unwind):
        under.trial.report(0.4, 1)


def test_the_answer_may_come_before_the_signal(open_trial: Open) -> None:
    under = open_trial()
    under.trial.report(0.5, 0)
    thread = answer(under, ReportJudged(epoch=1, stops=True))
    assert under.trial.should_prune()
    thread.join()
    under.stop.handle_signal()  # while the function raises TrialPruned
    assert under.trial.should_prune()


def test_a_trial_that_is_paused_at_its_goal_is_told_to_prune(open_trial: Open) -> None:
    under = open_trial(goal=1)
    under.trial.report(0.5, 0)
    thread = answer(under, ReportJudged(epoch=1, stops=False), Release())
    assert under.trial.should_prune()
    thread.join()


def test_a_trial_whose_goal_is_raised_goes_on(open_trial: Open) -> None:
    under = open_trial(goal=1)
    under.trial.report(0.5, 0)
    order = UpdateOrder(version=1, config={}, goal=3, save_at=())
    thread = answer(under, ReportJudged(epoch=1, stops=False), order)
    assert not under.trial.should_prune()
    thread.join()
    under.trial.report(0.5, 1)


def test_a_function_that_never_asks_is_ended_at_its_report(open_trial: Open) -> None:
    under = open_trial(goal=2)
    under.trial.report(0.5, 0)
    under.driver.send(Release())
    with pytest.raises(Unwind):
        under.trial.report(0.4, 1)


def test_a_driver_that_is_gone_ends_the_trial(open_trial: Open) -> None:
    under = open_trial()
    under.trial.report(0.5, 0)
    under.driver.close()
    assert under.trial.should_prune()


def test_without_a_report_there_is_nothing_to_ask(open_trial: Open) -> None:
    assert not open_trial().trial.should_prune()


def test_a_step_that_was_reported_before_is_ignored_as_by_optuna(open_trial: Open) -> None:
    under = open_trial()
    for step in (0, 2, 2, 1):
        under.trial.report(0.5, step)
    assert len([each for each in under.read() if isinstance(each, EpochReport)]) == 2


def test_trial_pruned_is_recognised_by_its_name() -> None:
    class Mine(pl.TrialPruned):
        pass

    class TrialPruned(Exception):
        """Another library's."""

    assert is_pruned(optuna.TrialPruned())
    assert is_pruned(Mine())
    assert not is_pruned(TrialPruned())
