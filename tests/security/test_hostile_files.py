"""Traces, checkpoints and database files from elsewhere: a sentence, and bounded memory."""

from __future__ import annotations

import gzip
import json
import os
import resource
import sqlite3
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import numpy
import pytest
from command_line import write_small_trace
from hostile_stores import STUDY, make_scene, write_store

import paceline as pl
from paceline.api.results import SavedCheckpoint
from paceline.core.codec import MAX_BYTES
from paceline.core.errors import CheckpointError, LogError, StoreError, TraceError
from paceline.engines.sim.traces import read_trace
from paceline.store import open_store
from paceline.worker import checkpoint_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from command_line import CommandLine


def keep(opened: dict[str, Any], scene: object) -> None:
    """Change nothing."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The file of a store with one study."""
    scene = make_scene(tmp_path)
    write_store(scene, keep, is_trained=False)
    return scene.store


def run_sql(path: Path, *statements: str) -> None:
    """Change a database as an attacker would."""
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n) SELECT 1, i, 'x' FROM n"
HUGE = "hex(zeroblob(400000000))"


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (
            [
                "DROP TABLE paceline_steps",
                f"CREATE VIEW paceline_steps(study, number, body) AS {ENDLESS}",
            ],
            "has a view 'paceline_steps', which no store has",
        ),
        (
            ["CREATE TRIGGER t AFTER INSERT ON paceline_inbox BEGIN SELECT 1; END"],
            "has a trigger 't', which no store has",
        ),
        (
            [f"ALTER TABLE paceline_studies ADD COLUMN more TEXT AS ({HUGE})"],
            "has a computed column 'more', which no store has",
        ),
    ],
)
def test_a_database_that_computes_its_rows_is_refused(
    store: Path, statements: list[str], words: str
) -> None:
    run_sql(store, *statements)
    with pytest.raises(StoreError, match=words):
        open_store(str(store), create=False)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param("x" * (MAX_BYTES + 2), "more than 64 MB", marks=pytest.mark.slow),
        pytest.param("x" * (MAX_BYTES + 2**21), "is too long", marks=pytest.mark.slow),
        ("[" * 100_000, "cannot be read"),
        ('{"number":' + "9" * 5_000 + "}", "cannot be read"),
        ('{"number": 1, "event": {"type": "opened"}}', "cannot be read"),
    ],
    ids=["long", "longer", "deep", "number", "cut"],
)
def test_a_step_that_cannot_be_one_is_an_error(store: Path, body: str, words: str) -> None:
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("UPDATE paceline_steps SET body = ? WHERE number = 0", (body,))
        connection.commit()
    with pytest.raises((LogError, StoreError), match=words):
        pl.load(STUDY, store)


def test_a_log_that_leads_back_to_its_beginning_is_an_error(store: Path) -> None:
    query = "SELECT body FROM paceline_steps ORDER BY number LIMIT 1"
    run_sql(store, f"UPDATE paceline_steps SET body = ({query}) WHERE number > 0")
    with pytest.raises(LogError, match=r"step 0 follows step 0 in the log"):
        pl.load(STUDY, store)


def test_a_log_whose_steps_contradict_each_other_is_an_error(
    store: Path, paceline: CommandLine
) -> None:
    run_sql(store, "DELETE FROM paceline_steps WHERE number BETWEEN 1 AND 4")
    for command in ("ls", "show", "story", "tree", "replay", "best"):
        name = () if command == "ls" else (STUDY,)
        done = paceline(command, *name, "--store", str(store))
        # A replay compares step by step, and finds the first difference.
        assert (command, done.code) == (command, 1 if command == "replay" else 2)
        assert "Traceback" not in done.err


TRACE = {"paceline_trace": 1, "name": "t", "metric": "loss", "mode": "min", "max_epochs": 2}
RUN = {"id": 0, "config": {"x": 1}, "values": [1.0, 0.5], "seconds": 1.0}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([TRACE, {**RUN, "config": {"x": "y" * (33 << 20)}}], "are not read: split the trace"),
        ([{**TRACE, "max_epochs": 10**12}, RUN], "must be from 1 to 1,000,000"),
        ([TRACE, {**RUN, "seconds": -1.0}], "negative"),
    ],
)
def test_a_trace_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, lines: list[object], words: str
) -> None:
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n".join(json.dumps(line).encode() for line in lines), 1))
    with pytest.raises(TraceError, match=words):
        read_trace(path)


@pytest.mark.slow
def test_a_bomb_of_a_trace_needs_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.jsonl.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(json.dumps(TRACE).encode() + b"\n")
        for _ in range(300):
            file.write(b" " * (1 << 20) + b"\n")
    assert path.stat().st_size < 2 << 20
    with pytest.raises(TraceError, match="more than 256 MB"):
        read_trace(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20  # KiB


def test_a_trace_of_a_device_is_bounded() -> None:
    with pytest.raises(TraceError, match="are not read"):
        read_trace("/dev/zero")


def flip(body: bytes, at: int) -> bytes:
    """Return bytes with one of them changed."""
    return body[:at] + bytes([body[at] ^ 0x55]) + body[at + 1 :]


def test_every_damaged_trace_gives_a_sentence_or_a_trace(tmp_path: Path) -> None:
    path = write_small_trace(tmp_path / "t.jsonl.gz")
    body = path.read_bytes()
    damaged = [body[:length] for length in range(0, len(body), 7)]
    damaged += [flip(body, at) for at in range(0, len(body), 7)]
    damaged += [gzip.compress(flip(gzip.decompress(body), at)) for at in range(0, 400, 7)]
    for each in damaged:
        path.write_bytes(each)
        with suppress(TraceError):
            read_trace(path)


# torch takes long to import.
slow = pytest.mark.slow
VALUES = {"kept": {"weights": numpy.arange(6.0).reshape(2, 3), "step": 3, "name": "x", "b": b"123"}}


def test_every_damaged_checkpoint_gives_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "0-1.ckpt"
    _, digest = checkpoint_file.write(path, VALUES)
    body = path.read_bytes()
    for each in [body[:length] for length in range(len(body))] + [
        flip(body, at) for at in range(len(body))
    ]:
        path.write_bytes(each)
        with pytest.raises(CheckpointError, match=r"0-1\.ckpt"):
            checkpoint_file.read(path, digest)
        with suppress(CheckpointError):
            checkpoint_file.read(path)


def write_header(path: Path, tree: object) -> None:
    """Write a checkpoint with this header and no buffers."""
    header = json.dumps(tree).encode()
    path.write_bytes(checkpoint_file.MAGIC + len(header).to_bytes(8, "little") + header)


def nest(depth: int) -> str:
    """Return lists in lists, as JSON."""
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    "tree",
    [
        *(
            pytest.param(
                {"kept": {"~": "tensor", "dtype": of, "shape": shape, "size": 0}}, marks=slow
            )
            for of, shape in (("float32", [1 << 50]), ("load", [0]), ("hub.load", [0]))
        ),
        {"kept": {"~": "array", "dtype": "O", "shape": [0], "size": 0}},
        {"kept": {"~": "array", "dtype": "<f8", "shape": [1 << 50, 0], "size": -8}},
        {"kept": {"~": "bytes", "size": 1 << 50}},
        {"kept": {"~": "int", "text": "9" * 10_000}},
        {"kept": {"~": "dict", "items": [[[], 1]]}},
        {"kept": {"~": "eval", "dtype": "1", "shape": [], "size": 0}},
        [1, 2],
        "text",
    ],
    ids=str,
)
def test_a_checkpoint_cannot_allocate_or_call_what_it_names(tmp_path: Path, tree: object) -> None:
    path = tmp_path / "0-1.ckpt"
    write_header(path, tree)
    with pytest.raises(CheckpointError, match=r"is damaged: its header cannot be read"):
        checkpoint_file.read(path)


def test_a_deeply_nested_checkpoint_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "0-1.ckpt"
    header = nest(100_000).encode()
    path.write_bytes(checkpoint_file.MAGIC + len(header).to_bytes(8, "little") + header)
    with pytest.raises(CheckpointError, match="is damaged"):
        checkpoint_file.read(path)


def make_link(path: Path) -> None:
    """Make a link to a device without an end."""
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [make_link, os.mkfifo])
def test_a_checkpoint_that_is_no_file_is_not_read(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "0-1.ckpt")
    with pytest.raises(CheckpointError, match=r"checkpoint 0-1\.ckpt cannot be read"):
        checkpoint_file.read(tmp_path / "0-1.ckpt")


@pytest.mark.parametrize(
    "name", ["../out.txt", "{folder}/out.txt", "a/../../out.txt", ".", "link/x"]
)
def test_files_of_a_checkpoint_stay_in_their_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    path = tmp_path / "0-1.ckpt"
    checkpoint_file.write(path, {"files": {name.format(folder=tmp_path): b"body"}})
    with pytest.raises(CheckpointError, match="outside its folder"):
        SavedCheckpoint(path, 1).to_directory(folder)
    assert not (tmp_path / "out.txt").exists()
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_output_of_a_worker_does_not_follow_a_link(tmp_path: Path) -> None:
    own = tmp_path / "settings"
    own.write_text("mine", encoding="utf-8")
    logs = tmp_path / "study" / "logs"
    logs.mkdir(parents=True)
    (logs / "attempt-0.log").symlink_to(own)
    space = {"x": pl.uniform(0, 1)}
    pl.tune(print_and_score, space=space, trials=1, slots=1, files=logs.parent, progress=False)
    assert own.read_text(encoding="utf-8") == "mine"
    assert (logs / "attempt-0.log").read_text(encoding="utf-8") == "output\n"


def print_and_score(x: float) -> float:
    """Print something and return a value."""
    print("output")  # noqa: T201
    return x
