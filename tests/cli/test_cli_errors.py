"""Wrong usage: one line on standard error, exit code 2, nothing written."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from command_line import CommandLine, CommandResult, run_command, write_log, write_small_trace

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


def write_trace(*lines: str) -> Callable[[Path], None]:
    """Return a function that writes a trace of these lines."""

    def write(folder: Path) -> None:
        (folder / "t.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")

    return write


def write_nothing(folder: Path) -> None:
    """Write nothing."""


def write_study(folder: Path) -> None:
    """Write one study to the default store."""
    log: list[Step] = []
    simulation = Simulation(source=str(write_small_trace(folder / "t.jsonl")), slots=2)
    simulation.run(name="mine", remember=log.extend)
    write_log(str(folder / "paceline.db"), "mine", log)


def write_newer_store(folder: Path) -> None:
    """Create a store of a later version."""
    write_study(folder)
    with closing(sqlite3.connect(folder / "paceline.db")) as store:
        store.execute("update paceline_store set version = 99")
        store.commit()


def simulate(*options: str) -> tuple[str, ...]:
    """Return a command line for the trace."""
    return ("simulate", "t.jsonl", "--policy", "asha", "--name", "new", *options)


# With the installed command, in another process.
IN_A_SHELL = {
    "a broken line": (write_trace(HEADER, GOOD, BROKEN), simulate(), ["t.jsonl:3:", "values[1]"]),
    "an empty trace": (write_trace(HEADER), simulate(), ["t.jsonl", "no runs"]),
    "a trace without numbers": (
        write_trace(HEADER, SILENT),
        simulate(),
        ["t.jsonl", "every value in `values` is null"],
    ),
    "an unknown policy": (
        write_trace(HEADER, GOOD),
        ("simulate", "t.jsonl", "--policy", "ashaa"),
        ["unknown policy 'ashaa'", "did you mean 'asha'?"],
    ),
    "an unknown parameter": (
        write_trace(HEADER, GOOD),
        ("simulate", "t.jsonl", "--policy", "asha:eat=3"),
        ["'eat'", "did you mean 'eta'?"],
    ),
    "zero slots": (write_trace(HEADER, GOOD), simulate("--slots", "0"), ["slots=0"]),
    "a bad duration": (
        write_trace(HEADER, GOOD),
        simulate("--deadline", "soon"),
        ["'soon'", "1h30m"],
    ),
    "a negative deadline": (write_trace(HEADER, GOOD), simulate("--deadline", "-5"), ["'-5'"]),
    "an unknown order": (
        write_trace(HEADER, GOOD),
        simulate("--order", "best"),
        ["'--order'"],
    ),
    "an existing name": (
        write_study,
        ("simulate", "t.jsonl", "--name", "mine"),
        ["study 'mine' exists already"],
    ),
    "no store to list": (write_nothing, ("ls",), ["there is no store at"]),
    "no store to show": (
        write_nothing,
        ("show", "mine", "--store", "x.db"),
        ["no store at x.db"],
    ),
    "an unknown study": (
        write_study,
        ("show", "main"),
        ["no study 'main'", "did you mean 'mine'?"],
    ),
    "a store of a newer version": (write_newer_store, ("ls",), ["version 99", "upgrade"]),
    "an unknown trial": (write_study, ("story", "mine", "99"), ["trial 99 does not exist"]),
}

# With the same entry point in this process, which is faster.
IN_PROCESS = {
    "too few durations": (
        write_trace(HEADER, GOOD, SHORT),
        simulate(),
        ["t.jsonl:3:", "field seconds"],
    ),
    "an empty file": (write_trace(""), simulate(), ["t.jsonl", "empty"]),
    "no trace": (write_nothing, simulate(), ["t.jsonl: the file does not exist"]),
    "a parameter of the wrong kind": (
        write_trace(HEADER, GOOD),
        ("simulate", "t.jsonl", "--policy", "asha:eta=three"),
        ["eta='three'"],
    ),
    "an unknown parameter of a workload": (
        write_nothing,
        ("simulate", "toy:epoch=3", "--name", "new"),
        ["'epoch'", "did you mean 'epoch"],
    ),
    "a parameter of a workload of the wrong kind": (
        write_nothing,
        ("simulate", "toy:epochs=many", "--name", "new"),
        ["epochs='many'"],
    ),
    "zero trials": (write_trace(HEADER, GOOD), simulate("--trials", "0"), ["trials=0"]),
    "zero deadline": (write_trace(HEADER, GOOD), simulate("--deadline", "0"), ["deadline_s=0"]),
    "zero mean life": (write_trace(HEADER, GOOD), simulate("--mean-life", "0"), ["mean_life_s=0"]),
    "an invalid capacity": (
        write_trace(HEADER, GOOD),
        simulate("--capacity", "10m=many"),
        ["'10m=many'"],
    ),
    "an invalid speed-up": (
        write_trace(HEADER, GOOD),
        simulate("--speedup", "x"),
        ["speed-up 'x'"],
    ),
    "invalid hours": (
        write_trace(HEADER, GOOD),
        simulate("--slot-hours", "x"),
        ["of hours"],
    ),
    "an invalid range": (
        write_trace(HEADER, GOOD),
        simulate("--range", "1,0"),
        ["'1,0' is not a range"],
    ),
    "half a range": (write_trace(HEADER, GOOD), simulate("--range", "1"), ["'1' is not a range"]),
    "a generator for a trace": (
        write_trace(HEADER, GOOD),
        simulate("--generator", "tpe"),
        ["generator='tpe' cannot be used with a trace"],
    ),
    "an empty name": (write_trace(HEADER, GOOD), simulate("--name", ""), ["--name is empty"]),
    "an invalid store": (
        write_trace(HEADER, GOOD),
        simulate("--store", "ftp://x"),
        ["the scheme 'ftp'"],
    ),
    "a trial below zero": (write_study, ("story", "mine", "--", "-1"), ["-1"]),
    "an unknown command": (write_nothing, ("simulat", "toy"), ["did you mean 'simulate'?"]),
    "an unknown option": (write_nothing, ("simulate", "toy", "--slot", "3"), ["--slot"]),
    "no policies": (write_nothing, ("compare", "toy"), ["--policies"]),
    "a parameter without a policy": (
        write_nothing,
        ("compare", "toy", "--policies", "eta=3"),
        ["'eta=3' is a parameter without a part"],
    ),
    "an unknown policy among several": (
        write_nothing,
        ("compare", "toy", "--policies", "fifo,ashaa"),
        ["did you mean 'asha'?"],
    ),
    "an invalid target": (
        write_nothing,
        ("compare", "toy", "--policies", "fifo", "--target", "high"),
        ["'high' is not a target"],
    ),
    "invalid slots": (
        write_nothing,
        ("compare", "toy", "--policies", "fifo", "--slots", "4;8"),
        ["'4;8'"],
    ),
    "zero seeds": (
        write_nothing,
        ("compare", "toy", "--policies", "fifo", "--seeds", "0"),
        ["seeds=0"],
    ),
}


@pytest.mark.parametrize("case", IN_A_SHELL)
def test_wrong_usage_prints_one_line_exits_with_2_and_writes_nothing(
    case: str, tmp_path: Path
) -> None:
    prepare, command, parts = IN_A_SHELL[case]
    prepare(tmp_path)
    before = read_files(tmp_path)
    check(run_command(tmp_path, *command), parts)
    assert read_files(tmp_path) == before


@pytest.mark.parametrize("case", IN_PROCESS)
def test_other_wrong_usage_does_the_same(
    case: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare, command, parts = IN_PROCESS[case]
    paceline = CommandLine(tmp_path, capsys, monkeypatch)
    prepare(tmp_path)
    before = read_files(tmp_path)
    check(paceline(*command), parts)
    assert read_files(tmp_path) == before


def check(ran: CommandResult, parts: list[str]) -> None:
    """Check for exit code 2 and one line with all these parts."""
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("paceline: ")
    assert ran.err.count("\n") == 1
    for part in parts:
        assert part in ran.err


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the content of every file but those that SQLite writes while it reads."""
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if not path.name.endswith(("-wal", "-shm"))
    }
