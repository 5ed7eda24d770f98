"""Run the command line in tests, in this process or in another one; write small logs and traces."""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from paceline.cli.main import main
from paceline.engines.sim.traces import TraceHeader, TraceRun, write_trace
from paceline.store import open_store

if TYPE_CHECKING:
    import pytest

    from paceline.core.decisions import Step

GOLDEN = Path(__file__).parents[1] / "golden" / "cli"
SCRIPT = Path(sys.executable).with_name("paceline")


class CommandResult(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


class CommandLine:
    """Run commands in this process, in a folder of their own and a terminal of 100 columns."""

    def __init__(
        self,
        folder: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.folder = folder
        self._capsys = capsys
        monkeypatch.chdir(folder)
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.delenv("PACELINE_STORE", raising=False)

    def __call__(self, *arguments: str | Path) -> CommandResult:
        self._capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return CommandResult(code, *self._capsys.readouterr())


def make_environment(folder: Path) -> dict[str, str]:
    """Return an environment without PACELINE variables, as wide as the golden files."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE")}
    return {**kept, "COLUMNS": "100", "HOME": str(folder)}


def run_command(folder: Path, *arguments: str | Path) -> CommandResult:
    """Run the installed command in a new process and return its result."""
    done = subprocess.run(
        [SCRIPT, *arguments],
        cwd=folder,
        env=make_environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    return CommandResult(done.returncode, done.stdout, done.stderr)


def write_small_trace(
    path: Path, *, runs: int = 6, epochs: int = 4, setup_s: float | None = None
) -> Path:
    """Write a trace in which every later run is better and slower."""
    header = TraceHeader(
        paceline_trace=1,
        name=path.name.removesuffix(".gz").removesuffix(".jsonl"),
        metric="accuracy",
        mode="max",
        max_epochs=epochs,
        target=0.5,
    )
    written = [
        TraceRun(
            number,
            {"lr": 0.1 / (number + 1), "width": 8 * (number + 1)},
            array(
                "d", [round(0.15 * (number + 1) * (1 - 0.5**e), 6) for e in range(1, epochs + 1)]
            ),
            array("d", [10.0 + number] * epochs),
            setup_s,
        )
        for number in range(runs)
    ]
    write_trace(path, header, written)
    return path


def write_log(url: str, study: str, steps: list[Step]) -> None:
    """Write these steps as the log of a study."""
    store = open_store(url, create=True)
    try:
        store.append(study, steps)
    finally:
        store.close()


def read_log(url: str, study: str) -> list[Step]:
    """Return the log of a study."""
    store = open_store(url, create=False)
    try:
        return list(store.read(study))
    finally:
        store.close()


def compare_golden(name: str, text: str) -> None:
    """Compare with a golden file, or write it when `PACELINE_GOLDEN=write` is set."""
    path = GOLDEN / name
    # Tables are padded with trailing blanks, which editors remove.
    lines = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    if os.environ.get("PACELINE_GOLDEN") == "write":
        path.write_text(lines, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == lines
