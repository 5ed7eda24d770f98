"""The house itself: sizes, docstrings, names, and what an import may cost."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import paceline

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "src" / "paceline").rglob("*.py"))
# Names that say nothing, and words that our vocabulary has another word for.
BANNED_MODULES = {"utils", "util", "helpers", "common", "misc", "base", "manager"}
BANNED_WORDS = {"job", "experiment", "bracket_manager", "hyperparams", "executor"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_can_be_read_in_one_sitting(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert text.count("\n") <= 600, "split it along what it knows"
    assert ast.get_docstring(tree), "say what this module knows and what it refuses to know"
    assert path.stem not in BANNED_MODULES


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_function_fits_on_a_screen_and_takes_few_arguments(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= 60, f"{node.name} has {length} lines"
            count = len(node.args.args) + len(node.args.kwonlyargs)
            takes_self = bool(node.args.args) and node.args.args[0].arg in ("self", "cls")
            assert count - takes_self <= 7, f"{node.name} takes {count} arguments"
            assert node.name not in BANNED_WORDS


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_public_class_and_function_says_what_it_is(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name} has no docstring"


def test_the_public_names_are_those_that_are_listed() -> None:
    assert sorted(paceline._HOMES) == paceline.__all__ == sorted(paceline.__all__)
    for name in paceline.__all__:
        assert getattr(paceline, name).__doc__, f"{name} has no docstring"
    assert set(paceline.__all__) <= set(dir(paceline))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = paceline.nonsense


def test_importing_paceline_imports_nothing_heavy() -> None:
    heavy = ("numpy", "scipy", "optuna", "sqlalchemy", "rich", "click", "msgspec", "asyncio")
    code = f"import sys, paceline; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_simulating_imports_no_numbers_and_no_database() -> None:
    code = (
        "import sys, paceline; paceline.Simulation(source='toy:epochs=3', trials=2).run();"
        "print([m for m in ('numpy', 'scipy', 'optuna', 'sqlalchemy', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_in_the_product_names_a_place_outside_the_repository() -> None:
    # Traces may lie in a folder beside it; that is for tests and benchmarks to know.
    for path in MODULES:
        assert "../shared" not in path.read_text(encoding="utf-8"), name_of(path)


def test_only_a_function_on_its_way_to_its_workers_is_pickled() -> None:
    # Nothing that was stored ever is.
    for path in MODULES:
        if path.name not in (
            "worker_pool.py",
            "forkserver.py",
            "forkserver_protocol.py",
            "checkpoint_file.py",
        ):
            assert "pickle" not in path.read_text(encoding="utf-8"), name_of(path)
