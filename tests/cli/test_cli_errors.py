"""Mistakes, as users make them: one line on standard error, exit code 2, nothing written."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from cli_kit import Here, Ran, outside, put, tiny

from paceline.api.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from paceline.core.decisions import Step

HEADER = '{"paceline_trace":1,"name":"t","metric":"acc","mode":"max","max_epochs":3}'
GOOD = '{"id":0,"config":{"lr":0.1},"values":[0.1,0.2],"seconds":1.0}'
BROKEN = '{"id":1,"config":{"lr":0.2},"values":[0.1,"high"],"seconds":1.0}'
SHORT = '{"id":1,"config":{"lr":0.2},"values":[0.1,0.2],"seconds":[1.0]}'
SILENT = '{"id":0,"config":{"lr":0.1},"values":[null,null],"seconds":1.0}'


def trace(*lines: str) -> Callable[[Path], None]:
    """Return what writes a trace of these lines."""

    def write(folder: Path) -> None:
        (folder / "t.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")

    return write


def nothing(folder: Path) -> None:
    """Leave the folder empty."""


def study(folder: Path) -> None:
    """Keep one study in the default store."""
    log: list[Step] = []
    simulation = Simulation(source=str(tiny(folder / "t.jsonl")), slots=2)
    simulation.run(name="mine", remember=log.extend)
    put(str(folder / "paceline.db"), "mine", log)


def newer_store(folder: Path) -> None:
    """Make a store that a later version has written."""
    study(folder)
    with closing(sqlite3.connect(folder / "paceline.db")) as store:
        store.execute("update paceline_store set version = 99")
        store.commit()


def simulate(*options: str) -> tuple[str, ...]:
    """Return a command line on the trace."""
    return ("simulate", "t.jsonl", "--policy", "asha", "--name", "new", *options)


# Through the installed command, in a process of its own.
AS_USERS_DO = {
    "a broken line": (trace(HEADER, GOOD, BROKEN), simulate(), ["t.jsonl:3:", "values[1]"]),
    "an empty trace": (trace(HEADER), simulate(), ["t.jsonl", "no runs"]),
    "a trace without numbers": (trace(HEADER, SILENT), simulate(), ["t.jsonl", "no run has a num"]),
    "an unknown policy": (
        trace(HEADER, GOOD),
        ("simulate", "t.jsonl", "--policy", "ashaa"),
        ["unknown policy 'ashaa'", "did you mean 'asha'?"],
    ),
    "an unknown parameter": (
        trace(HEADER, GOOD),
        ("simulate", "t.jsonl", "--policy", "asha:eat=3"),
        ["'eat'", "did you mean 'eta'?"],
    ),
    "zero slots": (trace(HEADER, GOOD), simulate("--slots", "0"), ["slots=0"]),
    "a bad duration": (trace(HEADER, GOOD), simulate("--deadline", "soon"), ["'soon'", "1h30m"]),
    "a negative deadline": (trace(HEADER, GOOD), simulate("--deadline", "-5"), ["'-5'"]),
    "an order that is none": (trace(HEADER, GOOD), simulate("--order", "best"), ["'--order'"]),
    "a name that is taken": (
        study,
        ("simulate", "t.jsonl", "--name", "mine"),
        ["study 'mine' exists already"],
    ),
    "no store to list": (nothing, ("ls",), ["there is no store at"]),
    "no store to show": (
        nothing,
        ("show", "mine", "--store", "x.db"),
        ["no store at x.db"],
    ),
    "an unknown study": (study, ("show", "main"), ["no study 'main'", "did you mean 'mine'?"]),
    "a store of a newer version": (newer_store, ("ls",), ["version 99", "upgrade"]),
    "a trial that is none": (study, ("story", "mine", "99"), ["there is no trial 99"]),
}

# Through the same entry point in this process, which is quicker.
HERE = {
    "too few durations": (trace(HEADER, GOOD, SHORT), simulate(), ["t.jsonl:3:", "field seconds"]),
    "an empty file": (trace(""), simulate(), ["t.jsonl", "empty"]),
    "no trace": (nothing, simulate(), ["t.jsonl: there is no such file"]),
    "a parameter of the wrong kind": (
        trace(HEADER, GOOD),
        ("simulate", "t.jsonl", "--policy", "asha:eta=three"),
        ["eta='three'"],
    ),
    "an unknown parameter of a workload": (
        nothing,
        ("simulate", "toy:epoch=3", "--name", "new"),
        ["'epoch'", "did you mean 'epoch"],
    ),
    "a parameter of a workload of the wrong kind": (
        nothing,
        ("simulate", "toy:epochs=many", "--name", "new"),
        ["epochs='many'"],
    ),
    "zero trials": (trace(HEADER, GOOD), simulate("--trials", "0"), ["trials=0"]),
    "no time at all": (trace(HEADER, GOOD), simulate("--deadline", "0"), ["deadline_s=0"]),
    "no life at all": (trace(HEADER, GOOD), simulate("--mean-life", "0"), ["mean_life_s=0"]),
    "a capacity that is none": (
        trace(HEADER, GOOD),
        simulate("--capacity", "10m=many"),
        ["'10m=many'"],
    ),
    "a speed-up that is none": (trace(HEADER, GOOD), simulate("--speedup", "x"), ["speed-up 'x'"]),
    "hours that are none": (
        trace(HEADER, GOOD),
        simulate("--slot-hours", "x"),
        ["of hours"],
    ),
    "a range that is none": (
        trace(HEADER, GOOD),
        simulate("--range", "1,0"),
        ["'1,0' is no"],
    ),
    "half a range": (trace(HEADER, GOOD), simulate("--range", "1"), ["'1' is no range"]),
    "a generator for a trace": (
        trace(HEADER, GOOD),
        simulate("--generator", "tpe"),
        ["generator='tpe' cannot be used with a trace"],
    ),
    "a name that is none": (trace(HEADER, GOOD), simulate("--name", ""), ["--name is empty"]),
    "a store that is none": (
        trace(HEADER, GOOD),
        simulate("--store", "ftp://x"),
        ["the scheme 'ftp'"],
    ),
    "a trial below zero": (study, ("story", "mine", "--", "-1"), ["-1"]),
    "an unknown command": (nothing, ("simulat", "toy"), ["did you mean 'simulate'?"]),
    "an unknown option": (nothing, ("simulate", "toy", "--slot", "3"), ["--slot"]),
    "no policies": (nothing, ("compare", "toy"), ["--policies"]),
    "a parameter without a policy": (
        nothing,
        ("compare", "toy", "--policies", "eta=3"),
        ["'eta=3' is a parameter of no part"],
    ),
    "an unknown policy among several": (
        nothing,
        ("compare", "toy", "--policies", "fifo,ashaa"),
        ["did you mean 'asha'?"],
    ),
    "a target that is none": (
        nothing,
        ("compare", "toy", "--policies", "fifo", "--target", "high"),
        ["'high' is no target"],
    ),
    "slots that are none": (
        nothing,
        ("compare", "toy", "--policies", "fifo", "--slots", "4;8"),
        ["'4;8'"],
    ),
    "zero seeds": (nothing, ("compare", "toy", "--policies", "fifo", "--seeds", "0"), ["seeds=0"]),
}


@pytest.mark.parametrize("case", AS_USERS_DO)
def test_a_mistake_is_one_line_exit_code_2_and_nothing_written(case: str, tmp_path: Path) -> None:
    prepare, command, said = AS_USERS_DO[case]
    prepare(tmp_path)
    before = contents(tmp_path)
    check(outside(tmp_path, *command), said)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("case", HERE)
def test_any_other_mistake_is_treated_the_same(
    case: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare, command, said = HERE[case]
    paceline = Here(tmp_path, capsys, monkeypatch)
    prepare(tmp_path)
    before = contents(tmp_path)
    check(paceline(*command), said)
    assert contents(tmp_path) == before


def check(ran: Ran, said: list[str]) -> None:
    """Find one line with everything that should be said in it."""
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("paceline: ")
    assert ran.err.count("\n") == 1
    for part in said:
        assert part in ran.err


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file; what SQLite keeps beside a database while it reads is not one of ours."""
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if not path.name.endswith(("-wal", "-shm"))
    }
