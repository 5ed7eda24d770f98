"""A driver that is stopped for a while (SIGSTOP): it goes on as if nothing had been."""

from __future__ import annotations

import re
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from running_command import RunningCommand
from waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import time
from pathlib import Path
import paceline as pl

def train(trial):
    began = time.monotonic()
    for epoch in trial.epochs():
        trial.report(loss=trial["lr"])
        while epoch == 1 and not Path("go").exists():
            Path("waiting").touch()
            time.sleep(0.01)
            if time.monotonic() - began > 6.0:
                Path("late").touch()
    Path("done").touch()

if __name__ == "__main__":
    result = pl.tune(train, space={{"lr": pl.uniform(0, 1)}}, metric="loss", mode="min", epochs=30,
                     slots="cpu:1", policy="fifo", generator="random", progress=False, {options})
    print(result.end, [(len(trial.values), trial.failures) for trial in result.trials])
"""


def start(folder: Path, options: str) -> RunningCommand:
    (folder / "script.py").write_text(SCRIPT.format(options=options))
    return RunningCommand(folder, sys.executable, "script.py")


def test_what_workers_report_while_the_driver_is_stopped_is_not_lost(tmp_path: Path) -> None:
    with start(tmp_path, "trials=2") as running:
        wait_for((tmp_path / "waiting").exists)
        running.signal(signal.SIGSTOP)
        (tmp_path / "go").touch()
        wait_for((tmp_path / "done").exists)
        running.signal(signal.SIGCONT)
        ran = running.end()
    assert ran.out == "quiet [(30, 0), (30, 0)]\n", ran.err


@pytest.mark.slow
def test_a_deadline_that_comes_while_the_driver_is_stopped_ends_the_study(tmp_path: Path) -> None:
    with start(tmp_path, "deadline=6.0") as running:
        wait_for((tmp_path / "waiting").exists)
        running.signal(signal.SIGSTOP)
        wait_for((tmp_path / "late").exists)
        running.signal(signal.SIGCONT)
        ran = running.end()
    # How many reports the driver had read before it was stopped depends on the machine.
    assert re.fullmatch(r"deadline \[\(\d, 0\)\]\n", ran.out), ran.out + ran.err
