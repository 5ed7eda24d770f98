"""Tests of the documentation: examples run, every public name has its place, links are valid."""

from __future__ import annotations

import ast
import doctest
import re
import subprocess
import sys
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

import pytest
from benchmarks.pictures import draw
from data_sets import find_fashion_mnist

import paceline
from paceline.api.registry import BUILT_IN
from paceline.cli.main import main
from paceline.core.decisions import AnyDecision, EndCause
from paceline.core.events import AnyEvent, Cause
from paceline.core.values import Status
from paceline.machine.invariants import INVARIANTS

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


# Examples with torch or Ray take longest to start.
SLOW_EXAMPLES = {
    "02_digits.py",
    "03_torch_fashion_mnist.py",
    "08_wide_trials.py",
    "09_from_ray_tune.py",
    "10_deadline.py",
}


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.slow) if path.name in SLOW_EXAMPLES else path
        for path in EXAMPLES
    ],
    ids=lambda path: path.name,
)
def test_every_example_runs(path: Path, tmp_path: Path) -> None:
    arguments: list[str] = []
    if "fashion_mnist" in path.name:
        arguments = [str(find_fashion_mnist()), "--quick"]
    done = subprocess.run(
        [sys.executable, str(path), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Standard error has the lines of progress alone.
    assert not re.search(r"Traceback|Warning|Error|fails", done.stderr), done.stderr
    assert done.stdout


def test_the_torch_example_reports_missing_data_in_one_line(tmp_path: Path) -> None:
    example = ROOT / "examples" / "03_torch_fashion_mnist.py"
    done = subprocess.run(
        [sys.executable, str(example), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"Fashion-MNIST is not in {tmp_path}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_says_what_it_shows_and_how_to_run_it(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring is not None
    assert f"`python examples/{path.name}" in " ".join(docstring.split())


def test_the_examples_in_the_readme_are_example_files() -> None:
    found = re.findall(r"<!-- (examples/\S+) -->\n```python\n(.*?)```", read("README.md"), re.S)
    assert len(found) == 2
    for path, code in found:
        assert read(path).partition('"""\n\n')[2] == code


def test_the_readme_names_the_make_targets() -> None:
    text, makefile = read("README.md"), read("Makefile")
    for target in ("demo", "test", "test-all"):
        assert f"make {target} " in text
        assert f"\n{target}:" in makefile


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
    for check in INVARIANTS:
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
def test_the_simulations_on_a_policy_page_run(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = re.findall(r"`paceline (simulate [^`]*)`", read(f"docs/policies/{name}.md"))
    assert lines
    for line in lines:
        # The last of two equal options counts: a dozen trials are enough, or fewer to the target.
        assert main([*line.split(), "--trials", "12", "--json"]) == 0
    # Forks are trials too, and the limit on trials does not apply to them.
    started = [
        int(number) for number in re.findall(r'"trials_started":(\d+)', capsys.readouterr().out)
    ]
    assert started
    assert all(number >= 12 if name == "pbt" else 1 <= number <= 12 for number in started)


@pytest.mark.parametrize("name", [*BUILT_IN["policy"], "any_of"])
def test_every_policy_has_a_current_picture_on_its_page(name: str) -> None:
    assert f"](pictures/{name}.svg)" in read(f"docs/policies/{name}.md")
    picture = read(f"docs/policies/pictures/{name}.svg")
    assert len(picture) <= 30_000
    ElementTree.fromstring(picture)
    # The last digits of a forecast depend on the machine.
    if name not in ("early_term", "pop"):
        assert picture == draw(name), "run `make pictures`"


def test_the_pictures_of_the_views_are_small_and_load_nothing() -> None:
    for name in ("terminal.svg", "terminal-wide.svg"):
        picture = read(f"docs/images/{name}")
        ElementTree.fromstring(picture)
        assert "running now" in picture.replace("&#160;", " ")
        assert not re.search(r"url\((?!#)|href=", picture)
    for path in (ROOT / "docs" / "images").iterdir():
        assert path.stat().st_size < 200_000, f"{path.name} is too large"


@pytest.mark.parametrize("kind", ["generator", "allocator", "curve model"])
def test_every_other_part_is_in_the_list_of_parts(kind: str) -> None:
    text = read("docs/parts.md")
    for name in BUILT_IN[kind]:  # type: ignore[index]
        assert f"| `{name}` |" in text


SOURCES = sorted((ROOT / "src" / "paceline").rglob("*.py"))
WITH_EXAMPLES = [
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    for path in SOURCES
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_in_docstrings_are_correct(name: str) -> None:
    result = doctest.testmod(import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "benchmarks" / "README.md"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?://)([^)#\s]+)", text):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_a_page_are_at_most_140_characters(page: Path) -> None:
    if page.name == "mistakes.md":
        return  # written by its test, a row for each mistake
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [number for number, line in enumerate(lines, 1) if len(line) > 140] == []


def test_every_new_name_in_the_table_of_renames_can_be_imported() -> None:
    names = re.findall(
        r"^\| `paceline[\w.]+` \| `(paceline[\w.]+)` \|", read("docs/renamed.md"), re.M
    )
    assert len(names) > 200
    for name in names:
        module, _, attribute = name.rpartition(".")
        path = ROOT / "src" / name.replace(".", "/")
        if path.is_dir() or path.with_suffix(".py").exists():
            import_module(name)
        else:
            assert hasattr(import_module(module), attribute), name


def test_every_function_on_the_walks_through_the_code_exists() -> None:
    rows = re.findall(r"^\| \d+ \| `([\w.]+)` \| `([\w.]+)` \|", read("docs/walks.md"), re.M)
    assert len(rows) > 50
    for module, function in rows:
        assert attrgetter(function)(import_module(f"paceline.{module}"))
