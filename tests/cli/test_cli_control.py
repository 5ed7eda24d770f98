"""`paceline stop` and `paceline slots`: commands to a study in another process."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

from command_line import CommandResult, read_log, run_command, write_small_trace
from running_command import RunningCommand, write_study_file
from waiting import wait_for

from paceline.api.stored import fold_log
from paceline.core.events import Commanded

if TYPE_CHECKING:
    from pathlib import Path


def test_a_running_study_obeys_commands(tmp_path: Path) -> None:
    write_study_file(tmp_path)
    (tmp_path / "hold").touch()
    command = ("paceline", "run", "study.py", "--trials", "20", "--policy", "fifo", "--name", "it")
    with RunningCommand(tmp_path, *command) as running:
        running.until("2 slots are available")
        more = run_command(tmp_path, "slots", "it", "+2")
        assert more.out == f"asked study 'it' to go from 2 to 4 slots (process {running.pid}).\n"
        running.until("4 slots are available")
        store = f"sqlite:///{tmp_path}/paceline.db"
        wait_for(lambda: len(fold_log(read_log(store, "it")).trials) >= 4)
        fewer = run_command(tmp_path, "slots", "it", "=1")
        assert "from 4 to 1 slot " in fewer.out
        running.until(" are released: ")
        for nothing in ("=1", "-1"):
            assert "has 1 slot already" in run_command(tmp_path, "slots", "it", nothing).out
        stopped = run_command(tmp_path, "stop", "it")
        assert stopped.out == f"asked study 'it' to stop (process {running.pid}).\n"
        ran = running.end()
    assert ran.code == 0
    assert "ended       command: a command asked for it" in ran.out
    events = [step.event for step in read_log(f"sqlite:///{tmp_path}/paceline.db", "it")]
    assert sum(isinstance(event, Commanded) for event in events) == 3
    ended = run_command(tmp_path, "stop", "it")
    assert (ended.code, ended.out) == (0, "study 'it' has ended already: a command asked for it.\n")
    check_refused(run_command(tmp_path, "slots", "it", "+1"), "has ended", "has no slots")


def test_a_command_to_a_study_that_does_not_run_explains_what_to_do(tmp_path: Path) -> None:
    write_study_file(tmp_path)
    (tmp_path / "hold").touch()
    with RunningCommand(tmp_path, "paceline", "run", "study.py") as running:
        running.until("2 slots are available")
        running.signal(signal.SIGKILL)
        running.end()
    for command in (("stop", "study-1"), ("slots", "study-1", "+1"), ("slots", "study-1", "-1")):
        ran = run_command(tmp_path, *command)
        check_refused(ran, "not running", "unfinished", "`paceline resume study-1`")
    log = read_log(f"sqlite:///{tmp_path}/paceline.db", "study-1")
    assert not any(isinstance(step.event, Commanded) for step in log)
    shown = json.loads(run_command(tmp_path, "show", "study-1", "--json").out)
    assert shown["study"]["status"] == "unfinished"


def test_an_invalid_command_is_refused(tmp_path: Path) -> None:
    write_small_trace(tmp_path / "t.jsonl")
    assert run_command(tmp_path, "simulate", "t.jsonl", "--name", "sim").code == 0
    for text in ("4", "+0", "more", "=-1"):
        check_refused(
            run_command(tmp_path, "slots", "sim", text), f"{text!r} is not a change of slots"
        )
    check_refused(run_command(tmp_path, "stop", "son"), "no study 'son'")
    assert "has ended already" in run_command(tmp_path, "stop", "sim").out


def check_refused(ran: CommandResult, *parts: str) -> None:
    """Check for exit code 2 and one line with all these parts."""
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    for part in parts:
        assert part in ran.err
