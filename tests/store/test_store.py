"""Stores: the contract for each kind, their URLs, and their errors."""

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
from paceline.core.domains import ChoiceDomain, FloatDomain, IntDomain
from paceline.core.errors import LogError, StoreError, StudyNotFound
from paceline.core.events import AnyEvent, ChangeSlots, Resumed
from paceline.core.forecast_quantiles import LEVELS, Forecast
from paceline.core.values import GroupSpec, StudySpec
from paceline.store import MemoryStore, open_store
from paceline.store.schema import CHUNK_SIZE
from paceline.store.sql import GROUP_SIZE, SqlStore
from paceline.store.sqlite import SqliteFile
from paceline.testing.stores import (
    DurableStoreContract,
    StoreContract,
    make_sample_log,
    number_steps,
)

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


# Random steps, generated from the types alone, so that a new kind of entry is covered too.

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
    # Domains validate their limits.
    FloatDomain: st.builds(
        FloatDomain, low=st.floats(0.001, 1.0), high=st.floats(1.0, 1e9), log=st.booleans()
    ),
    IntDomain: st.builds(
        IntDomain,
        low=st.integers(1, 9),
        high=st.integers(9, 99),
        step=st.just(1),
        log=st.booleans(),
    ),
    ChoiceDomain: st.builds(
        ChoiceDomain, choices=st.lists(st.text(max_size=20), min_size=1, max_size=3).map(tuple)
    ),
}
# A spec validates its fields: numbers are limits, the name is not empty, a range has two ends.
_IN_SPECS: dict[object, st.SearchStrategy[Any]] = {
    int: st.integers(1, 1000),
    float: st.floats(0.001, 1e9),
    str: st.text(min_size=1, max_size=20),
    tuple[float, float]: st.tuples(st.floats(-1e9, 0.0), st.floats(0.001, 1e9)),
}


def _strategy(kind: Any, leaves: dict[object, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:  # noqa: ANN401
    """Return a strategy for the type of an entry or of one of its fields."""
    if kind in leaves:
        return leaves[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return st.one_of(*(_strategy(argument, leaves) for argument in arguments))
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return st.tuples(*(_strategy(argument, leaves) for argument in arguments))
    if origin is tuple:
        # Studies that run together have different names; no other values must differ.
        unique = (lambda group: group.name) if arguments[0] is GroupSpec else None
        items = _strategy(arguments[0], leaves)
        return st.lists(items, max_size=3, unique_by=unique).map(tuple)
    if origin is dict:
        return st.dictionaries(*(_strategy(argument, leaves) for argument in arguments), max_size=3)
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    if kind is StudySpec:
        leaves = {**leaves, **_IN_SPECS}
    # The version of the log format is not an arbitrary number.
    fields = [field for field in msgspec.structs.fields(kind) if field.name != "format"]
    return st.builds(kind, **{field.name: _strategy(field.type, leaves) for field in fields})


_EVENTS, _DECISIONS = get_args(AnyEvent), get_args(AnyDecision)
_logs = st.lists(
    st.tuples(
        st.one_of(*(_strategy(kind, _LEAVES) for kind in _EVENTS)),
        st.lists(st.one_of(*(_strategy(kind, _LEAVES) for kind in _DECISIONS)), max_size=3).map(
            tuple
        ),
    ),
    min_size=1,
    max_size=6,
).map(number_steps)


@pytest.mark.parametrize("kind", _EVENTS + _DECISIONS)
def test_every_kind_of_entry_is_read_as_it_was_written(kind: type) -> None:
    @settings(max_examples=10)
    @given(_strategy(kind, _LEAVES))
    def check(entry: Any) -> None:  # noqa: ANN401
        step = Step(0, entry) if kind in _EVENTS else Step(0, Resumed(at=0.0), (entry,))
        store = MemoryStore()
        store.append("study", [step])
        assert list(store.read("study")) == [step]

    check()


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Store]]:
    """One store of each kind, and the durable one opened twice. Examples add studies to them."""
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


# URLs.


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}"])
def test_a_path_and_a_url_mean_the_same_file(tmp_path: Path, form: str) -> None:
    path = tmp_path / "a b?c#d%20é.db"
    with closing(open_store(str(path), create=True)) as store:
        store.append("study", make_sample_log())
    with closing(open_store(form.format(path), create=False)) as store:
        assert list(store.studies()) == ["study"]
    assert os.listdir(tmp_path) == [path.name]


def test_a_relative_path_starts_at_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(open_store("sqlite:///relative.db", create=True)) as store:
        # An open store keeps its file when the process changes its directory.
        monkeypatch.chdir("/")
        store.append("study", make_sample_log())
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
def test_an_invalid_url_is_refused_with_the_valid_forms(url: str, named: str) -> None:
    with pytest.raises(StoreError) as caught:
        open_store(url, create=True)
    assert str(caught.value) == (
        f"{'the scheme ' if 'host' in url else ''}{named} is not a store URL: "
        "give a path that ends in .db or .sqlite, sqlite:///relative.db, "
        "sqlite:////absolute/path.db, postgresql://user@host/database, or memory:."
    )


def test_opening_without_create_creates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with pytest.raises(StoreError, match=r"there is no store at .*runs\.db: check the path"):
        open_store(str(path), create=False)
    assert os.listdir(tmp_path) == []


def test_importing_the_package_imports_no_database() -> None:
    program = "import sys, paceline.store; print('sqlalchemy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


# Files that are not a store, or not one that can be read.


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
            "is a database of another program, with a table 'trials': "
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
def test_a_file_that_is_not_a_readable_store_is_refused_and_unchanged(
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
def test_a_path_whose_parent_is_not_a_directory_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=f"{folder} is not a directory: create the directory"):
        open_store(str(tmp_path / folder / "runs.db"), create=True)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder that cannot be written")
def test_a_path_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(StoreError) as caught:
        open_store("/proc/runs.db", create=True)
    assert str(caught.value) == (
        "/proc/runs.db cannot be opened: check that the file and its folder are writable."
    )


def test_an_empty_file_becomes_a_store_only_with_create(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    path.write_bytes(b"")
    with pytest.raises(StoreError, match="is empty: check the path"):
        open_store(str(path), create=False)
    assert path.read_bytes() == b""
    with closing(open_store(str(path), create=True)) as store:
        store.append("study", make_sample_log())
        assert list(store.read("study")) == make_sample_log()


def test_a_damaged_file_is_reported_as_damaged(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(open_store(str(path), create=True)) as store:
        store.append("study", make_sample_log(reports=2_000))
    size = path.stat().st_size
    with path.open("r+b") as file:
        # All pages except those with the schema.
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
        store.append("study", make_sample_log())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE paceline_steps SET body = '{}' WHERE number = 0")
    with (
        closing(open_store(str(path), create=False)) as store,
        pytest.raises(LogError, match="cannot be read"),
    ):
        list(store.read("study"))


# Errors of SQLite as sentences.


def _provoke_error(statements: list[str]) -> sqlite3.Error:
    """Return the error that the last statement raises in a real database."""
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
            "cannot be written: check that the file and its folder are writable",
        ),
        (["SELECT * FROM absent"], "cannot be used: no such table: absent."),
    ],
    ids=["full", "read-only", "unknown"],
)
def test_an_error_of_the_database_becomes_one_sentence(statements: list[str], words: str) -> None:
    assert words in SqliteFile(Path("runs.db")).explain_error(_provoke_error(statements))


def test_a_lock_held_by_a_hanging_process_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as hanging,
        closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as impatient,
    ):
        hanging.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.Error) as caught:
            impatient.execute("BEGIN IMMEDIATE")
    words = "was locked by another process for 60 s: end that process and try again."
    assert SqliteFile(path).explain_error(caught.value) == f"{path} {words}"


def test_a_second_writer_that_ignores_the_claim_is_detected(tmp_path: Path) -> None:
    log, path = make_sample_log(), str(tmp_path / "runs.db")
    with closing(open_store(path, create=True)) as first:
        first.append("study", log[:2])
        for lock in tmp_path.glob("*.lock"):
            lock.unlink()
        with closing(open_store(path, create=False)) as second:
            second.append("study", log[2:3])
        with pytest.raises(StoreError, match="already holds these entries from a second writer"):
            first.append("study", log[2:])
        # The store has read the end of the log again, and can append.
        first.append("study", log[3:])
        assert list(first.read("study")) == log


# One writer.


def test_the_error_of_a_second_writer_names_the_first_one(tmp_path: Path) -> None:
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
        "wait for it to end or stop it, or choose another name for a new study."
    )


def test_a_claim_alone_creates_no_study_and_leaves_no_file(tmp_path: Path) -> None:
    with closing(SqlStore(SqliteFile(tmp_path / "runs.db"), create=True)) as store:
        store.claim("study")
        assert list(store.studies()) == []
    assert os.listdir(tmp_path) == ["runs.db"]


def test_two_paths_of_one_file_share_its_claims(tmp_path: Path) -> None:
    path, link = tmp_path / "runs.db", tmp_path / "link.db"
    link.symlink_to(path)
    with (
        closing(open_store(str(path), create=True)) as first,
        closing(open_store(str(link), create=False)) as second,
    ):
        first.append("study", make_sample_log()[:1])
        with pytest.raises(StoreError, match="is being written"):
            second.append("study", make_sample_log()[1:])


def test_a_claim_whose_lock_file_cannot_be_opened_is_refused(tmp_path: Path) -> None:
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


# Other promises of SqlStore.


def test_using_a_closed_store_is_an_error(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "runs.db"), create=True)
    store.append("study", make_sample_log())
    store.close()
    for use in (store.studies, lambda: store.append("other", make_sample_log())):
        with pytest.raises(StoreError, match="is closed: open it again"):
            use()
    assert os.listdir(tmp_path) == ["runs.db"]


@pytest.mark.parametrize("length", [CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1, 2 * CHUNK_SIZE])
def test_logs_around_the_chunk_size_are_read_completely(tmp_path: Path, length: int) -> None:
    log = make_sample_log(reports=length - 4)
    assert len(log) == length
    with closing(open_store(str(tmp_path / "runs.db"), create=True)) as store:
        store.append("study", log)
        assert list(store.read("study")) == log


def test_an_unfinished_reader_holds_nothing_open(tmp_path: Path) -> None:
    log = make_sample_log(reports=3 * CHUNK_SIZE)
    store = open_store(str(tmp_path / "runs.db"), create=True)
    store.append("study", log)
    reader = store.read("study")
    assert next(reader) == log[0]
    store.close()
    assert os.listdir(tmp_path) == ["runs.db"]
    with pytest.raises(StoreError, match="is closed"):
        list(reader)


def test_a_lazy_store_commits_groups_and_the_rest_at_close(tmp_path: Path) -> None:
    log, path = make_sample_log(reports=GROUP_SIZE + 10), str(tmp_path / "runs.db")
    lazy = open_store(path, create=True, lazy=True)
    with closing(open_store(path, create=False)) as reader:
        for step in log[: GROUP_SIZE - 1]:
            lazy.append("study", [step])
        assert list(reader.studies()) == []
        for step in log[GROUP_SIZE - 1 :]:
            lazy.append("study", [step])
        assert list(reader.read("study")) == log[:GROUP_SIZE]
        lazy.close()
        assert list(reader.read("study")) == log


def test_a_lazy_store_claims_at_the_first_append(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db")
    with (
        closing(open_store(path, create=True, lazy=True)) as lazy,
        closing(open_store(path, create=False)) as other,
    ):
        lazy.append("study", make_sample_log())
        with pytest.raises(StoreError, match="is being written"):
            other.append("study", make_sample_log())


def test_a_lazy_store_that_cannot_commit_raises_and_releases_its_claim(tmp_path: Path) -> None:
    log, path = make_sample_log(), str(tmp_path / "runs.db")
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


def test_the_error_for_a_missing_study_suggests_the_nearest_name(tmp_path: Path) -> None:
    with closing(open_store(str(tmp_path / "runs.db"), create=True)) as store:
        with pytest.raises(StudyNotFound, match=r"runs.db: it holds no study yet\."):
            store.read("mnist")
        store.append("mnist", make_sample_log())
        with pytest.raises(StudyNotFound, match=r"no study 'mnits' in .*: did you mean 'mnist'\?"):
            store.read("mnits")
        with pytest.raises(StudyNotFound, match=r"it holds 1, the newest is 'mnist'\."):
            store.post("cifar", ChangeSlots(1))


def test_a_name_that_is_not_text_is_refused(tmp_path: Path) -> None:
    with (
        closing(open_store(str(tmp_path / "runs.db"), create=True)) as store,
        pytest.raises(StoreError, match=r"'\\udcff' is not text: choose another name"),
    ):
        store.append("\udcff", make_sample_log())
