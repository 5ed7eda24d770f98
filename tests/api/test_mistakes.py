"""The mistakes of newcomers: each gets one sentence with a way out, kept in docs/mistakes.md."""

from __future__ import annotations

import io
import math
import os
import re
import sys
import threading
import warnings
from contextlib import redirect_stderr, redirect_stdout
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from mistakes import MISTAKES

import paceline as pl
from paceline.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"
WRITING = os.environ.get("PACELINE_GOLDEN") == "write"
ROWS = [(area, code) for area, codes in MISTAKES.items() for code in codes]
HEAD = """\
# Mistakes

What Paceline answers to the mistakes that newcomers make. `tune(f, …)` stands for `pl.tune(f, …)`
with a space of one hyperparameter `lr`, one trial and a name; `f` returns a score where it is not
shown. Every answer is what the tests got when they ran the code (`tests/api/test_mistakes.py`).
"""


def answer(code: str, folder: Path) -> str:
    """Run a mistake; return the first line of the error or warning that it gets."""
    if code.startswith("$ paceline "):
        return _answer_command(code.removeprefix("$ paceline ").split(), folder)
    space = {"lr": pl.uniform(0, 1)}
    options: dict[str, Any] = {
        "space": space,
        "trials": 1,
        "slots": "inline",
        "progress": False,
        "retries": 0,
        "name": "mine",
    }

    def tune(train: Any, **given: Any) -> pl.Result:  # noqa: ANN401
        merged = {**options, **given}
        return pl.tune(train, **{key: each for key, each in merged.items() if each is not None})

    names: dict[str, Any] = {
        "pl": pl,
        "tune": tune,
        "math": math,
        "sys": sys,
        "os": os,
        "threading": threading,
        "datetime": datetime,
        "__name__": "study",
    }
    for library in ("numpy", "scipy.stats", "optuna", "ray.tune", "ray.tune.schedulers"):
        root = library.partition(".")[0]
        if re.search(rf"\b{'np' if root == 'numpy' else root}\.", code):
            names["np" if root == "numpy" else root] = __import__(library)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(compile("def f(trial):\n    return 1.0\n", "study.py", "exec"), names)
        try:
            exec(compile(code, "study.py", "exec"), names)
        except Exception as error:
            return f"{type(error).__name__}: {error}".splitlines()[0]
    texts = [f"{type(each.message).__name__}: {each.message}" for each in caught]
    return texts[0].splitlines()[0] if texts else "nothing"


def _answer_command(arguments: list[str], folder: Path) -> str:
    (folder / "empty.py").write_text("train = 5\n", encoding="utf-8")
    if "runs.db" in arguments:
        answer("tune(f, name='a', store='runs.db')", folder)
    printed = io.StringIO()
    with redirect_stderr(printed), redirect_stdout(io.StringIO()):
        code = main(arguments)
    return f"exit {code}: {printed.getvalue().splitlines()[0]}"


def clean(text: str, folder: Path) -> str:
    """Return an answer without what differs between two runs and machines."""
    return re.sub("@[0-9a-f]{12}", "@…", text.replace(f"{folder}/", "").replace(str(folder), "."))


def read_page() -> dict[tuple[str, str], str]:
    """Return the answers on the page by area and code."""
    if not PAGE.exists():
        return {}
    found, area = {}, ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            area = line.removeprefix("## ")
        elif line.startswith("| <pre>"):
            _, code, text, _ = (part.strip() for part in re.split(r"(?<!\\)\|", line))
            found[area, code] = text
    return found


def format_code(code: str) -> str:
    """Return code as a cell of a table."""
    lines = (line.replace("&", "&amp;").replace("<", "&lt;") for line in code.splitlines())
    return f"<pre>{'<br>'.join(lines)}</pre>".replace("|", "\\|")


def format_answer(text: str) -> str:
    """Return an answer as a cell of a table."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
    return re.sub(r"([*_`\[\]])", r"\\\1", escaped)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# Names that a user never wrote or read: modules of this package, and the paths of decoders.
INTERNAL = re.compile(
    r"paceline\.(core|api|machine|plan|worker|engines|store|analysis|live|plots)\b|\$\.|msgspec"
    r"|LogError|NoneType|object at 0x|BasePartMeta|Expected `|Struct|OptunaStudy|deadline_s"
    r"|(Float|Int|Choice)Domain"
)


@pytest.mark.parametrize(("area", "code"), ROWS, ids=[code.splitlines()[-1] for _, code in ROWS])
def test_a_mistake_gets_the_answer_on_the_page(
    area: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "ray." not in code:
        # Loaded by another test; what a function may have meant depends on it.
        monkeypatch.delitem(sys.modules, "ray.tune", raising=False)
    found = clean(answer(code, tmp_path), tmp_path)
    assert not INTERNAL.search(found), found
    assert found != "nothing"
    if WRITING:
        _write_row(area, code, found)
    assert read_page().get((area, format_code(code))) == format_answer(found)


def _write_row(area: str, code: str, found: str) -> None:
    rows = read_page()
    rows[area, format_code(code)] = format_answer(found)
    parts = [HEAD]
    for each, codes in MISTAKES.items():
        parts.append(f"\n## {each}\n\n| mistake | answer |\n|---|---|\n")
        known = ((format_code(line), rows.get((each, format_code(line)))) for line in codes)
        parts += [f"| {cell} | {text} |\n" for cell, text in known if text is not None]
    PAGE.write_text("".join(parts), encoding="utf-8")


@pytest.mark.skipif(WRITING, reason="the page is being written")
def test_there_are_as_many_mistakes_as_were_found_and_each_is_listed_once() -> None:
    assert len(ROWS) >= 83
    assert len(set(ROWS)) == len(ROWS)
    assert set(read_page()) == {(area, format_code(code)) for area, code in ROWS}
