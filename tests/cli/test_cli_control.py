"""`paceline stop` and `paceline slots`: orders that reach a study in another process."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

from cli_kit import Ran, log_of, outside, tiny
from live_kit import Running, study_file

from paceline.core.events import Commanded

if TYPE_CHECKING:
    from pathlib import Path


def test_a_running_study_hears_orders(tmp_path: Path) -> None:
    study_file(tmp_path)
    (tmp_path / "hold").touch()
    command = ("paceline", "run", "study.py", "--trials", "20", "--policy", "fifo", "--name", "it")
    with Running(tmp_path, *command) as running:
        running.until("there are 2 slots")
        more = outside(tmp_path, "slots", "it", "+2")
        assert more.out == f"study 'it' is asked to go from 2 to 4 slots (process {running.pid}).\n"
        running.until("there are 4 slots")
        running.until("trial 3 starts")
        fewer = outside(tmp_path, "slots", "it", "=1")
        assert "from 4 to 1 slot " in fewer.out
        running.until("3 of the slots go")
        for nothing in ("=1", "-1"):
            assert "has 1 slot already" in outside(tmp_path, "slots", "it", nothing).out
        stopped = outside(tmp_path, "stop", "it")
        assert stopped.out == f"study 'it' is asked to stop (process {running.pid}).\n"
        ran = running.end()
    assert ran.code == 0
    assert "ended       command: a command asked for it" in ran.out
    heard = [step.event for step in log_of(f"sqlite:///{tmp_path}/paceline.db", "it")]
    assert sum(isinstance(event, Commanded) for event in heard) == 3
    ended = outside(tmp_path, "stop", "it")
    assert (ended.code, ended.out) == (0, "study 'it' has ended already: a command asked for it.\n")
    refused(outside(tmp_path, "slots", "it", "+1"), "has ended", "needs no slots")


def test_a_study_that_does_not_run_hears_nothing_and_says_what_to_do(tmp_path: Path) -> None:
    study_file(tmp_path)
    (tmp_path / "hold").touch()
    with Running(tmp_path, "paceline", "run", "study.py") as running:
        running.until("there are 2 slots")
        running.signal(signal.SIGKILL)
        running.end()
    for order in (("stop", "study-1"), ("slots", "study-1", "+1"), ("slots", "study-1", "-1")):
        ran = outside(tmp_path, *order)
        refused(ran, "is not running", "unfinished", "`paceline resume study-1`")
    log = log_of(f"sqlite:///{tmp_path}/paceline.db", "study-1")
    assert not any(isinstance(step.event, Commanded) for step in log)
    shown = json.loads(outside(tmp_path, "show", "study-1", "--json").out)
    assert shown["study"]["status"] == "unfinished"


def test_an_order_that_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    tiny(tmp_path / "t.jsonl")
    assert outside(tmp_path, "simulate", "t.jsonl", "--name", "sim").code == 0
    for text in ("4", "+0", "more", "=-1"):
        refused(outside(tmp_path, "slots", "sim", text), f"{text!r} is no change of slots")
    refused(outside(tmp_path, "stop", "son"), "no study 'son'")
    assert "has ended already" in outside(tmp_path, "stop", "sim").out


def refused(ran: Ran, *said: str) -> None:
    """Find exit code 2 and one line with everything that should be said in it."""
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    for part in said:
        assert part in ran.err
