"""Stores of every version: read as they are, brought up to date by who writes, and gone on with."""

from __future__ import annotations

import shutil
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Column, Integer, inspect
from store_files import CUT, FOLDER, ORDER, WHOLE, load

from paceline.api.simulation import simulation_of
from paceline.api.stored import folded, replayed
from paceline.core.errors import StoreError
from paceline.store import open_store
from paceline.store.migrations import MIGRATIONS
from paceline.store.schema import TABLES

if TYPE_CHECKING:
    from pathlib import Path

    from alembic.operations import Operations
    from sqlalchemy import Engine

    from paceline.core.ports import Store
    from paceline.store.sql import SqlStore

FILES = [
    f"v{version}.{kind}" for version in range(1, len(MIGRATIONS) + 1) for kind in ("sqlite", "sql")
]


def url_of(request: pytest.FixtureRequest, name: str, folder: Path) -> str:
    """Return the address of a copy of one of the kept files."""
    if name.endswith(".sql"):
        return load(request.getfixturevalue("cluster"), FOLDER / name)
    return str(shutil.copy(FOLDER / name, folder))


@pytest.fixture(params=FILES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store of each version and kind."""
    return url_of(request, request.param, tmp_path)


@pytest.fixture(params=["sqlite", "sql"])
def newest(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store of the newest version, of each kind."""
    return url_of(request, f"v{len(MIGRATIONS)}.{request.param}", tmp_path)


def engine_of(store: Store) -> Engine:
    """Return what leads to a store's database."""
    found: SqlStore = store  # type: ignore[assignment]
    return found._reads


def tables_of(store: Store) -> set[str]:
    """Return the names of the tables of a store."""
    return set(inspect(engine_of(store)).get_table_names())


def test_every_version_is_kept() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(FILES), "run `make stores`"


def test_a_store_of_any_version_is_read_as_it_is(url: str, tmp_path: Path) -> None:
    before = [path.read_bytes() for path in tmp_path.glob("*.sqlite")]
    with closing(open_store(url, create=False)) as store:
        assert list(store.studies()) == [WHOLE, CUT]
        assert folded(store.read(WHOLE)).end is not None
        assert folded(store.read(CUT)).end is None
        assert list(store.inbox(CUT)) == [(1, ORDER)]
    assert [path.read_bytes() for path in tmp_path.glob("*.sqlite")] == before


def test_a_study_of_any_version_goes_on_to_its_end_and_replays(url: str) -> None:
    with closing(open_store(url, create=False)) as store:
        log = list(store.read(CUT))
        simulation_of(log).resume(log, remember=lambda steps: store.append(CUT, steps))
        for name in (WHOLE, CUT):
            assert folded(store.read(name)).end is not None
            assert replayed(store.read(name)).difference is None


def test_the_tables_that_migrations_make_are_those_that_are_asked(url: str) -> None:
    with closing(open_store(url, create=False)) as store:
        store.claim(CUT)
        with engine_of(store).connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), TABLES) == []


# A version that is still to come.


def add_a_table(operations: Operations) -> None:
    """What the next version might bring."""
    operations.create_table("paceline_more", Column("number", Integer, primary_key=True))


def fail_half_way(operations: Operations) -> None:
    """Begin as the next version might, and break."""
    add_a_table(operations)
    raise StoreError("the disk is full")


def test_an_older_store_is_left_alone_by_readers_and_brought_up_by_writers(
    newest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = len(MIGRATIONS)
    monkeypatch.setattr("paceline.store.migrations.MIGRATIONS", [*MIGRATIONS, add_a_table])
    with closing(open_store(newest, create=False)) as reader:
        assert folded(reader.read(WHOLE)).end is not None
        assert reader.post(CUT, ORDER) == 2
        assert "paceline_more" not in tables_of(reader)
        with (
            closing(open_store(newest, create=False)) as writer,
            closing(open_store(newest, create=False)) as other,
        ):
            writer.claim(CUT)
            # It opened an older store, and finds it brought up.
            other.claim(WHOLE)
            assert "paceline_more" in tables_of(writer)
        # Who reads goes on reading.
        assert folded(reader.read(WHOLE)).end is not None
    monkeypatch.undo()
    with pytest.raises(StoreError, match=f"of version {version + 1}, and this Paceline reads"):
        open_store(newest, create=True)


def test_a_migration_that_fails_leaves_the_store_as_it_was(
    newest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("paceline.store.migrations.MIGRATIONS", [*MIGRATIONS, fail_half_way])
        with closing(open_store(newest, create=False)) as store:
            with pytest.raises(StoreError, match="the disk is full"):
                store.claim(CUT)
            assert "paceline_more" not in tables_of(store)
    with closing(open_store(newest, create=False)) as store:
        store.claim(CUT)
        assert list(store.studies()) == [WHOLE, CUT]
