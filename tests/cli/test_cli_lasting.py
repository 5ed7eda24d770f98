"""Commands for studies that last: extend, logs, export, best with its checkpoint, and rm."""

from __future__ import annotations

import csv
import json
import sys
from typing import TYPE_CHECKING

import pytest
from command_line import CommandLine, CommandResult, run_command
from running_command import RunningCommand, write_study_file

import paceline as pl
from paceline.api.study_files import find_places
from paceline.core.errors import StudyRunning
from paceline.store import open_store

if TYPE_CHECKING:
    from pathlib import Path

STUDY = """
import time
from pathlib import Path

import paceline as pl

FOLDER = Path(__file__).parent


def train(trial):
    done = trial.keep(done=[0])
    for _ in trial.epochs():
        done[0] += 1
        print(f"epoch {done[0]} of trial {trial.id}", flush=True)
        trial.report(loss=trial["lr"] / done[0], done=done[0])
        while (FOLDER / "hold").exists():
            time.sleep(0.01)


study = pl.Study(
    train, space={"lr": pl.uniform(0.1, 1.0), "lists": {"choice": [[1, 2]]}}, metric="loss",
    mode="min", epochs=2, trials=1, slots=1, policy="fifo", generator="random",
)
"""
QUIET = ("--quiet", "--no-report")


def write(folder: Path) -> None:
    write_study_file(folder, "study.py", STUDY)


@pytest.fixture
def paceline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    return CommandLine(tmp_path, capsys, monkeypatch)


def check(ran: CommandResult, *parts: str, code: int = 0) -> None:
    assert ran.code == code, ran
    for part in parts:
        assert part in ran.out + ran.err


def test_a_study_of_a_file_is_extended_shown_exported_and_deleted(
    tmp_path: Path, paceline: CommandLine
) -> None:
    write(tmp_path)
    check(run_command(tmp_path, "run", "study.py", "--name", "it", *QUIET))
    check(paceline("extend", "it"), "nothing to extend", "--trials", code=2)
    check(run_command(tmp_path, "extend", "it", "--trials", "2", "--epochs", "3", *QUIET))
    check(paceline("story", "it"), "study 'it' is extended to 2 trials and 3 epochs")
    check(paceline("replay", "it"), "identical: ")
    # The new limits are the study's own: `resume` has nothing to do.
    check(paceline("resume", "it"), "study 'it' has ended")
    _look_at_it(tmp_path, paceline)
    files = tmp_path / "paceline.files"
    assert list(files.glob("*/checkpoints/*.ckpt"))
    (next(files.iterdir()) / "mine.txt").write_text("not of the study")
    check(paceline("rm", "it"), "this would delete study 'it' with 2 trials", "--yes", code=2)
    check(paceline("rm", "it", "--yes"), "deleted study 'it' with 2 trials")
    check(paceline("ls"), "no studies yet")
    assert [path.name for path in files.rglob("*") if path.is_file()] == ["mine.txt"]
    check(paceline("rm", "it", "--yes"), "there is no study 'it'", code=2)


def _look_at_it(folder: Path, paceline: CommandLine) -> None:
    best = json.loads(paceline("best", "it", "--json").out)
    assert (folder / best["checkpoint"]["path"]).exists()
    check(paceline("best", "it"), "checkpoints/")
    printed = paceline("logs", "it", "0").out
    assert [line for line in printed.splitlines() if line.startswith("epoch")] == [
        f"epoch {epoch} of trial 0" for epoch in (1, 2, 3)
    ]
    assert printed.count("--- attempt") == 2
    assert paceline("logs", "it", "0", "--attempt", "0").out.splitlines() == [
        "epoch 1 of trial 0",
        "epoch 2 of trial 0",
    ]
    check(paceline("logs", "it", "0", "--attempt", "9"), "did not train for trial 0", code=2)
    check(paceline("logs", "it", "7"), "trial 7 does not exist", "has 2 trials", code=2)
    _export_it(folder, paceline)


def _export_it(folder: Path, paceline: CommandLine) -> None:
    check(paceline("export", "it", "it.csv"), "it.csv: 2 trials")
    with (folder / "it.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["trial"], row["epochs"], row["config.lists"]) for row in rows] == [
        ("0", "3", "[1,2]"),
        ("1", "3", "[1,2]"),
    ]
    check(paceline("export", "it", "it.csv"), "exists already", code=2)
    check(paceline("export", "it", "it.json"), "it.json: 2 trials")
    whole = json.loads((folder / "it.json").read_text())
    assert [trial["metrics"]["done"] for trial in whole["trials"]] == [[1, 2, 3]] * 2
    check(paceline("export", "it", "it.jsonl.gz"), "2 runs")
    check(paceline("export", "it", "it.xlsx"), "no known suffix", ".csv", ".jsonl.gz", code=2)


def test_a_parquet_file_is_written_where_pandas_and_pyarrow_are_installed(
    tmp_path: Path, paceline: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    check(run_command(tmp_path, "run", "study.py", "--name", "it", *QUIET))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyarrow", None)
        check(paceline("export", "it", "it.parquet"), "needs pyarrow", "pip install", code=2)


def test_a_running_study_is_extended_by_its_driver_and_cannot_be_deleted(
    tmp_path: Path, paceline: CommandLine
) -> None:
    write(tmp_path)
    (tmp_path / "hold").touch()
    with RunningCommand(tmp_path, "paceline", "run", "study.py", "--name", "it") as running:
        running.until("new best")
        check(paceline("rm", "it", "--yes"), "is running", "paceline stop it", code=2)
        store = open_store("paceline.db", create=False)
        with pytest.raises(StudyRunning):
            find_places(store, "paceline.db", "it")
        store.close()
        check(paceline("extend", "it", "--slots", "2"), "paceline slots", code=2)
        check(paceline("extend", "it", "--trials", "2", "--epochs", "3"), "asked study 'it'")
        running.until("is extended to 2 trials and 3 epochs")
        (tmp_path / "hold").unlink()
        ran = running.end()
    assert ran.code == 0, ran.err
    result = pl.load("it", tmp_path / "paceline.db")
    assert [trial.metrics["done"] for trial in result.trials] == [[1, 2, 3]] * 2
    check(paceline("replay", "it"), "identical: ")


def test_output_is_followed_until_the_study_has_no_driver(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "hold").touch()
    with RunningCommand(tmp_path, "paceline", "run", "study.py", "--name", "it") as running:
        running.until("new best")
        with RunningCommand(tmp_path, "paceline", "logs", "it", "0", "-f") as following:
            following.until("epoch 1 of trial 0")
            (tmp_path / "hold").unlink()
            following.until("epoch 2 of trial 0")
            running.end()
            assert following.end().code == 0


def test_a_study_of_a_program_says_how_it_is_extended(
    tmp_path: Path, paceline: CommandLine
) -> None:
    write(tmp_path)
    program = STUDY.replace("study = pl.Study(", "pl.tune(").replace(
        "slots=1", 'slots=1, name="it", store="paceline.db", progress=False'
    )
    (tmp_path / "program.py").write_text(program)
    with RunningCommand(tmp_path, sys.executable, "program.py") as running:
        assert running.end().code == 0
    check(
        paceline("extend", "it", "--trials", "3"),
        "was not started by `paceline run`",
        "run the program that started it with the new options",
        code=2,
    )


def test_the_demos_store_is_found_where_it_is_the_only_one(
    tmp_path: Path, paceline: CommandLine
) -> None:
    write(tmp_path)
    (tmp_path / "paceline-demo").mkdir()
    store = "paceline-demo/paceline.db"
    check(run_command(tmp_path, "run", "study.py", "--name", "demo", "--store", store, *QUIET))
    check(paceline("ls"), "demo")
    check(paceline("best", "demo"), "loss")
    # A store of one's own comes first.
    check(run_command(tmp_path, "run", "study.py", "--name", "own", *QUIET))
    assert "demo" not in paceline("ls").out
