"""Scripts as their users have them, and what has to change in them to tune with Paceline.

`examples/scripts` has each script twice: as it was, and with a study. The numbers of changed lines
are those that `docs/from-scripts.md` states.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from difflib import ndiff
from pathlib import Path

import pytest
from waiting import LIMIT_S

SCRIPTS = Path(__file__).parents[2] / "examples" / "scripts"
# Lines of the original that are gone, and lines that are new.
CHANGES = {"xgboost": (2, 4), "lightgbm": (2, 5), "keras": (1, 5), "ray_tune": (5, 5)}
QUICK = {"lightgbm"}


def read_lines(name: str) -> list[str]:
    """Return the lines of a script that are not blank."""
    return [line for line in (SCRIPTS / f"{name}.py").read_text().splitlines() if line.strip()]


def run(name: str, folder: Path) -> str:
    """Run a script in a folder; return what it prints."""
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / f"{name}.py")],
        cwd=folder,
        # A cluster of its own, not that of other tests.
        env={**os.environ, "PYTHONPATH": "", "RAY_ADDRESS": "local"},
        capture_output=True,
        text=True,
        timeout=5 * LIMIT_S,  # a cluster may take minutes to start on a busy machine
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_few_lines_of_a_script_change(name: str) -> None:
    before, after = read_lines(f"{name}_original"), read_lines(f"{name}_tuned")
    marks = [line[0] for line in ndiff(before, after)]
    assert (marks.count("-"), marks.count("+")) == CHANGES[name]
    page = (SCRIPTS.parents[1] / "docs" / "from-scripts.md").read_text()
    gone, new = CHANGES[name]
    assert re.search(
        rf"`examples/scripts/{name}_tuned\.py`.*\| {gone} of {len(before)} \| {new} \|", page
    )


@pytest.mark.parametrize(
    "name",
    [
        *sorted(QUICK),
        *(pytest.param(name, marks=pytest.mark.slow) for name in sorted(CHANGES.keys() - QUICK)),
    ],
)
def test_the_tuned_script_finds_a_model(name: str, tmp_path: Path) -> None:
    found = re.search(r"^(\w+) ([\d.]+) with \{.+\}$", run(f"{name}_tuned", tmp_path), re.M)
    assert found is not None
    assert float(found[2]) > 0.7 if found[1] in ("accuracy", "auc") else float(found[2]) < 0.7


@pytest.mark.slow
@pytest.mark.xdist_group("ray")  # one of them starts a cluster
@pytest.mark.parametrize("name", sorted(CHANGES))
def test_the_original_script_runs(name: str, tmp_path: Path) -> None:
    run(f"{name}_original", tmp_path)
