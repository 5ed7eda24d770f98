"""Documentation that cannot lie: examples run, and everything public has its place."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

import paceline
from paceline.api.parts import BUILT_IN
from paceline.core.decisions import AnyDecision, EndCause
from paceline.core.events import AnyEvent, Cause
from paceline.core.values import Status
from paceline.machine.checks import CHECKS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
POLICY_HEADINGS = [
    "## The rule",
    "## When to use it",
    "## What it costs",
    "## A simulated picture",
    "## Its paper and our changes",
]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_runs(path: Path) -> None:
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_readmes_example_is_the_first_example() -> None:
    found = re.search(r"<!-- (examples/\S+) -->\n```python\n(.*?)```", read("README.md"), re.S)
    assert found is not None
    assert found.group(2) == read(found.group(1))


def test_the_readme_names_the_two_commands() -> None:
    text = read("README.md")
    assert "make demo" in text
    assert "make test" in text


def test_the_readme_points_to_pages_that_exist() -> None:
    for name in re.findall(r"`((?:docs|benchmarks)/[\w./-]*)`", read("README.md")):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("kind", [*get_args(AnyEvent), *get_args(AnyDecision)])
def test_every_entry_of_a_log_is_explained(kind: type) -> None:
    assert f"| `{kind.__name__.lower()}` |" in read("docs/log.md")


def test_every_cause_status_and_invariant_is_explained() -> None:
    log, architecture = read("docs/log.md"), read("docs/architecture.md")
    for word in [*Cause, *EndCause]:
        assert f"`{word}`" in log, word
    for status in Status:
        assert f"| `{status}` |" in architecture
    for check in CHECKS:
        assert f"`{check.__name__}`" in log


def test_every_error_is_explained() -> None:
    text = read("docs/errors.md")
    for name in paceline.__all__:
        found = getattr(paceline, name)
        if isinstance(found, type) and issubclass(found, Exception):
            assert f"| `{name}` |" in text


@pytest.mark.parametrize("name", BUILT_IN["policy"])
def test_every_policy_has_a_page_with_the_same_five_headings(name: str) -> None:
    text = read(f"docs/policies/{name}.md")
    assert [line for line in text.splitlines() if line.startswith("## ")] == POLICY_HEADINGS


@pytest.mark.parametrize("kind", ["generator", "allocator", "curve model"])
def test_every_other_part_is_in_the_list_of_parts(kind: str) -> None:
    text = read("docs/parts.md")
    for name in BUILT_IN[kind]:  # type: ignore[index]
        assert f"| `{name}` |" in text


@pytest.mark.parametrize(
    "name",
    [
        "paceline.allocation.speedup",
        "paceline.api.parts",
        "paceline.cli.report",
        "paceline.machine.story",
        "paceline.plan.settings",
    ],
)
def test_examples_in_docstrings_are_true(name: str) -> None:
    result = doctest.testmod(import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
