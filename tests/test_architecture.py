"""Rules for the source tree: sizes, names, wording, docstrings, and the cost of imports.

Each rule reports all of its violations at once, as `file:line: what is wrong`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import paceline

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "src" / "paceline").rglob("*.py"))
MODULE_LINES, FUNCTION_LINES, PARAMETERS = 600, 60, 7
# Module names that say nothing about their content.
VAGUE_MODULES = {"utils", "util", "helpers", "common", "misc", "base", "manager"}
# Files that implement one port, each for another kind of resource, may share a name.
SHARED_MODULES = {"__init__", "engine", "worker_pool", "devices", "model"}
# Function names that the glossary has another word for.
BANNED_FUNCTIONS = {"experiment", "bracket_manager", "hyperparams", "executor"}
# Objects are not persons, a sentence negates its verb, and metaphors are not names: see "Words" in
# CONTRIBUTING.md. In identifiers, an underscore ends a word like a space.
BANNED_WORDS = {
    "persons": (
        "who|whom|whoever|whomever|somebody|someone|nobody|everybody|everyone|anybody|anyone"
    ),
    "negations": (
        "cannot be meant|so many"
        r"|(?<!there )\b(is|are) none|(?<!there )\b(is|are|names) no(?! longer| more)"
    ),
    "family and death": (
        "kin|orphan|orphans|orphaned|birth|births|born|unborn|newborn|stillborn|bereft|bury|buried"
        "|mortal|dead|dies|died|death|deaths|last words"
    ),
    "metaphors": (
        "nursery|nurseries|nest|nests|staff|shelf|shelves|tenancy|tenant|afar|hire|hires|hired"
        "|briefing|glance|ride|rides|rider|riders|brain|brains|carrier"
    ),
}
# "None" is Python's; the word at the end of a sentence is not.
_BANNED = {
    kind: re.compile(rf"(?<![A-Za-z])(?:{words})(?![A-Za-z])", re.IGNORECASE)
    for kind, words in BANNED_WORDS.items()
}
_IS_NONE = re.compile(r"(is|are) None\b")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def report(violations: list[str]) -> None:
    if violations:
        pytest.fail("\n".join([f"{len(violations)} violations:", *violations]), pytrace=False)


def classes() -> Iterator[tuple[str, str]]:
    """Yield the name and the place of every class in the package, private ones too."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield node.name, f"{relative(path)}:{node.lineno}"


def test_a_module_holds_one_concept_and_says_which() -> None:
    violations = []
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        lines = text.count("\n")
        if lines > MODULE_LINES:
            violations.append(f"{relative(path)}: {lines} lines, more than {MODULE_LINES}")
        if not ast.get_docstring(ast.parse(text)):
            violations.append(f"{relative(path)}: no docstring")
        if path.stem in VAGUE_MODULES:
            violations.append(f"{relative(path)}: the name does not tell what the module holds")
    report(violations)


def test_a_function_fits_on_a_screen_and_takes_few_arguments() -> None:
    violations = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            place = f"{relative(path)}:{node.lineno}: {node.name}"
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                violations.append(f"{place} has {lines} lines, more than {FUNCTION_LINES}")
            names = [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
            count = len(names) - (names[:1] in (["self"], ["cls"]))
            if count > PARAMETERS:
                violations.append(f"{place} takes {count} parameters, more than {PARAMETERS}")
            if node.name in BANNED_FUNCTIONS:
                violations.append(f"{place} is not a word of the glossary")
    report(violations)


def test_no_two_classes_have_one_name() -> None:
    places = defaultdict(list)
    for name, place in classes():
        places[name].append(place)
    report([f"{name}: {', '.join(found)}" for name, found in places.items() if len(found) > 1])


def test_no_two_modules_have_one_name() -> None:
    places = defaultdict(list)
    for path in MODULES:
        if path.stem not in SHARED_MODULES:
            places[path.stem].append(relative(path))
    report([f"{name}: {', '.join(found)}" for name, found in places.items() if len(found) > 1])


def test_the_source_is_written_in_plain_words() -> None:
    violations = []
    for path in MODULES:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            for kind, pattern in _BANNED.items():
                found = pattern.search(_IS_NONE.sub("", line))
                if found:
                    place = f"{relative(path)}:{number}"
                    violations.append(f"{place}: {found[0]!r} ({kind}): {line.strip()}")
    report(violations)


def test_every_public_class_and_function_has_a_docstring() -> None:
    report(
        [
            f"{relative(path)}:{node.lineno}: {node.name} has no docstring"
            for path in MODULES
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            and not node.name.startswith("_")
            and not ast.get_docstring(node)
        ]
    )


def test_all_lists_every_public_name() -> None:
    assert sorted(paceline._MODULES) == paceline.__all__ == sorted(paceline.__all__)
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


def test_the_package_mentions_no_folder_outside_the_repository() -> None:
    # Recorded traces may be in a folder next to it, which only tests and benchmarks know.
    report([relative(path) for path in MODULES if "../shared" in path.read_text(encoding="utf-8")])


def test_only_training_functions_are_pickled() -> None:
    # On their way to workers; stored data never is.
    allowed = {"worker_pool.py", "forkserver.py", "forkserver_protocol.py", "checkpoint_file.py"}
    report(
        [
            f"{relative(path)}:{node.lineno}: imports pickle"
            for path in MODULES
            if path.name not in allowed
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Import | ast.ImportFrom) and "pickle" in ast.unparse(node)
        ]
    )
