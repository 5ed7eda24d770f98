"""Paceline without plotly, which is optional: only figures and reports need it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from command_line import CommandResult, make_environment, write_small_trace
from running_command import write_study_file

if TYPE_CHECKING:
    from pathlib import Path

ERROR = "plotly is not installed: pip install 'paceline[report]'."
# Python runs this before any other module: an import of plotly then fails as if it were missing.
BLOCK = "import sys\nsys.modules['plotly'] = None\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a module that blocks plotly, and a trace."""
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "sitecustomize.py").write_text(BLOCK, encoding="utf-8")
    write_small_trace(tmp_path / "tiny.jsonl")
    return tmp_path


def run_python(folder: Path, *arguments: str) -> CommandResult:
    """Run Python without plotly."""
    path = os.pathsep.join(filter(None, [str(folder / "blocked"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**make_environment(folder), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    return CommandResult(done.returncode, done.stdout, done.stderr)


def paceline(folder: Path, *arguments: str) -> CommandResult:
    """Run the command line without plotly."""
    return run_python(folder, "-m", "paceline.cli", *arguments)


def test_commands_that_draw_end_with_one_sentence(folder: Path) -> None:
    assert paceline(folder, "simulate", "tiny.jsonl", "--name", "tiny").code == 0
    for command in (
        ("report", "tiny"),
        ("tree", "tiny", "--plot", "tree.html"),
        ("forecast", "tiny.jsonl", "0", "--curves", "last", "--plot", "fan.html"),
        ("compare", "tiny.jsonl", "--policies", "fifo", "--plot", "compare.html"),
    ):
        done = paceline(folder, *command)
        assert (done.code, done.out) == (2, ""), command
        assert done.err == f"paceline: {ERROR}\n"
    assert not list(folder.glob("*.html"))


def test_commands_that_do_not_draw_work(folder: Path) -> None:
    for command in (
        ("simulate", "tiny.jsonl", "--name", "tiny"),
        ("show", "tiny"),
        ("story", "tiny", "0"),
        ("tree", "tiny"),
        ("forecast", "tiny.jsonl", "0", "--curves", "last"),
        ("compare", "tiny.jsonl", "--policies", "fifo"),
    ):
        done = paceline(folder, *command)
        assert (done.code, done.err) == (0, ""), command


def test_a_study_runs_without_its_report_unless_one_is_asked_for(folder: Path) -> None:
    write_study_file(folder)
    asked = paceline(folder, "run", "study.py", "--report", "mine.html")
    assert (asked.code, asked.out, asked.err) == (2, "", f"paceline: {ERROR}\n")
    done = paceline(folder, "run", "study.py", "--quiet", "--policy", "asha")
    assert done.code == 0
    assert done.err == f"paceline: no report will be written: {ERROR}\n"
    assert "4: 1 finished, 3 paused" in done.out
    assert not list(folder.glob("*.html"))


def test_a_result_raises_an_error_that_names_the_extra(folder: Path) -> None:
    code = (
        "import paceline as pl\n"
        "def train(trial):\n"
        "    for epoch in trial.epochs():\n"
        "        trial.report(loss=1.0)\n"
        "if __name__ == '__main__':\n"
        "    result = pl.tune(train, space={'lr': pl.uniform(0.0, 1.0)}, metric='loss',\n"
        "        mode='min', epochs=1, trials=1, slots=1, generator='random', progress=False)\n"
        "    for draw in (lambda: result.report('a.html'), lambda: result.plot('best')):\n"
        "        try:\n"
        "            draw()\n"
        "        except pl.PacelineError as error:\n"
        "            print(error)\n"
    )
    (folder / "script.py").write_text(code, encoding="utf-8")
    done = run_python(folder, "script.py")
    assert (done.code, done.out) == (0, f"{ERROR}\n{ERROR}\n"), done.err
