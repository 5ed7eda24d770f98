"""Study files for tests, and commands that run until they are told to go on."""

from __future__ import annotations

import os
import select
import subprocess
import time
from typing import TYPE_CHECKING

from cli_kit import SCRIPT, Ran, environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Loss falls at the pace of the learning rate. Where a file `hold` lies beside it, every trial stays
# in its third epoch until the file is gone.
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


def study_file(folder: Path, name: str = "study.py", text: str = TRAIN + STUDY) -> Path:
    """Write a study file."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


class Running:
    """A command that is under way. Leaving the block ends it, whatever happens."""

    def __init__(self, folder: Path, *arguments: str | Path) -> None:
        self._process = subprocess.Popen(
            [*(arguments if arguments[0] != "paceline" else (SCRIPT, *arguments[1:]))],
            cwd=folder,
            env=environment(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.pid = self._process.pid
        self.out = ""

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def until(self, words: str, patience_s: float = 60.0) -> None:
        """Read standard output until these words were written."""
        stream = self._process.stdout
        assert stream is not None
        while words not in self.out:
            assert select.select([stream], [], [], patience_s)[0], f"so far: {self.out}"
            read = os.read(stream.fileno(), 65536)
            if not read:
                raise AssertionError(f"{words!r} was never written: {self.end()}")
            self.out += read.decode()

    def hang_up(self) -> None:
        """Read no more: the command writes into nowhere from now on."""
        assert self._process.stdout is not None
        self._process.stdout.close()

    def signal(self, number: int) -> None:
        """Send the command a signal."""
        self._process.send_signal(number)

    def end(self) -> Ran:
        """Wait for it and return what came of it."""
        out, err = self._process.communicate(timeout=60)
        return Ran(self._process.returncode, self.out + out.decode(), err.decode())


def wait_for(condition: Callable[[], bool], patience_s: float = 60.0) -> None:
    """Wait until something is so."""
    until = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < until, "it never came to be"
        time.sleep(0.01)
