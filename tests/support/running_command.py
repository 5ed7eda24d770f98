"""Study files for tests, and commands that run in another process while the test goes on."""

from __future__ import annotations

import os
import select
import subprocess
from typing import TYPE_CHECKING

from command_line import SCRIPT, CommandResult, make_environment
from waiting import LIMIT_S

if TYPE_CHECKING:
    from pathlib import Path

# The loss falls at the pace of the learning rate. While a file `hold` is next to the study file,
# every trial stays in its third epoch.
TRAIN = """
import time
from pathlib import Path

import paceline as pl

FOLDER = Path(__file__).parent


def train(trial):
    weight = trial.keep(weight=[0.0])
    try:
        for epoch in trial.epochs():
            while epoch == 2 and (FOLDER / "hold").exists():
                time.sleep(0.01)
            weight[0] += trial["lr"] * (1 - weight[0])
            trial.report(loss=(1 - weight[0]) ** 2)
    finally:
        (FOLDER / "unwinding").touch()
        while (FOLDER / "stubborn").exists():
            time.sleep(0.01)
"""

STUDY = """
study = pl.Study(
    train, space={"lr": pl.loguniform(0.01, 1.0)}, metric="loss", mode="min", epochs=9,
    generator="random", trials=4, slots=2,
)
"""


def write_study_file(folder: Path, name: str = "study.py", text: str = TRAIN + STUDY) -> Path:
    """Write a study file."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


class RunningCommand:
    """A running command. Leaving the `with` block kills it."""

    def __init__(self, folder: Path, *arguments: str | Path) -> None:
        self._process = subprocess.Popen(
            [*(arguments if arguments[0] != "paceline" else (SCRIPT, *arguments[1:]))],
            cwd=folder,
            env=make_environment(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.pid = self._process.pid
        self.out = self.err = ""

    def __enter__(self) -> RunningCommand:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def until(self, words: str) -> None:
        """Read standard output and standard error until these words were written to one."""
        streams = [each for each in (self._process.stdout, self._process.stderr) if each]
        while words not in self.out and words not in self.err:
            ready, _, _ = select.select(streams, [], [], LIMIT_S)
            assert ready, f"{words!r} was not written in {LIMIT_S:g} s, only: {self.out}{self.err}"
            for stream in ready:
                read = os.read(stream.fileno(), 65536)
                if stream is self._process.stdout:
                    self.out += read.decode()
                else:
                    self.err += read.decode()
                if not read:
                    streams.remove(stream)
            if not streams:
                raise AssertionError(f"{words!r} was never written: {self.end()}")

    def hang_up(self) -> None:
        """Close the command's standard output: its next write fails."""
        assert self._process.stdout is not None
        self._process.stdout.close()

    def signal(self, number: int) -> None:
        """Send the command a signal."""
        self._process.send_signal(number)

    def end(self) -> CommandResult:
        """Wait for the command to end and return its result."""
        out, err = self._process.communicate(timeout=LIMIT_S)
        code = self._process.returncode
        return CommandResult(code, self.out + out.decode(), self.err + err.decode())
