"""The documentation of the command line agrees with the command line.

`PACELINE_GOLDEN=write pytest tests/cli/test_cli_docs.py` rewrites the generated parts of
`docs/cli.md` and the golden files of the other tests.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import click
import msgspec
import pytest

from paceline.analysis.checkpoint_inventory import CheckpointRow
from paceline.analysis.sharing import Change, NodeRow, Sharing
from paceline.analysis.summary import (
    Best,
    BestCheckpoint,
    Forecasts,
    GroupRow,
    StudyRow,
    StudySummary,
)
from paceline.api.comparison import CompareResult, CompareRow
from paceline.api.completion import Completion
from paceline.api.simulation import SimResult
from paceline.api.stored import CheckpointPage, StrayFile, StudyList, StudyPage, TrialRow
from paceline.cli.flags import VARIABLES
from paceline.cli.main import COMMANDS, commands

ROOT = Path(__file__).parents[2]
CLI = ROOT / "docs" / "cli.md"
JSON = ROOT / "docs" / "json.md"
# Each object of the documentation, by its heading.
OBJECTS: dict[str, type[msgspec.Struct]] = {
    "run": StudySummary,
    "simulate": SimResult,
    "A completion": Completion,
    "compare": CompareResult,
    "A row of compare": CompareRow,
    "ls": StudyList,
    "A study": StudyRow,
    "Forecasts": Forecasts,
    "show": StudyPage,
    "A trial": TrialRow,
    "A group": GroupRow,
    "best": Best,
    "A checkpoint's name": BestCheckpoint,
    "tree": Sharing,
    "A node": NodeRow,
    "A change": Change,
    "checkpoints": CheckpointPage,
    "A checkpoint": CheckpointRow,
    "A stray": StrayFile,
}


def read_help(name: str) -> str:
    """Return a command's help for a terminal of 90 columns."""
    with click.Context(commands, info_name="paceline") as ctx:
        command = commands.get_command(ctx, name) if name else commands
        assert command is not None
        inner = click.Context(
            command,
            parent=ctx if name else None,
            info_name=name or "paceline",
            terminal_width=90,
            help_option_names=["-h", "--help"],
        )
        return command.get_help(inner)


def write_variables() -> str:
    """Return the table of environment variables."""
    rows = [f"| `{each.name}` | `{each.default}` | {each.help} |" for each in VARIABLES]
    return "\n".join(["| variable | default | what it does |", "|---|---|---|", *rows])


def generate() -> dict[str, str]:
    """Return every generated part of `docs/cli.md`, by the name in its mark."""
    parts = {f"help {name}": f"```text\n{read_help(name)}\n```" for name in COMMANDS}
    return {"help": f"```text\n{read_help('')}\n```", **parts, "environment": write_variables()}


def fill(text: str) -> str:
    """Return the text with its generated parts replaced."""
    for name, part in generate().items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        assert text.count(begin) == text.count(end) == 1, f"docs/cli.md has no place for {name!r}"
        before, _, rest = text.partition(begin)
        text = before + f"{begin}\n\n{part}\n\n{end}" + rest.partition(end)[2]
    return text


def test_the_documentation_has_every_command_s_help_and_every_variable() -> None:
    text = CLI.read_text(encoding="utf-8")
    if os.environ.get("PACELINE_GOLDEN") == "write":
        CLI.write_text(fill(text), encoding="utf-8")
    assert CLI.read_text(encoding="utf-8") == fill(text)


def read_section(heading: str) -> str:
    """Return the text under a heading of `docs/json.md`."""
    found = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", JSON.read_text("utf-8"), re.M | re.S
    )
    assert found is not None, f"docs/json.md has no section {heading!r}"
    return found[1]


@pytest.mark.parametrize("heading", OBJECTS)
def test_the_documented_keys_are_the_fields_in_their_order(heading: str) -> None:
    keys = re.findall(r"^\| `(\w+)` \|", read_section(heading), re.M)
    assert keys == [field.name for field in msgspec.structs.fields(OBJECTS[heading])]


@pytest.mark.parametrize("heading", OBJECTS)
def test_every_key_has_a_unit_and_a_meaning(heading: str) -> None:
    for row in re.findall(r"^\| `\w+` \|.*$", read_section(heading), re.M):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 3, row
        assert all(cells), row


def test_only_one_module_reads_the_environment() -> None:
    readers = {
        path.name
        for path in (ROOT / "src" / "paceline").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    }
    # Workers and the service for shared GPUs inherit and extend the driver's environment; the fork
    # server marks the time in which it imports the user's modules. CUDA and torch have their own
    # variables for GPUs and for the network interface; onnxruntime has one for its telemetry.
    # PostgreSQL's library has some for encryption, and Ray one for how long it waits for its head.
    own = {"devices.py", "torch.py", "forkserver.py", "postgres_security.py", "runtime.py"}
    own |= {"head_watch.py"}
    assert readers == own | {"flags.py", "process.py", "mps.py", "worker_pool.py"}
