"""Documentation that cannot lie: examples run, and everything public has its place."""

from __future__ import annotations

import ast
import doctest
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

import pytest
from benchmarks.pictures import draw
from data_sets import fashion_mnist

import paceline
from paceline.api.registry import BUILT_IN
from paceline.cli.main import main
from paceline.core.decisions import AnyDecision, EndCause
from paceline.core.events import AnyEvent, Cause
from paceline.core.values import Status
from paceline.machine.invariants import CHECKS

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
def test_every_example_runs(path: Path, tmp_path: Path) -> None:
    arguments: list[str] = []
    if "fashion_mnist" in path.name:
        arguments = [str(fashion_mnist()), "--quick"]
    done = subprocess.run(
        [sys.executable, str(path), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_the_torch_example_says_what_it_misses(tmp_path: Path) -> None:
    example = ROOT / "examples" / "03_torch_fashion_mnist.py"
    done = subprocess.run(
        [sys.executable, str(example), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"Fashion-MNIST is not in {tmp_path}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_says_what_it_shows_and_how_it_is_run(path: Path) -> None:
    told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert told is not None
    assert f"`python examples/{path.name}" in " ".join(told.split())


def test_the_readmes_example_is_the_first_example() -> None:
    found = re.search(r"<!-- (examples/\S+) -->\n```python\n(.*?)```", read("README.md"), re.S)
    assert found is not None
    assert found.group(2) == read(found.group(1))


def test_the_readme_names_the_two_commands() -> None:
    text = read("README.md")
    assert "make demo" in text
    assert "make test" in text


def test_the_readme_points_to_pages_that_exist() -> None:
    for name in re.findall(r"`((?:docs|benchmarks|examples|src)/[\w./-]*)`", read("README.md")):
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


@pytest.mark.parametrize("name", paceline.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCS.glob("*.md"))
    assert re.search(rf"`(pl\.|paceline\.)?{name}\b", text)


def test_every_error_is_explained() -> None:
    text = read("docs/errors.md")
    for name in paceline.__all__:
        found = getattr(paceline, name)
        if isinstance(found, type) and issubclass(found, Exception):
            assert f"| `{name}` |" in text


@pytest.mark.parametrize("name", [*BUILT_IN["policy"], "any_of", "bohb"])
def test_every_policy_has_a_page_with_the_same_five_headings(name: str) -> None:
    text = read(f"docs/policies/{name}.md")
    assert [line for line in text.splitlines() if line.startswith("## ")] == POLICY_HEADINGS


POLICY_PAGES = [path.stem for path in sorted((DOCS / "policies").glob("*.md"))]


@pytest.mark.parametrize("name", POLICY_PAGES)
def test_what_a_policy_s_page_says_to_simulate_can_be_simulated(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = re.findall(r"`paceline (simulate [^`]*)`", read(f"docs/policies/{name}.md"))
    assert lines
    for line in lines:
        # The last of two options counts: a dozen trials show as well that it can be done.
        assert main([*line.split(), "--trials", "12", "--json"]) == 0
    # Forks are trials too, which no budget of trials holds up.
    started = [
        int(number) for number in re.findall(r'"trials_started":(\d+)', capsys.readouterr().out)
    ]
    assert started
    assert all(number >= 12 if name == "pbt" else number == 12 for number in started)


@pytest.mark.parametrize("name", [*BUILT_IN["policy"], "any_of"])
def test_every_policy_has_a_picture_on_its_page_and_it_is_true(name: str) -> None:
    assert f"](pictures/{name}.svg)" in read(f"docs/policies/{name}.md")
    picture = read(f"docs/policies/pictures/{name}.svg")
    assert len(picture) <= 30_000
    ElementTree.fromstring(picture)
    # A forecast's last digits are the machine's.
    if name not in ("early_term", "pop"):
        assert picture == draw(name), "draw it anew with `make pictures`"


@pytest.mark.parametrize("kind", ["generator", "allocator", "curve model"])
def test_every_other_part_is_in_the_list_of_parts(kind: str) -> None:
    text = read("docs/parts.md")
    for name in BUILT_IN[kind]:  # type: ignore[index]
        assert f"| `{name}` |" in text


@pytest.mark.parametrize(
    "name",
    [
        "paceline.core.speedup",
        "paceline.api.registry",
        "paceline.cli.report",
        "paceline.analysis.story",
        "paceline.plan.settings",
    ],
)
def test_examples_in_docstrings_are_true(name: str) -> None:
    result = doctest.testmod(import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
