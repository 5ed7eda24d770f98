"""Failed trials: what is retried, what a study without a result ends with, what it says."""

from __future__ import annotations

from typing import Any

import pytest
from machine_bench import MachineBench

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.codec import decode_step, encode_step
from paceline.core.values import Budget, Status
from paceline.machine.failed_trials import find_commonest
from paceline.machine.failures import Failure, shorten_place
from paceline.policies.fifo import Fifo

TRACE = 'Traceback (most recent call last):\n  File "train.py", line 12, in train\n'
NOT_RETRIED = "TypeError at train.py:12 again: the same error is not retried"


def fail(
    bench: MachineBench, attempt: int, error: str = "TypeError", place: str = "/home/me/train.py:12"
) -> tuple[d.AnyDecision, ...]:
    """Let an attempt end by an exception; return what is decided."""
    event = e.Ended(
        at=bench.at,
        attempt=attempt,
        cause=e.Cause.FAILED,
        note=f"{TRACE}{error}: it is wrong" if error else "its process exited with code 3",
        error=error,
        place=place,
    )
    return bench.say(event)


def make_bench(trials: int = 4, **spec: Any) -> MachineBench:  # noqa: ANN401
    return MachineBench(Fifo(), [{"a": number} for number in range(trials)], **spec)


def test_the_same_error_at_the_same_line_is_retried_once_in_a_study() -> None:
    bench = make_bench()
    bench.report(0, 0.5)
    (again,) = fail(bench, 0)
    assert isinstance(again, d.Launch)
    given_up, *_ = fail(bench, 1)
    assert given_up == d.Fail(trial=0, why=NOT_RETRIED)
    given_up, *_ = fail(bench, 2)
    assert given_up == d.Fail(trial=1, why=NOT_RETRIED)


def test_a_breakpoint_in_a_worker_process_is_retried_once_in_a_study() -> None:
    bench = make_bench(retries=9)
    bench.report(0, 0.5)
    assert isinstance(fail(bench, 0, "BdbQuit")[0], d.Launch)
    given_up, *_ = fail(bench, 1, "BdbQuit")
    why = "BdbQuit at train.py:12 again: the same error is not retried"
    assert given_up == d.Fail(trial=0, why=why)


@pytest.mark.parametrize(
    ("error", "place"),
    [
        ("ValueError", "train.py:12"),
        ("RuntimeError", "train.py:12"),
        ("OSError", "train.py:12"),
        ("TypeError", ""),
        ("", ""),
    ],
)
def test_an_error_that_may_pass_is_retried_as_often_as_the_study_says(
    error: str, place: str
) -> None:
    bench = make_bench(retries=2)
    bench.report(0, 0.5)
    assert isinstance(fail(bench, 0, error, place)[0], d.Launch)
    assert isinstance(fail(bench, 1, error, place)[0], d.Launch)
    given_up = fail(bench, 2, error, place)[0]
    assert isinstance(given_up, d.Fail)
    assert given_up.why.startswith("failure 3, and only 2 may be retried: ")


def test_the_same_error_at_another_line_is_retried() -> None:
    bench = make_bench()
    bench.report(0, 0.5)
    assert isinstance(fail(bench, 0, place="train.py:12")[0], d.Launch)
    assert isinstance(fail(bench, 1, place="train.py:13")[0], d.Launch)
    assert isinstance(fail(bench, 2, place="train.py:12")[0], d.Fail)


def test_a_folded_log_knows_the_errors_that_are_not_retried() -> None:
    bench = make_bench()
    steps = [
        bench.machine.handle(
            e.Ended(
                at=1.0,
                attempt=attempt,
                cause=e.Cause.FAILED,
                note="TypeError: x",
                error="TypeError",
                place="a.py:1",
            )
        )
        for attempt in (0, 1)
    ]
    again = make_bench()
    for step in steps:
        again.machine.fold(decode_step(encode_step(step)))
    assert again.state.errors == bench.state.errors == {("TypeError", "a.py:1"): 2}
    assert again.state.trials[0].failure == bench.state.trials[0].failure
    assert isinstance(fail(again, 2, place="a.py:1")[0], d.Fail)


def test_a_log_of_an_attempt_without_the_new_fields_still_opens() -> None:
    step = decode_step(
        '{"number":3,"event":{"type":"ended","at":1.0,"attempt":0,"cause":"failed"}}'
    )
    assert isinstance(step.event, e.Ended)
    assert (step.event.error, step.event.place) == ("", "")
    assert b"place" not in encode_step(step)


# How the study ends


def find_end(decisions: tuple[d.AnyDecision, ...]) -> d.End:
    (end,) = (each for each in decisions if isinstance(each, d.End))
    return end


def test_a_study_whose_trials_all_failed_after_their_reports_has_failed() -> None:
    bench = make_bench(2, retries=0)
    bench.report(0, 0.5)
    fail(bench, 0, "ValueError")
    bench.report(1, 0.4)
    end = find_end(fail(bench, 1, "ValueError"))
    assert end.cause is d.EndCause.FAILED
    assert end.why == "all 2 trials failed: ValueError: it is wrong (train.py:12)"


def test_a_study_with_a_failed_trial_and_no_number_has_failed() -> None:
    bench = make_bench(2, retries=0)
    fail(bench, 0, "ValueError")
    bench.report(1, None)
    end = find_end(bench.end(1, e.Cause.FINISHED))
    assert end.cause is d.EndCause.FAILED
    assert end.why.startswith("no trial reported a number, and 1 of 2 trials failed: ValueError")


def test_a_study_with_a_result_ends_as_ever_if_some_trials_failed() -> None:
    bench = make_bench(2, retries=0, epochs=1)
    fail(bench, 0, "ValueError")
    bench.report(1, 0.5)
    assert find_end(bench.end(1, e.Cause.FINISHED)).cause is d.EndCause.QUIET
    assert bench.state.failed == 1
    assert bench.state.last_failure == bench.state.trials[0].failure


def test_a_study_that_failed_before_its_deadline_says_both() -> None:
    bench = make_bench(2, retries=0, budget=Budget(deadline_s=9.0))
    fail(bench, 0, "ValueError")
    end = find_end(bench.say(e.Woke(at=9.0)))
    assert end.cause is d.EndCause.FAILED
    assert end.why.startswith("the deadline of 9 s has come, and no trial reported a number")


def test_a_study_that_a_command_ends_has_not_failed() -> None:
    bench = make_bench(2, retries=0)
    fail(bench, 0, "ValueError")
    end = find_end(bench.say(e.Commanded(at=1.0, number=1, command=e.StopStudy())))
    assert end.cause is d.EndCause.COMMAND


def test_the_commonest_error_is_named_with_its_share() -> None:
    bench = make_bench(4, retries=0)
    bench.report(0, 0.5)
    for attempt, error in enumerate(["ValueError", "OSError", "OSError"]):
        fail(bench, attempt, error)
    end = find_end(fail(bench, 3, ""))
    assert end.why == "all 4 trials failed, 2 of them: OSError: it is wrong (train.py:12)"
    found = find_commonest(bench.state.trials)
    assert found is not None
    assert found[1] == [1, 2]
    assert all(trial.status is Status.FAILED for trial in bench.state.trials)


# Words


@pytest.mark.parametrize(
    ("failure", "headline"),
    [
        (("KeyError", "/a/b.py:3", f"{TRACE}KeyError: 'lr'"), "KeyError: 'lr' (b.py:3)"),
        (("Bad", "b.py:3", f"{TRACE}my.lib.Bad: one\ntwo"), "my.lib.Bad: one (b.py:3)"),
        (("TrialError", "b.py:3", "TrialError: do this."), "TrialError: do this (b.py:3)"),
        (("SystemExit", "b.py:3", f"{TRACE}SystemExit"), "SystemExit (b.py:3)"),
        (("KeyError", "b.py:3", ""), "KeyError (b.py:3)"),
        (("", "", "its process exited with code 3"), "its process exited with code 3"),
        (("", "", "its process exited with code 3; its output ends:\nhi"), "its process exited"),
        (("", "", ""), "it failed without a word"),
    ],
)
def test_a_failure_has_a_headline_with_its_place(
    failure: tuple[str, str, str], headline: str
) -> None:
    assert Failure(0, 0, *failure).headline.startswith(headline)


def test_a_place_is_shown_without_its_folders() -> None:
    assert shorten_place("C:\\me\\train.py:1") == "train.py:1"
    assert shorten_place("<stdin>:1") == "<stdin>:1"
