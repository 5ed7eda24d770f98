"""Stores: the contract on each of them, their addresses, and what they say when they refuse."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import types
from contextlib import ExitStack, closing
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.decisions import AnyDecision, Step
from paceline.core.errors import LogError, StoreError, StudyNotFound
from paceline.core.events import AnyEvent, ChangeSlots, Resumed
from paceline.core.values import LEVELS, Forecast, StudySpec
from paceline.store import MemoryStore, open_store
from paceline.store.schema import CHUNK
from paceline.store.sql import GROUP, SqlStore
from paceline.store.sqlite import SqliteFile
from paceline.testing.stores import DurableStoreContract, StoreContract, numbered, sample_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paceline.core.ports import Store


class TestMemoryStore(StoreContract):
    def make(self, tmp_path: Path) -> Store:
        return open_store("memory:", create=True)


class TestSqliteStore(DurableStoreContract):
    def make(self, tmp_path: Path) -> Store:
        return open_store(str(tmp_path / "runs.db"), create=True)

    def reopen(self, tmp_path: Path) -> Store:
        return open_store(str(tmp_path / "runs.db"), create=False)


class TestLazySqliteStore(StoreContract):
    def make(self, tmp_path: Path) -> Store:
        return open_store(str(tmp_path / "runs.db"), create=True, lazy=True)


# Random steps, made from the types alone: an entry that is added tomorrow is covered tomorrow.

_numbers = st.integers(-(2**63), 2**63 - 1)
_floats = st.floats(allow_nan=False, allow_infinity=False)
_texts = st.text(max_size=20)
_values = st.recursive(
    st.none() | st.booleans() | _numbers | _floats | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def _forecasts(draw: st.DrawFn) -> Forecast:
    epochs = sorted(draw(st.sets(st.integers(1, 1000), min_size=1, max_size=2)))
    row = st.lists(_floats, min_size=len(LEVELS), max_size=len(LEVELS)).map(sorted).map(tuple)
    return Forecast(tuple(epochs), tuple(draw(row) for _ in epochs))


_LEAVES: dict[object, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: _numbers,
    float: _floats,
    str: _texts,
    Any: _values,
    type(None): st.none(),
    Forecast: _forecasts(),
}
# A spec checks itself: its numbers are limits, its name is not empty, its range has two ends.
_IN_SPECS: dict[object, st.SearchStrategy[Any]] = {
    int: st.integers(1, 1000),
    float: st.floats(0.001, 1e9),
    str: st.text(min_size=1, max_size=20),
    tuple[float, float]: st.tuples(st.floats(-1e9, 0.0), st.floats(0.001, 1e9)),
}


def _of(kind: Any, leaves: dict[object, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:  # noqa: ANN401
    """Return a strategy for any type that an entry or one of its fields may have."""
    if kind in leaves:
        return leaves[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return st.one_of(*(_of(argument, leaves) for argument in arguments))
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return st.tuples(*(_of(argument, leaves) for argument in arguments))
    if origin is tuple:
        return st.lists(_of(arguments[0], leaves), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(*(_of(argument, leaves) for argument in arguments), max_size=3)
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    if kind is StudySpec:
        leaves = {**leaves, **_IN_SPECS}
    # The version of a log's format is not a number like others.
    fields = [field for field in msgspec.structs.fields(kind) if field.name != "format"]
    return st.builds(kind, **{field.name: _of(field.type, leaves) for field in fields})


_EVENTS, _DECISIONS = get_args(AnyEvent), get_args(AnyDecision)
_logs = st.lists(
    st.tuples(
        st.one_of(*(_of(kind, _LEAVES) for kind in _EVENTS)),
        st.lists(st.one_of(*(_of(kind, _LEAVES) for kind in _DECISIONS)), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=6,
).map(numbered)


@pytest.mark.parametrize("kind", _EVENTS + _DECISIONS)
def test_every_kind_of_entry_comes_back_as_it_was(kind: type) -> None:
    @settings(max_examples=10)
    @given(_of(kind, _LEAVES))
    def comes_back(entry: Any) -> None:  # noqa: ANN401
        step = Step(0, entry) if kind in _EVENTS else Step(0, Resumed(at=0.0), (entry,))
        store = MemoryStore()
        store.append("study", [step])
        assert list(store.read("study")) == [step]

    comes_back()


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Store]]:
    """One store of each kind, and a second look at the durable one. Studies gather in them."""
    folder = tmp_path_factory.mktemp("peers")
    durable, lazy = str(folder / "durable.db"), str(folder / "lazy.sqlite")
    with ExitStack() as stack:
        yield [
            stack.enter_context(closing(store))
            for store in (
                open_store("memory:", create=True),
                open_store(lazy, create=True, lazy=True),
                open_store(durable, create=True),
                open_store(durable, create=False),
            )
        ]


@given(log=_logs, size=st.integers(1, 4))
def test_memory_and_sqlite_agree_entry_by_entry(
    peers: list[Store], log: list[Step], size: int
) -> None:
    name = f"study {len(peers[0].studies())}"
    for store in peers[:-1]:
        for start in range(0, len(log), size):
            store.append(name, log[start : start + size])
    assert [list(store.read(name)) for store in peers] == [log] * len(peers)
    assert [list(store.studies()) for store in peers[1:]] == [peers[0].studies()] * 3


# Addresses.


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}"])
def test_a_path_and_a_url_mean_the_same_file(tmp_path: Path, form: str) -> None:
    path = tmp_path / "a b?c#d%20é.db"
    with closing(open_store(str(path), create=True)) as store:
        store.append("study", sample_log())
    with closing(open_store(form.format(path), create=False)) as store:
        assert list(store.studies()) == ["study"]
    assert os.listdir(tmp_path) == [path.name]


def test_a_relative_path_starts_at_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(open_store("sqlite:///relative.db", create=True)) as store:
        # What is opened stays the same file, wherever the process goes.
        monkeypatch.chdir("/")
        store.append("study", sample_log())
    assert os.listdir(tmp_path) == ["relative.db"]


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("mysql://host/db", "'mysql'"),
        ("postgres://me:secret@host/db", "'postgres'"),
        ("runs", "'runs'"),
        ("", "''"),
        ("sqlite://runs.db", "'sqlite://runs.db'"),
        ("sqlite:///", "'sqlite:///'"),
        ("sqlite:///:memory:", "'sqlite:///:memory:'"),
    ],
)
def test_an_address_that_names_no_store_is_told_what_is_allowed(url: str, named: str) -> None:
    with pytest.raises(StoreError) as caught:
        open_store(url, create=True)
    assert str(caught.value) == (
        f"{'the scheme ' if 'host' in url else ''}{named} names no store: "
        "give a path that ends in .db or .sqlite, sqlite:///relative.db, "
        "sqlite:////absolute/path.db, postgresql://user@host/database, or memory:."
    )


def test_a_store_that_is_only_read_is_never_made(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with pytest.raises(StoreError, match=r"there is no store at .*runs\.db: check the path"):
        open_store(str(path), create=False)
    assert os.listdir(tmp_path) == []


def test_importing_the_package_imports_no_database() -> None:
    program = "import sys, paceline.store; print('sqlalchemy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


# Files that are no store, or not one of ours.


def _newer(path: Path) -> None:
    open_store(str(path), create=True).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE paceline_store SET version = 7")


def _foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE trials (id INTEGER)")


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            _newer,
            "is a store of version 7, and this Paceline reads versions up to 1: "
            "upgrade Paceline to open it.",
        ),
        (
            _foreign,
            "is a database of something else, with a table 'trials': "
            "give the path of a store, or of a file that does not exist yet.",
        ),
        (
            lambda path: path.write_bytes(b"epoch,loss\n" * 1000),
            "is not an SQLite database: "
            "give the path of a store, or of a file that does not exist yet.",
        ),
    ],
    ids=["newer", "foreign", "not a database"],
)
def test_a_file_that_is_not_our_store_is_refused_and_left_alone(
    tmp_path: Path, make: Callable[[Path], None], sentence: str, create: bool
) -> None:
    path = tmp_path / "runs.db"
    make(path)
    before = path.read_bytes()
    with pytest.raises(StoreError) as caught:
        open_store(str(path), create=create)
    assert str(caught.value) == f"{path} {sentence}"
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["runs.db"]


def test_a_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    path.mkdir()
    with pytest.raises(StoreError, match="is a directory: give the path of a file, such as"):
        open_store(str(path), create=True)
    assert os.listdir(path) == []


@pytest.mark.parametrize("folder", ["missing", "file"])
def test_a_path_in_something_that_is_no_directory_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=f"{folder} is not a directory: make that directory"):
        open_store(str(tmp_path / folder / "runs.db"), create=True)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder nobody can write to")
def test_a_path_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(StoreError) as caught:
        open_store("/proc/runs.db", create=True)
    assert str(caught.value) == (
        "/proc/runs.db cannot be opened: check that you may write to the file and to its folder."
    )


def test_an_empty_file_is_a_store_that_was_never_finished(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    path.write_bytes(b"")
    with pytest.raises(StoreError, match="is empty: check the path"):
        open_store(str(path), create=False)
    assert path.read_bytes() == b""
    with closing(open_store(str(path), create=True)) as store:
        store.append("study", sample_log())
        assert list(store.read("study")) == sample_log()


def test_a_damaged_file_is_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(open_store(str(path), create=True)) as store:
        store.append("study", sample_log(reports=2_000))
    size = path.stat().st_size
    with path.open("r+b") as file:
        # All pages but those of the tables' names.
        file.seek(8 * 4096)
        file.write(b"\xff" * (size - 8 * 4096))
    with (
        closing(open_store(str(path), create=False)) as store,
        pytest.raises(StoreError, match="is damaged: restore it from a backup"),
    ):
        list(store.read("study"))


def test_a_step_that_does_not_decode_is_a_log_error(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(open_store(str(path), create=True)) as store:
        store.append("study", sample_log())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE paceline_steps SET body = '{}' WHERE number = 0")
    with (
        closing(open_store(str(path), create=False)) as store,
        pytest.raises(LogError, match="cannot be read"),
    ):
        list(store.read("study"))


# What SQLite says, in our words.


def _refusal(statements: list[str]) -> sqlite3.Error:
    """Return the error of the last statement, as a real database gives it."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for statement in statements[:-1]:
            connection.execute(statement)
        with pytest.raises(sqlite3.Error) as caught:
            connection.execute(statements[-1])
    return caught.value


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (
            [
                "PRAGMA max_page_count=2",
                "CREATE TABLE t (a)",
                "INSERT INTO t VALUES (zeroblob(9e4))",
            ],
            "the disk is full: free some space",
        ),
        (
            ["CREATE TABLE t (a)", "PRAGMA query_only=1", "INSERT INTO t VALUES (1)"],
            "cannot be written: check that you may write",
        ),
        (["SELECT * FROM absent"], "cannot be used: no such table: absent."),
    ],
    ids=["full", "read-only", "unknown"],
)
def test_what_the_database_says_becomes_one_sentence(statements: list[str], words: str) -> None:
    assert words in SqliteFile(Path("runs.db")).complaint(_refusal(statements))


def test_a_store_locked_by_a_hanging_process_is_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as hanging,
        closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as impatient,
    ):
        hanging.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.Error) as caught:
            impatient.execute("BEGIN IMMEDIATE")
    words = "was locked by another process for 60 s: end that process and try again."
    assert SqliteFile(path).complaint(caught.value) == f"{path} {words}"


def test_a_writer_that_ignores_the_claim_is_found_out(tmp_path: Path) -> None:
    log, path = sample_log(), str(tmp_path / "runs.db")
    with closing(open_store(path, create=True)) as first:
        first.append("study", log[:2])
        for lock in tmp_path.glob("*.lock"):
            lock.unlink()
        with closing(open_store(path, create=False)) as second:
            second.append("study", log[2:3])
        with pytest.raises(StoreError, match="already holds these entries from a second writer"):
            first.append("study", log[2:])
        # It has looked again: the log is whole and goes on.
        first.append("study", log[3:])
        assert list(first.read("study")) == log


# One writer.


def test_a_refused_writer_learns_who_writes_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with (
        closing(SqlStore(SqliteFile(path), create=True)) as first,
        closing(SqlStore(SqliteFile(path), create=False)) as second,
    ):
        first.claim("study")
        first.claim("study")
        with pytest.raises(StoreError) as caught:
            second.claim("study")
        second.claim("another study")
    assert str(caught.value) == (
        f"study 'study' in {path} is being written by process {os.getpid()}: "
        "wait until that ends or stop it, or choose another name for a new study."
    )


def test_a_claim_alone_makes_no_study_and_leaves_no_file(tmp_path: Path) -> None:
    with closing(SqlStore(SqliteFile(tmp_path / "runs.db"), create=True)) as store:
        store.claim("study")
        assert list(store.studies()) == []
    assert os.listdir(tmp_path) == ["runs.db"]


def test_two_names_of_one_file_meet_at_the_same_claim(tmp_path: Path) -> None:
    path, link = tmp_path / "runs.db", tmp_path / "link.db"
    link.symlink_to(path)
    with (
        closing(open_store(str(path), create=True)) as first,
        closing(open_store(str(link), create=False)) as second,
    ):
        first.append("study", sample_log()[:1])
        with pytest.raises(StoreError, match="is being written"):
            second.append("study", sample_log()[1:])


def test_a_claim_that_cannot_be_written_down_is_refused(tmp_path: Path) -> None:
    with closing(SqlStore(SqliteFile(tmp_path / "runs.db"), create=True)) as store:
        store.claim("study")
        (lock,) = tmp_path.glob("*.lock")
        lock.unlink()
        lock.mkdir()
        with (
            closing(SqlStore(SqliteFile(tmp_path / "runs.db"), create=False)) as second,
            pytest.raises(StoreError, match=r"cannot be locked \(Is a directory"),
        ):
            second.claim("study")
        lock.rmdir()


# The rest of what an SqlStore promises.


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "runs.db"), create=True)
    store.append("study", sample_log())
    store.close()
    for use in (store.studies, lambda: store.append("other", sample_log())):
        with pytest.raises(StoreError, match="is closed: open it again"):
            use()
    assert os.listdir(tmp_path) == ["runs.db"]


@pytest.mark.parametrize("length", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK])
def test_logs_around_the_size_of_a_chunk_are_read_whole(tmp_path: Path, length: int) -> None:
    log = sample_log(reports=length - 4)
    assert len(log) == length
    with closing(open_store(str(tmp_path / "runs.db"), create=True)) as store:
        store.append("study", log)
        assert list(store.read("study")) == log


def test_a_reader_that_never_ends_holds_nothing_open(tmp_path: Path) -> None:
    log = sample_log(reports=3 * CHUNK)
    store = open_store(str(tmp_path / "runs.db"), create=True)
    store.append("study", log)
    reader = store.read("study")
    assert next(reader) == log[0]
    store.close()
    assert os.listdir(tmp_path) == ["runs.db"]
    with pytest.raises(StoreError, match="is closed"):
        list(reader)


def test_a_lazy_store_shows_others_whole_groups_and_all_at_its_end(tmp_path: Path) -> None:
    log, path = sample_log(reports=GROUP + 10), str(tmp_path / "runs.db")
    lazy = open_store(path, create=True, lazy=True)
    with closing(open_store(path, create=False)) as reader:
        for step in log[: GROUP - 1]:
            lazy.append("study", [step])
        assert list(reader.studies()) == []
        for step in log[GROUP - 1 :]:
            lazy.append("study", [step])
        assert list(reader.read("study")) == log[:GROUP]
        lazy.close()
        assert list(reader.read("study")) == log


def test_a_lazy_store_claims_at_the_first_append(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db")
    with (
        closing(open_store(path, create=True, lazy=True)) as lazy,
        closing(open_store(path, create=False)) as other,
    ):
        lazy.append("study", sample_log())
        with pytest.raises(StoreError, match="is being written"):
            other.append("study", sample_log())


def test_a_lazy_store_that_cannot_commit_says_so_and_lets_go(tmp_path: Path) -> None:
    log, path = sample_log(), str(tmp_path / "runs.db")
    lazy = open_store(path, create=True, lazy=True)
    lazy.append("study", log)
    for lock in tmp_path.glob("*.lock"):
        lock.unlink()
    with closing(open_store(path, create=False)) as second:
        second.append("study", log[:1])
        with pytest.raises(StoreError, match="a second writer"):
            lazy.close()
        assert list(second.read("study")) == log[:1]
    lazy.close()
    assert os.listdir(tmp_path) == ["runs.db"]


def test_a_study_that_is_not_there_is_told_the_nearest(tmp_path: Path) -> None:
    with closing(open_store(str(tmp_path / "runs.db"), create=True)) as store:
        with pytest.raises(StudyNotFound, match=r"runs.db: it holds no study yet\."):
            store.read("mnist")
        store.append("mnist", sample_log())
        with pytest.raises(StudyNotFound, match=r"no study 'mnits' in .*: did you mean 'mnist'\?"):
            store.read("mnits")
        with pytest.raises(StudyNotFound, match=r"it holds 1, the newest is 'mnist'\."):
            store.post("cifar", ChangeSlots(1))


def test_a_name_that_is_not_text_is_refused(tmp_path: Path) -> None:
    with (
        closing(open_store(str(tmp_path / "runs.db"), create=True)) as store,
        pytest.raises(StoreError, match=r"'\\udcff' is not text: choose another name"),
    ):
        store.append("\udcff", sample_log())
