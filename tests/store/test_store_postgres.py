"""The PostgreSQL store: the contract, lost connections, one driver per study, URLs, permissions."""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from postgres_server import PASSWORD, PASSWORD_USER, CuttingProxy, end_sessions, get_schema

from paceline.core.errors import PacelineWarning, StoreError, StudyRunning
from paceline.core.events import CapacityChanged, ChangeSlots
from paceline.store import find_study_folder, hide_password, open_store, sql
from paceline.testing.stores import (
    DurableStoreContract,
    StoreContract,
    make_sample_log,
    number_steps,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.postgres import PostgresServer

    from paceline.core.ports import Store


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """The URL of an empty schema."""
    return postgres.url()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """A store in an empty schema."""
    with closing(open_store(url, create=True)) as store:
        yield store


class TestPostgresStore(DurableStoreContract):
    @pytest.fixture(autouse=True)
    def choose_schema(self, url: str) -> None:
        self.url = url

    def make(self, tmp_path: Path) -> Store:
        return open_store(self.url, create=True)

    def reopen(self, tmp_path: Path) -> Store:
        return open_store(self.url, create=False)


class TestLazyPostgresStore(StoreContract):
    @pytest.fixture(autouse=True)
    def choose_schema(self, url: str) -> None:
        self.url = url

    def make(self, tmp_path: Path) -> Store:
        return open_store(self.url, create=True, lazy=True)


# One driver per study.


def test_the_error_of_a_second_driver_names_the_process_and_machine_of_the_first(
    store: Store, url: str
) -> None:
    store.claim("study")
    with closing(open_store(url, create=False)) as second, pytest.raises(StudyRunning) as caught:
        second.claim("study")
    holder = f"process {os.getpid()} on {socket.gethostname()}"
    assert caught.value.holder == holder
    assert str(caught.value) == (
        f"study 'study' in {url} is being written by {holder}: "
        "wait for it to end or stop it, or choose another name for a new study."
    )


def test_studies_of_one_name_in_two_schemas_are_independent(
    store: Store, postgres: PostgresServer
) -> None:
    store.append("study", make_sample_log())
    with closing(open_store(postgres.url(), create=True)) as other:
        other.append("study", make_sample_log())


def test_a_driver_that_lost_its_connection_goes_on_if_no_other_resumed_the_study(
    store: Store, postgres: PostgresServer
) -> None:
    log = make_sample_log()
    for step in log:
        store.append("study", [step])
        assert end_sessions(postgres)
    assert list(store.read("study")) == log
    assert store.holder("study") is None
    assert list(store.inbox("study")) == []
    # Reading the inbox has acquired the claim again.
    assert store.holder("study") is not None


def test_a_driver_that_lost_its_connection_cannot_write_after_another_resumed_the_study(
    store: Store, url: str, postgres: PostgresServer
) -> None:
    log = make_sample_log()
    store.append("study", log[:2])
    end_sessions(postgres)
    with closing(open_store(url, create=False)) as second:
        second.append("study", log[2:4])
        for use in (lambda: store.append("study", log[2:]), lambda: store.inbox("study")):
            with pytest.raises(StudyRunning, match=r"'study' was taken over by process \d+ on "):
                use()
        second.append("study", log[4:])
        assert list(second.read("study")) == log


# The first driver's two steps have five entries.
@pytest.mark.parametrize("entries", [1, 2, 5, 6])
def test_a_driver_that_lost_its_connection_detects_entries_of_another_that_has_ended(
    store: Store, url: str, postgres: PostgresServer, entries: int
) -> None:
    log = make_sample_log()
    assert log[4].number - log[2].number == 5
    store.append("study", log[:2])
    end_sessions(postgres)
    other = number_steps([(CapacityChanged(at=7.0, slots=()), ())] * entries, log[2].number)
    with closing(open_store(url, create=False)) as second:
        second.append("study", other)
    with pytest.raises(StoreError, match="was written by another driver while the connection was"):
        store.append("study", log[2:4])
    assert list(store.read("study")) == [*log[:2], *other]


@pytest.mark.parametrize("delivered", [True, False])
def test_a_connection_lost_at_the_commit_neither_loses_nor_repeats_steps(
    url: str, postgres: PostgresServer, tmp_path: Path, delivered: bool
) -> None:
    log = make_sample_log()
    with (
        CuttingProxy(postgres, tmp_path) as proxy,
        closing(open_store(proxy.url(url), create=True)) as store,
    ):
        for step in log:
            proxy.deliver = delivered
            store.append("study", [step])
            assert proxy.deliver is None
    with closing(open_store(url, create=False)) as store:
        assert list(store.read("study")) == log


# A server that becomes unavailable.


@pytest.mark.filterwarnings("ignore:.* is unavailable")
def test_a_store_waits_for_a_server_that_restarts(store: Store, postgres: PostgresServer) -> None:
    log = make_sample_log()
    store.append("study", log[:2])
    postgres.stop()
    starting = threading.Thread(target=postgres.start)
    starting.start()
    store.append("study", log[2:])
    assert list(store.read("study")) == log
    starting.join()


def test_a_server_that_stays_down_is_an_error_and_nothing_is_lost(
    store: Store, url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "PATIENCE_S", 0.0)
    log = make_sample_log()
    store.append("study", log[:2])
    postgres.stop()
    try:
        for use in (lambda: store.append("study", log[2:]), lambda: open_store(url, create=True)):
            with pytest.raises(StoreError, match=r"cannot be reached \(.*the study can be resumed"):
                use()
    finally:
        postgres.start()
    store.append("study", log[2:])
    assert list(store.read("study")) == log


def test_waiting_for_a_server_warns_once(
    store: Store, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "PAUSES_S", ())
    monkeypatch.setattr(sql, "LONGEST_S", 0.1)
    monkeypatch.setattr(sql, "PATIENCE_S", 0.5)
    postgres.stop()
    try:
        with (
            pytest.warns(PacelineWarning) as warned,
            pytest.raises(StoreError, match="cannot be reached"),
        ):
            store.studies()
    finally:
        postgres.start()
    assert len(warned) == 1
    assert str(warned[0].message).endswith("is unavailable: retrying for up to 0.5 s.")


def test_a_command_is_posted_once_or_not_at_all(
    store: Store, url: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    store.append("study", make_sample_log())
    with (
        CuttingProxy(postgres, tmp_path) as proxy,
        closing(open_store(proxy.url(url), create=False)) as other,
    ):
        proxy.deliver = True
        with pytest.raises(StoreError, match="cannot be reached"):
            other.post("study", ChangeSlots(1))
    assert list(store.inbox("study")) == [(1, ChangeSlots(1))]


# Readers, posts and the writer.


def test_a_hanging_reader_or_poster_does_not_block_the_writer(
    store: Store, url: str, postgres: PostgresServer
) -> None:
    log = make_sample_log()
    store.append("study", log[:2])
    schema = get_schema(url)
    with postgres.connect() as reader, postgres.connect() as poster:
        reader.execute(f"BEGIN; SELECT * FROM {schema}.paceline_steps")
        poster.execute(f"BEGIN; SELECT id FROM {schema}.paceline_studies FOR NO KEY UPDATE")
        store.append("study", log[2:])
        assert list(store.read("study")) == log
        poster.execute("ROLLBACK")
        assert store.post("study", ChangeSlots(1)) == 1


def test_concurrent_posts_get_a_number_each(store: Store, url: str) -> None:
    store.append("study", make_sample_log())
    numbers: list[int] = []

    def post() -> None:
        with closing(open_store(url, create=False)) as other:
            numbers.extend(other.post("study", ChangeSlots(1)) for _ in range(10))

    threads = [threading.Thread(target=post) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(1, 41))


# URLs, passwords and permissions.


def test_opening_without_create_leaves_a_database_without_a_store_unchanged(
    url: str, postgres: PostgresServer
) -> None:
    with pytest.raises(StoreError) as caught:
        open_store(url, create=False)
    assert str(caught.value) == (
        f"{url} holds no store: check the URL, or start a study there first."
    )
    with postgres.connect() as connection:
        schema = get_schema(url)
        tables = "SELECT * FROM pg_tables WHERE schemaname = %s"
        assert connection.execute(tables, [schema]).fetchall() == []


def test_a_store_may_share_a_schema_with_other_tables(url: str, postgres: PostgresServer) -> None:
    with postgres.connect() as connection:
        connection.execute(f"CREATE TABLE {get_schema(url)}.trials (id integer)")
    with closing(open_store(url, create=True)) as store:
        store.append("study", make_sample_log())


@pytest.mark.parametrize("give", ["variable", "file", "url"])
def test_a_password_may_come_from_a_variable_a_file_or_the_url(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, give: str
) -> None:
    url = postgres.url(PASSWORD_USER)
    if give == "variable":
        monkeypatch.setenv("PGPASSWORD", PASSWORD)
    elif give == "file":
        path = tmp_path / "passwords"
        path.write_text(f"*:*:*:{PASSWORD_USER}:{PASSWORD}\n")
        path.chmod(0o600)
        monkeypatch.setenv("PGPASSFILE", str(path))
    else:
        url = url.replace("@", f":{PASSWORD.replace(' ', '%20')}@")
    with closing(open_store(url, create=True)) as store:
        store.append("study", make_sample_log())


def test_a_password_is_never_shown(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.url(PASSWORD_USER).replace("@", ":wrong@")
    with pytest.raises(StoreError, match="password authentication failed") as caught:
        open_store(url, create=True)
    assert f"postgresql://{PASSWORD_USER}:***@/postgres?" in str(caught.value)
    error: BaseException | None = caught.value
    while error is not None:
        assert "wrong" not in str(error)
        error = error.__cause__


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://me:p@ss/w:rd@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me@host/db?password=a&x=1", "postgresql://me@host/db?password=***&x=1"),
        ("postgresql://host:5433/db", "postgresql://host:5433/db"),
    ],
)
def test_hide_password_replaces_every_password(url: str, words: str) -> None:
    assert hide_password(url) == words


@pytest.mark.parametrize(
    ("right", "words"),
    [
        ("CREATE", "grant CREATE on the schema"),
        ("USAGE", "denies this user access to it: create it"),
    ],
)
def test_the_error_for_a_missing_permission_names_it(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, right: str, words: str
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    url = postgres.url(PASSWORD_USER)
    with postgres.connect() as connection:
        connection.execute(f"REVOKE {right} ON SCHEMA {get_schema(url)} FROM {PASSWORD_USER}")
    with pytest.raises(StoreError, match=words):
        open_store(url, create=True)


def test_reading_posting_and_writing_need_only_the_documented_permissions(
    store: Store, url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    log = make_sample_log()
    store.append("study", log)
    schema = get_schema(url)
    with postgres.connect() as connection:
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {PASSWORD_USER}")
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {PASSWORD_USER}")
        with closing(
            open_store(url.replace("paceline@", f"{PASSWORD_USER}@"), create=False)
        ) as other:
            assert list(other.read("study")) == log
            assert other.holder("study") == store.holder("study") is not None
            with pytest.raises(StoreError, match="denies this user permission: grant"):
                other.post("study", ChangeSlots(1))
            connection.execute(f"GRANT INSERT ON {schema}.paceline_inbox TO {PASSWORD_USER}")
            connection.execute(f"GRANT UPDATE ON {schema}.paceline_studies TO {PASSWORD_USER}")
            assert other.post("study", ChangeSlots(1)) == 1
            with pytest.raises(StoreError, match="denies this user permission: grant"):
                other.append("another", log)
            connection.execute(f"GRANT INSERT ON ALL TABLES IN SCHEMA {schema} TO {PASSWORD_USER}")
            connection.execute(
                f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {PASSWORD_USER}"
            )
            other.append("another", log)


def test_the_error_for_a_missing_psycopg_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError) as caught:
        open_store("postgresql://me:secret@host/db", create=True)
    assert str(caught.value) == (
        "postgresql://me:***@host/db needs psycopg: install it with "
        "pip install 'paceline[postgres]'."
    )


def test_a_name_that_the_server_cannot_store_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match=r"cannot be used: .*cannot contain NUL"):
        store.append("a\0b", make_sample_log())
    noise = "".join(map(chr, range(0x4E00, 0x4E00 + 3_000)))
    with pytest.raises(StoreError, match="cannot store such a long name: choose a shorter"):
        store.append(noise, make_sample_log())
    assert list(store.studies()) == []


def test_an_invalid_url_is_refused_with_the_valid_form() -> None:
    with pytest.raises(StoreError) as caught:
        open_store("postgresql://me:secret@host:port/db", create=True)
    assert str(caught.value) == (
        "postgresql://me:***@host:port/db is not a valid URL: "
        "write postgresql://user@host:port/database."
    )


def test_the_checkpoint_folder_does_not_depend_on_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    urls = [
        "postgresql://me:secret@host/db",
        "postgresql://you@host/db?sslmode=require",
        "postgresql://host/other",
    ]
    first, second, third = (find_study_folder(url, "a study") for url in urls)
    assert first == second != third
    assert first is not None
    assert first.is_relative_to(tmp_path / ".paceline")
    assert find_study_folder(urls[0], "a-study") != first
