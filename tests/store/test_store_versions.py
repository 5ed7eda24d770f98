"""Stores of every version: readable as they are, upgraded by writers, and resumed to the end."""

from __future__ import annotations

import shutil
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import inspect, text
from store_files import COMMAND, CUT, FOLDER, WHOLE, load

from paceline.api.simulation import read_simulation
from paceline.api.stored import fold_log, replay_log
from paceline.core.errors import StoreError
from paceline.store import open_store
from paceline.store.schema import MIGRATIONS, newest_version

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection, Engine

    from paceline.core.ports import Store
    from paceline.store.sql import SqlStore

FILES = [
    f"v{version}.{kind}" for version in range(1, newest_version() + 1) for kind in ("sqlite", "sql")
]


def copy_store(request: pytest.FixtureRequest, name: str, folder: Path) -> str:
    """Copy one of the stored files and return its URL."""
    if name.endswith(".sql"):
        return load(request.getfixturevalue("postgres"), FOLDER / name)
    return str(shutil.copy(FOLDER / name, folder))


@pytest.fixture(params=FILES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store of each version and kind."""
    return copy_store(request, request.param, tmp_path)


@pytest.fixture(params=["sqlite", "sql"])
def newest(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store of the newest version, of each kind."""
    return copy_store(request, f"v{newest_version()}.{request.param}", tmp_path)


@pytest.fixture
def new_url(url: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A URL of the same kind of database as `url`, without a store."""
    if url.startswith("postgresql:"):
        return str(request.getfixturevalue("postgres").url())
    return str(tmp_path / "new.sqlite")


def get_engine(store: Store) -> Engine:
    """Return the engine of a store's database."""
    found: SqlStore = store  # type: ignore[assignment]
    return found._reads


def list_tables(store: Store) -> set[str]:
    """Return the names of the tables of a store."""
    return set(inspect(get_engine(store)).get_table_names())


def describe_tables(store: Store) -> dict[str, object]:
    """Return the columns, keys and constraints of the tables of a store."""
    inspector = inspect(get_engine(store))
    return {
        name: (
            [
                (column["name"], str(column["type"]), column["nullable"])
                for column in inspector.get_columns(name)
            ],
            inspector.get_pk_constraint(name)["constrained_columns"],
            [
                (key["constrained_columns"], key["referred_table"], key["referred_columns"])
                for key in inspector.get_foreign_keys(name)
            ],
            [unique["column_names"] for unique in inspector.get_unique_constraints(name)],
            sorted(str(index["column_names"]) for index in inspector.get_indexes(name)),
        )
        for name in inspector.get_table_names()
    }


def test_a_file_of_every_version_is_in_the_repository() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(FILES), "run `make stores`"


def test_reading_a_store_of_any_version_does_not_change_it(url: str, tmp_path: Path) -> None:
    before = [path.read_bytes() for path in tmp_path.glob("*.sqlite")]
    with closing(open_store(url, create=False)) as store:
        assert list(store.studies()) == [WHOLE, CUT]
        assert fold_log(store.read(WHOLE)).end is not None
        assert fold_log(store.read(CUT)).end is None
        assert list(store.inbox(CUT)) == [(1, COMMAND)]
    assert [path.read_bytes() for path in tmp_path.glob("*.sqlite")] == before


def test_a_study_of_any_version_resumes_to_its_end_and_replays(url: str) -> None:
    with closing(open_store(url, create=False)) as store:
        log = list(store.read(CUT))
        read_simulation(log).resume(log, remember=lambda steps: store.append(CUT, steps))
        for name in (WHOLE, CUT):
            assert fold_log(store.read(name)).end is not None
            assert replay_log(store.read(name)).difference is None


def test_an_upgraded_store_has_the_same_tables_as_a_new_one(url: str, new_url: str) -> None:
    with (
        closing(open_store(url, create=False)) as upgraded,
        closing(open_store(new_url, create=True)) as new,
    ):
        upgraded.claim(CUT)
        assert describe_tables(upgraded) == describe_tables(new)


# A version after the newest one: one function.


def add_a_table(connection: Connection) -> None:
    """Change the tables as a later version might."""
    connection.execute(text("CREATE TABLE paceline_more (number INTEGER PRIMARY KEY)"))


def fail_half_way(connection: Connection) -> None:
    """Begin like a later version, then fail."""
    add_a_table(connection)
    raise StoreError("the disk is full")


def test_readers_do_not_change_an_older_store_and_writers_upgrade_it(
    newest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = newest_version()
    monkeypatch.setattr("paceline.store.schema.MIGRATIONS", [*MIGRATIONS, add_a_table])
    with closing(open_store(newest, create=False)) as reader:
        assert fold_log(reader.read(WHOLE)).end is not None
        assert reader.post(CUT, COMMAND) == 2
        assert "paceline_more" not in list_tables(reader)
        with (
            closing(open_store(newest, create=False)) as writer,
            closing(open_store(newest, create=False)) as other,
        ):
            writer.claim(CUT)
            # It opened the older version, and finds the store upgraded.
            other.claim(WHOLE)
            assert "paceline_more" in list_tables(writer)
        # A reader that opened the older version reads on.
        assert fold_log(reader.read(WHOLE)).end is not None
    monkeypatch.undo()
    with pytest.raises(StoreError, match=f"of version {version + 1}, and this Paceline reads"):
        open_store(newest, create=True)


def test_a_migration_that_fails_leaves_the_store_unchanged(
    newest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("paceline.store.schema.MIGRATIONS", [*MIGRATIONS, fail_half_way])
        with closing(open_store(newest, create=False)) as store:
            with pytest.raises(StoreError, match="the disk is full"):
                store.claim(CUT)
            assert "paceline_more" not in list_tables(store)
    with closing(open_store(newest, create=False)) as store:
        store.claim(CUT)
        assert list(store.studies()) == [WHOLE, CUT]
