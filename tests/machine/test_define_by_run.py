"""The machine with functions that ask for their hyperparameters, prune themselves, and return."""

from __future__ import annotations

from typing import Any

from machine_bench import MachineBench, ScriptedPolicy

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.domains import Domain, FloatDomain
from paceline.core.values import Status
from paceline.machine.machine import NO_PARAMS

X: dict[str, Domain] = {"x": FloatDomain(low=0.0, high=1.0)}


def open_bench(configs: int = 2, **spec: Any) -> MachineBench:  # noqa: ANN401
    """Return a machine with one slot whose generator knows nothing yet."""
    return MachineBench(ScriptedPolicy(), [{}] * configs, define_by_run=True, **spec)


def suggest(bench: MachineBench, attempt: int, value: float) -> None:
    trial = bench.state.attempts[attempt].trial.id
    event = e.Suggested(at=bench.at, attempt=attempt, trial=trial, params={"x": value}, domains=X)
    assert bench.say(event) == ()


def test_what_a_function_used_becomes_its_config_also_for_a_retry() -> None:
    bench = open_bench()
    suggest(bench, 0, 0.25)
    trial = bench.state.trials[0]
    assert (trial.config, trial.domains) == ({"x": 0.25}, X)
    (launch,) = bench.end(0, e.Cause.FAILED, "ValueError: oops")
    assert isinstance(launch, d.Launch)
    assert bench.state.config(launch.trial) == {"x": 0.25}


def test_what_an_attempt_tells_after_its_end_changes_nothing() -> None:
    bench = open_bench()
    bench.end(0, e.Cause.LOST)
    bench.say(e.Suggested(at=1.0, attempt=0, trial=0, params={"x": 0.5}, domains=X))
    bench.say(e.Annotated(at=1.0, attempt=0, trial=0, attrs={"a": 1}))
    assert (bench.state.trials[0].config, bench.state.trials[0].attrs) == ({}, {})


def test_attributes_add_up() -> None:
    bench = open_bench()
    bench.say(e.Annotated(at=1.0, attempt=0, trial=0, attrs={"a": 1, "b": 2}))
    bench.say(e.Annotated(at=1.0, attempt=0, trial=0, attrs={"b": 3}))
    assert bench.state.trials[0].attrs == {"a": 1, "b": 3}


def test_a_function_that_raises_trial_pruned_is_stopped_and_not_retried() -> None:
    bench = open_bench()
    suggest(bench, 0, 0.5)
    bench.report(0, 1.0)
    stop, *others = bench.end(0, e.Cause.PRUNED)
    assert stop == d.Stop(trial=0, why="its function raised TrialPruned")
    assert bench.state.trials[0].ended is Status.STOPPED
    assert [type(each) for each in others] == [d.Open, d.Launch]


def test_a_trial_that_the_policy_has_stopped_is_not_stopped_again() -> None:
    policy = ScriptedPolicy()
    policy.verdicts[0, 1] = (d.Stop(trial=0, why="it is slow"),)
    bench = MachineBench(policy, [{"a": 1}])
    bench.report(0, 1.0)
    assert not [each for each in bench.end(0, e.Cause.PRUNED) if isinstance(each, d.Stop)]


def test_a_trial_finishes_with_the_report_its_function_returned_with() -> None:
    policy = ScriptedPolicy()
    policy.verdicts[0, 2] = (d.Stop(trial=0, why="it is worse than others"),)
    bench = MachineBench(policy, [{"a": 1}])
    bench.report(0, 1.0)
    report = e.Reported(at=2.0, attempt=0, epoch=2, metrics={"loss": 0.5}, seconds=1.0, last=True)
    decided = bench.say(report)
    trial = bench.state.trials[0]
    assert (trial.ended, trial.epoch, trial.best_loss) == (Status.FINISHED, 2, 0.5)
    # Neither the policy nor the machine ends the attempt: it ends by itself.
    assert not [each for each in decided if isinstance(each, d.Stop | d.Halt)]
    assert bench.state.attempts
    bench.end(0, e.Cause.FINISHED)
    assert bench.state.end is not None


def test_a_study_whose_function_asks_for_nothing_opens_no_further_trials() -> None:
    bench = open_bench(configs=9)
    report = e.Reported(at=2.0, attempt=0, epoch=1, metrics={"loss": 0.5}, seconds=1.0, last=True)
    bench.say(report)
    closed, *_ = bench.end(0, e.Cause.FINISHED)
    assert closed == d.Close(why=NO_PARAMS)
    assert len(bench.state.trials) == 1
    assert bench.state.end is not None


def test_a_study_goes_on_while_its_trials_fail_before_they_ask() -> None:
    bench = open_bench(configs=9, retries=0)
    opened, *_ = [each for each in bench.end(0, e.Cause.FAILED) if isinstance(each, d.Open)]
    assert opened.trial == 1
    assert not bench.state.closed
