"""The PostgreSQL store: the contract, servers that come and go, one driver a study, addresses."""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from postgres_kit import PASSWORD, WALLED, Cutter, end_sessions, schema_of

from paceline.core.errors import PacelineWarning, StoreError, StudyRunning
from paceline.core.events import CapacityChanged, ChangeSlots
from paceline.store import folder_of, open_store, shown, sql
from paceline.testing.stores import DurableStoreContract, StoreContract, numbered, sample_log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.postgres import Cluster

    from paceline.core.ports import Store


@pytest.fixture
def url(cluster: Cluster) -> str:
    """The address of an empty place."""
    return cluster.url()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """A store there."""
    with closing(open_store(url, create=True)) as store:
        yield store


class TestPostgresStore(DurableStoreContract):
    @pytest.fixture(autouse=True)
    def somewhere(self, url: str) -> None:
        self.url = url

    def make(self, tmp_path: Path) -> Store:
        return open_store(self.url, create=True)

    def reopen(self, tmp_path: Path) -> Store:
        return open_store(self.url, create=False)


class TestLazyPostgresStore(StoreContract):
    @pytest.fixture(autouse=True)
    def somewhere(self, url: str) -> None:
        self.url = url

    def make(self, tmp_path: Path) -> Store:
        return open_store(self.url, create=True, lazy=True)


# One driver a study.


def test_a_refused_driver_learns_which_process_on_which_machine_writes(
    store: Store, url: str
) -> None:
    store.claim("study")
    with closing(open_store(url, create=False)) as second, pytest.raises(StudyRunning) as caught:
        second.claim("study")
    holder = f"process {os.getpid()} on {socket.gethostname()}"
    assert caught.value.holder == holder
    assert str(caught.value) == (
        f"study 'study' in {url} is being written by {holder}: "
        "wait until that ends or stop it, or choose another name for a new study."
    )


def test_the_same_study_in_two_places_of_one_database_has_two_drivers(
    store: Store, cluster: Cluster
) -> None:
    store.append("study", sample_log())
    with closing(open_store(cluster.url(), create=True)) as other:
        other.append("study", sample_log())


def test_a_driver_that_was_cut_off_goes_on_where_nobody_took_its_study(
    store: Store, cluster: Cluster
) -> None:
    log = sample_log()
    for step in log:
        store.append("study", [step])
        assert end_sessions(cluster)
    assert list(store.read("study")) == log
    assert store.holder("study") is None
    assert list(store.inbox("study")) == []
    # Whoever looks into the inbox of its study holds it again.
    assert store.holder("study") is not None


def test_a_driver_that_was_cut_off_cannot_write_over_the_one_that_took_its_study(
    store: Store, url: str, cluster: Cluster
) -> None:
    log = sample_log()
    store.append("study", log[:2])
    end_sessions(cluster)
    with closing(open_store(url, create=False)) as second:
        second.append("study", log[2:4])
        for use in (lambda: store.append("study", log[2:]), lambda: store.inbox("study")):
            with pytest.raises(StudyRunning, match=r"'study' was taken over by process \d+ on "):
                use()
        second.append("study", log[4:])
        assert list(second.read("study")) == log


# The first driver's two steps have five entries.
@pytest.mark.parametrize("entries", [1, 2, 5, 6])
def test_a_driver_that_was_cut_off_finds_out_that_another_one_came_and_went(
    store: Store, url: str, cluster: Cluster, entries: int
) -> None:
    log = sample_log()
    assert log[4].number - log[2].number == 5
    store.append("study", log[:2])
    end_sessions(cluster)
    other = numbered([(CapacityChanged(at=7.0, slots=()), ())] * entries, log[2].number)
    with closing(open_store(url, create=False)) as second:
        second.append("study", other)
    with pytest.raises(StoreError, match="was written by another driver while the connection was"):
        store.append("study", log[2:4])
    assert list(store.read("study")) == [*log[:2], *other]


@pytest.mark.parametrize("delivered", [True, False])
def test_a_line_that_breaks_at_the_commit_loses_nothing_and_doubles_nothing(
    url: str, cluster: Cluster, tmp_path: Path, delivered: bool
) -> None:
    log = sample_log()
    with (
        Cutter(cluster, tmp_path) as cutter,
        closing(open_store(cutter.url(url), create=True)) as store,
    ):
        for step in log:
            cutter.deliver = delivered
            store.append("study", [step])
            assert cutter.deliver is None
    with closing(open_store(url, create=False)) as store:
        assert list(store.read("study")) == log


# A server that goes away.


@pytest.mark.filterwarnings("ignore:.* is away")
def test_a_server_that_restarts_is_waited_for(store: Store, cluster: Cluster) -> None:
    log = sample_log()
    store.append("study", log[:2])
    cluster.stop()
    starting = threading.Thread(target=cluster.start)
    starting.start()
    store.append("study", log[2:])
    assert list(store.read("study")) == log
    starting.join()


def test_a_server_that_stays_away_is_told_as_such_and_nothing_is_lost(
    store: Store, url: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "PATIENCE_S", 0.0)
    log = sample_log()
    store.append("study", log[:2])
    cluster.stop()
    try:
        for use in (lambda: store.append("study", log[2:]), lambda: open_store(url, create=True)):
            with pytest.raises(StoreError, match=r"cannot be reached \(.*the study can be resumed"):
                use()
    finally:
        cluster.start()
    store.append("study", log[2:])
    assert list(store.read("study")) == log


def test_whoever_waits_for_a_server_is_told_so_once(
    store: Store, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "PAUSES_S", ())
    monkeypatch.setattr(sql, "LONGEST_S", 0.1)
    monkeypatch.setattr(sql, "PATIENCE_S", 0.5)
    cluster.stop()
    try:
        with (
            pytest.warns(PacelineWarning) as told,
            pytest.raises(StoreError, match="cannot be reached"),
        ):
            store.studies()
    finally:
        cluster.start()
    assert len(told) == 1
    assert str(told[0].message).endswith("is away: waiting for it, for 0.5 s at most.")


def test_an_order_is_given_once_or_not_at_all(
    store: Store, url: str, cluster: Cluster, tmp_path: Path
) -> None:
    store.append("study", sample_log())
    with (
        Cutter(cluster, tmp_path) as cutter,
        closing(open_store(cutter.url(url), create=False)) as other,
    ):
        cutter.deliver = True
        with pytest.raises(StoreError, match="cannot be reached"):
            other.post("study", ChangeSlots(1))
    assert list(store.inbox("study")) == [(1, ChangeSlots(1))]


# Readers, posts and the writer.


def test_nobody_who_hangs_in_the_middle_of_something_keeps_the_writer_waiting(
    store: Store, url: str, cluster: Cluster
) -> None:
    log = sample_log()
    store.append("study", log[:2])
    schema = schema_of(url)
    with cluster.connected() as reader, cluster.connected() as poster:
        reader.execute(f"BEGIN; SELECT * FROM {schema}.paceline_steps")
        poster.execute(f"BEGIN; SELECT id FROM {schema}.paceline_studies FOR NO KEY UPDATE")
        store.append("study", log[2:])
        assert list(store.read("study")) == log
        poster.execute("ROLLBACK")
        assert store.post("study", ChangeSlots(1)) == 1


def test_posts_from_many_places_get_a_number_each(store: Store, url: str) -> None:
    store.append("study", sample_log())
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


# Addresses, and what is said of them.


def test_a_database_without_a_store_is_left_as_it_is_by_who_only_reads(
    url: str, cluster: Cluster
) -> None:
    with pytest.raises(StoreError) as caught:
        open_store(url, create=False)
    assert str(caught.value) == (
        f"{url} holds no store: check the address, or start a study there first."
    )
    with cluster.connected() as connection:
        schema = schema_of(url)
        tables = "SELECT * FROM pg_tables WHERE schemaname = %s"
        assert connection.execute(tables, [schema]).fetchall() == []


def test_a_store_may_lie_beside_the_tables_of_others(url: str, cluster: Cluster) -> None:
    with cluster.connected() as connection:
        connection.execute(f"CREATE TABLE {schema_of(url)}.trials (id integer)")
    with closing(open_store(url, create=True)) as store:
        store.append("study", sample_log())


@pytest.mark.parametrize("give", ["variable", "file", "address"])
def test_a_password_is_taken_from_where_it_is_kept(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, give: str
) -> None:
    url = cluster.url(WALLED)
    if give == "variable":
        monkeypatch.setenv("PGPASSWORD", PASSWORD)
    elif give == "file":
        path = tmp_path / "passwords"
        path.write_text(f"*:*:*:{WALLED}:{PASSWORD}\n")
        path.chmod(0o600)
        monkeypatch.setenv("PGPASSFILE", str(path))
    else:
        url = url.replace("@", f":{PASSWORD.replace(' ', '%20')}@")
    with closing(open_store(url, create=True)) as store:
        store.append("study", sample_log())


def test_a_password_is_never_shown(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    url = cluster.url(WALLED).replace("@", ":wrong@")
    with pytest.raises(StoreError, match="password authentication failed") as caught:
        open_store(url, create=True)
    assert f"postgresql://{WALLED}:***@/postgres?" in str(caught.value)
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
def test_an_address_is_shown_without_its_password(url: str, words: str) -> None:
    assert shown(url) == words


@pytest.mark.parametrize(
    ("right", "words"),
    [("CREATE", "grant it CREATE on the schema"), ("USAGE", "lets this user not into it: make it")],
)
def test_a_user_who_may_not_make_tables_is_told_what_is_missing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, right: str, words: str
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    url = cluster.url(WALLED)
    with cluster.connected() as connection:
        connection.execute(f"REVOKE {right} ON SCHEMA {schema_of(url)} FROM {WALLED}")
    with pytest.raises(StoreError, match=words):
        open_store(url, create=True)


def test_a_user_who_may_only_look_sees_all_and_one_who_may_order_can(
    store: Store, url: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    log = sample_log()
    store.append("study", log)
    schema = schema_of(url)
    with cluster.connected() as connection:
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {WALLED}")
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {WALLED}")
        with closing(open_store(url.replace("paceline@", f"{WALLED}@"), create=False)) as other:
            assert list(other.read("study")) == log
            assert other.holder("study") == store.holder("study") is not None
            with pytest.raises(StoreError, match="lets this user not do that: grant it"):
                other.post("study", ChangeSlots(1))
            connection.execute(f"GRANT INSERT ON {schema}.paceline_inbox TO {WALLED}")
            connection.execute(f"GRANT UPDATE ON {schema}.paceline_studies TO {WALLED}")
            assert other.post("study", ChangeSlots(1)) == 1
            with pytest.raises(StoreError, match="lets this user not do that: grant it"):
                other.append("another", log)
            connection.execute(f"GRANT INSERT ON ALL TABLES IN SCHEMA {schema} TO {WALLED}")
            connection.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {WALLED}")
            other.append("another", log)


def test_without_its_driver_a_server_is_not_reached_and_it_is_said_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError) as caught:
        open_store("postgresql://me:secret@host/db", create=True)
    assert str(caught.value) == (
        "postgresql://me:***@host/db needs psycopg: install it with "
        "pip install 'paceline[postgres]'."
    )


def test_a_name_that_the_server_cannot_hold_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match=r"cannot be used: .*cannot contain NUL"):
        store.append("a\0b", sample_log())
    noise = "".join(map(chr, range(0x4E00, 0x4E00 + 3_000)))
    with pytest.raises(StoreError, match="cannot hold a name as long as that: choose a shorter"):
        store.append(noise, sample_log())
    assert list(store.studies()) == []


def test_an_address_that_cannot_be_read_is_told_how_to_write_one() -> None:
    with pytest.raises(StoreError) as caught:
        open_store("postgresql://me:secret@host:port/db", create=True)
    assert str(caught.value) == (
        "postgresql://me:***@host:port/db is no address: "
        "write postgresql://user@host:port/database."
    )


def test_checkpoints_lie_in_the_same_folder_whoever_connects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    urls = [
        "postgresql://me:secret@host/db",
        "postgresql://you@host/db?sslmode=require",
        "postgresql://host/other",
    ]
    first, second, third = (folder_of(url, "a study") for url in urls)
    assert first == second != third
    assert first is not None
    assert first.is_relative_to(tmp_path / ".paceline")
    assert folder_of(urls[0], "a-study") != first
