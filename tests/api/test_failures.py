"""Failure is loud: what a user is told when trials of a live study fail."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import paceline as pl
from paceline.cli.main import main
from paceline.engines.process.local import worker_pool

SPACE = {"lr": pl.uniform(0, 1)}


def tune(train: Any, **changes: Any) -> pl.Result:  # noqa: ANN401
    given: dict[str, Any] = {"space": SPACE, "trials": 3, "slots": 1, "name": "loud"}
    return pl.tune(train, **{**given, "progress": False, **changes})


def look_up(key: str) -> float:
    return {"loss": 1.0}[key]


def fail_after_a_report(trial: pl.Trial) -> None:
    print(f"this is trial {trial.id}")  # noqa: T201
    for _ in trial.epochs():
        trial.report(1.0)
        look_up("accuracy")


def fail_half(trial: pl.Trial) -> float:
    if trial.id % 2:
        raise ValueError("the data is odd")
    return 1.0


def test_a_study_whose_trials_all_fail_raises_with_the_traceback_and_the_output() -> None:
    with pytest.raises(pl.StudyFailed) as raised:
        tune(fail_after_a_report, epochs=3, policy="fifo")
    sentence, *details = str(raised.value).splitlines()
    assert re.fullmatch(
        r"study 'loud' failed: all 3 trials failed: "
        r"KeyError: 'accuracy' \(test_failures.py:\d+\)\.",
        sentence,
    )
    assert details[0] == "The traceback of trial 0 (the same error in trials 0-2):"
    frames = [line for line in details if line.startswith("  File")]
    assert [line.rpartition(" in ")[2] for line in frames] == ["fail_after_a_report", "look_up"]
    assert details[-2].startswith("The output of trial 0 is in ")
    assert details[-1] == "this is trial 0"


SCRIPT = """
import paceline as pl

def train(lr):
    print("before the error")
    return 1 / 0

pl.tune(train, space={"lr": pl.uniform(0, 1)}, trials=1, slots=1, progress=False)
"""


def test_the_output_that_the_error_names_is_there_after_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert ran.returncode == 1
    found = re.search(r"The output of trial 0 is in (\S+?),", ran.stderr)
    assert found is not None
    output = Path(found.group(1))
    assert output in tmp_path.glob("paceline-*/logs/attempt-*.log")
    assert output.read_text().startswith("before the error")
    assert not list(tmp_path.glob("paceline-*/checkpoints"))


def test_a_failed_study_without_output_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    script = SCRIPT.replace("slots=1", "slots='inline'")
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert ran.returncode == 1
    assert "before the error" in ran.stdout
    assert not list(tmp_path.glob("paceline-*"))


def test_a_failed_study_keeps_its_result() -> None:
    with pytest.raises(pl.StudyFailed) as raised:
        tune(fail_after_a_report, epochs=3, policy="fifo")
    result = raised.value.result
    assert result.end == "failed"
    assert result.best.value == 1.0
    # The first is tried again; the others fail with an error that the study knows.
    assert [trial.failures for trial in result.trials] == [2, 1, 1]
    for trial in result.trials:
        assert trial.error.endswith("KeyError: 'accuracy'")
        assert f"this is trial {trial.id}\n" in trial.output.read_text(encoding="utf-8")
    story = result.story(1)
    assert 'return {"loss": 1.0}[key]' in story
    assert "is given up: KeyError at test_failures.py" in story
    assert "again: the same error is not retried" in story


def test_many_failed_trials_are_a_warning_that_names_the_error() -> None:
    with pytest.warns(pl.PacelineWarning) as caught:
        result = tune(fail_half, retries=0, trials=4)
    (warning,) = caught
    assert "2 of 4 trials of study 'loud' failed" in str(warning.message)
    assert "in 2 trials, is ValueError: the data is odd (test_failures.py:" in str(warning.message)
    assert warning.filename == __file__
    assert result.best.error is None
    assert [trial.status for trial in result.trials] == ["finished", "failed"] * 2


def test_few_failed_trials_are_no_warning() -> None:
    def fail_once(trial: pl.Trial) -> float:
        if not trial.id:
            raise ValueError("it fails")
        return 1.0

    result = tune(fail_once, retries=0, trials=4)
    assert [trial.status for trial in result.trials].count("failed") == 1


def test_a_trial_that_recovered_keeps_its_last_error(tmp_path: Path) -> None:
    def fail_first(trial: pl.Trial) -> float:
        mark = tmp_path / "mark"
        if not mark.exists():
            mark.touch()
            raise OSError("the disk is slow")
        return 1.0

    (trial,) = tune(fail_first, trials=1).trials
    assert (trial.status, trial.failures) == ("finished", 1)
    assert trial.error is not None
    assert trial.error.endswith("OSError: the disk is slow")


def test_each_failed_attempt_is_logged_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING, logger="paceline"),
        pytest.warns(pl.PacelineWarning, match="failed"),
    ):
        tune(fail_half, retries=0, trials=4)
    failed = [record.getMessage() for record in caplog.records if "failed" in record.getMessage()]
    assert len(failed) == 2
    assert re.match(
        r"attempt 1 of trial 1: failed at \S*test_failures.py:\d+; its output", failed[0]
    )
    assert "ValueError: the data is odd" in failed[0]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), "every reported value is NaN or infinite"),
        (float("-inf"), "every reported value is NaN or infinite"),
    ],
)
def test_the_best_of_a_study_without_a_number_is_an_error(value: float, why: str) -> None:
    result = tune(lambda trial: value, trials=1, slots="inline")
    with pytest.raises(pl.NoResult, match=why):
        _ = result.best
    assert result.best_or_none is None
    assert result.summary().best_value is None
    assert "no value" in repr(result)


def test_a_command_line_study_whose_trials_all_fail_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.py").write_text(
        "import paceline as pl\n\n"
        "def train(trial):\n    for _ in trial.epochs():\n        trial.report(1.0)\n"
        "        nope\n\n"
        "study = pl.Study(train, space={'lr': pl.uniform(0, 1)}, trials=2, slots=1, epochs=2)\n",
        encoding="utf-8",
    )
    assert main(["run", "study.py", "--quiet", "--no-report"]) == 1
    printed = capsys.readouterr().err
    assert "all 2 trials failed: NameError: name 'nope' is not defined (study.py:6)." in printed
    assert "    nope\n" in printed


def test_a_function_with_large_data_is_a_warning_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = bytes(2_000_000)

    def train(trial: pl.Trial) -> float:
        return float(len(data))

    monkeypatch.setattr(worker_pool, "_LARGE_BYTES", 1_000_000)
    with pytest.warns(pl.PacelineWarning, match=r"train takes 2 MB .*, most of it in data: load"):
        worker_pool.pack_function(train)
