"""Stores on a full, read-only, slow or damaged disk, and on a server that is gone for a while."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pytest
from command_line import read_log, run_command
from running_command import RunningCommand, write_study_file
from small_disk import mount_small_disk
from waiting import wait_for

import paceline as pl
from paceline.api.stored import fold_log, replay_log
from paceline.cli import run as cli_run
from paceline.cli.main import main
from paceline.core.decisions import EndCause
from paceline.core.errors import LogError, PacelineWarning, StoreError
from paceline.core.events import Resumed
from paceline.store import open_store, sql
from paceline.testing.stores import make_sample_log

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benchmarks.postgres import PostgresServer
    from small_disk import SmallDisk

    from paceline.core.decisions import Step
    from paceline.core.ports import Store


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A small disk."""
    with mount_small_disk(tmp_path / "disk") as disk:
        yield disk


def test_a_full_disk_is_a_sentence_and_nothing_is_lost(disk: SmallDisk) -> None:
    url, log = str(disk.folder / "runs.db"), make_sample_log()
    with closing(open_store(url, create=True)) as store:
        store.append("study", log[:2])
        disk.fill()
        with pytest.raises(StoreError, match="the disk is full: free some space and try again"):
            append_much(store)
        disk.free()
    with closing(open_store(url, create=False)) as store:
        assert list(store.read("study")) == log[:2]
        store.append("study", log[2:])
        assert list(store.read("study")) == log


def append_much(store: Store) -> None:
    """Write until there is no room."""
    for number in range(100):
        store.append(f"study {number}", make_sample_log())


def test_a_store_on_a_full_disk_can_be_read(disk: SmallDisk) -> None:
    url, log = str(disk.folder / "runs.db"), make_sample_log()
    with closing(open_store(url, create=True)) as store:
        store.append("study", log)
    disk.fill()
    with closing(open_store(url, create=False)) as store:
        assert (list(store.read("study")), store.holder("study")) == (log, None)


def test_a_store_on_a_read_only_disk_can_be_read_but_not_written(disk: SmallDisk) -> None:
    url, log = str(disk.folder / "runs.db"), make_sample_log()
    with closing(open_store(url, create=True)) as store:
        store.append("study", log)
    with disk.read_only():
        with closing(open_store(url, create=False)) as store:
            assert store.studies() == ["study"]
            assert (list(store.read("study")), store.holder("study")) == (log, None)
            with pytest.raises(StoreError, match="writable"):
                store.claim("study")
        for path in (url, str(disk.folder / "new.db")):
            with pytest.raises(StoreError, match=r"check that .*writable"):
                open_store(path, create=True).append("another", log)
    assert not list(disk.folder.glob("*.lock"))


def test_a_store_waits_for_a_disk_that_is_slow(tmp_path: Path) -> None:
    url, log = str(tmp_path / "runs.db"), make_sample_log()
    with closing(open_store(url, create=True)) as store:
        store.append("study", log[:2])
        done = threading.Event()

        def append() -> None:
            store.append("study", log[2:])
            done.set()

        with closing(sqlite3.connect(url, isolation_level=None)) as slow:
            slow.execute("BEGIN IMMEDIATE")  # a transaction of another process that takes long
            writing = threading.Thread(target=append)
            writing.start()
            # Readers are not disturbed.
            with closing(open_store(url, create=False)) as reader:
                assert list(reader.read("study")) == log[:2]
            assert not done.is_set()
            slow.execute("COMMIT")
        writing.join()
        assert list(store.read("study")) == log


def damage(body: bytes, at: int) -> list[bytes]:
    """Return a file with a byte changed, with a page zeroed, and cut, at a place."""
    page = at - at % 4096
    return [
        body[:at] + bytes([body[at] ^ 0xFF]) + body[at + 1 :],
        body[:page] + bytes(4096) + body[page + 4096 :],
        body[:at],
    ]


@pytest.mark.parametrize("places", [12, pytest.param(300, marks=pytest.mark.slow)])
def test_every_damaged_file_gives_its_log_or_a_sentence(tmp_path: Path, places: int) -> None:
    path = tmp_path / "runs.db"
    with closing(open_store(str(path), create=True)) as store:
        store.append("study", make_sample_log())
    body = path.read_bytes()
    for at in range(0, len(body), max(1, len(body) // places)):
        for damaged in damage(body, at):
            path.write_bytes(damaged)
            with (
                suppress(StoreError, LogError),
                closing(open_store(str(path), create=False)) as store,
            ):
                for name in store.studies():
                    list(store.read(name))


def test_a_damaged_file_is_an_error_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.db"
    main(["simulate", "toy:epochs=3", "--trials", "4", "--store", str(path), "--name", "s"])
    body = path.read_bytes()
    for at in range(0, len(body), len(body) // 6):
        for damaged in damage(body, at):
            path.write_bytes(damaged)
            for command in (["ls"], ["show", "s"], ["story", "s"]):
                code = main([*command, "--store", str(path)])
                assert code in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


class FalseTime:
    """A clock that only moves when somebody sleeps; at a time, something happens."""

    def __init__(self, at: float, then: threading.Thread) -> None:
        self.now = 0.0
        self._at = at
        self._then: threading.Thread | None = then

    def monotonic(self) -> float:
        """Return the time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let the time pass."""
        self.now += seconds
        if self.now >= self._at and self._then is not None:
            then, self._then = self._then, None
            then.start()
            then.join()


@pytest.fixture
def server_store(postgres: PostgresServer) -> Iterator[Store]:
    """A store on a server, with the first steps of a log."""
    with closing(open_store(postgres.url(), create=True)) as store:
        store.append("study", make_sample_log()[:2])
        yield store


@pytest.mark.parametrize(
    ("gone_s", "warnings"),
    [
        pytest.param(0.5, 0, marks=pytest.mark.slow),
        pytest.param(1.0, 1, marks=pytest.mark.slow),
        (20.0, 1),
    ],
)
def test_a_server_that_is_gone_for_some_seconds_costs_nothing(
    server_store: Store,
    postgres: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
    *,
    gone_s: float,
    warnings: int,
) -> None:
    log = make_sample_log()
    postgres.stop()
    clock = FalseTime(gone_s, threading.Thread(target=postgres.start))
    monkeypatch.setattr(sql, "time", clock)
    server_store.append("study", log[2:])
    assert gone_s <= clock.now < gone_s + 2
    assert list(server_store.read("study")) == log
    assert len([each for each in recwarn if each.category is PacelineWarning]) == warnings


@pytest.mark.slow
def test_a_server_that_is_gone_for_two_minutes_ends_the_driver_and_the_log_goes_on(
    server_store: Store, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_sample_log()
    postgres.stop()
    clock = FalseTime(120.0, threading.Thread(target=postgres.start))
    try:
        with (
            monkeypatch.context() as patched,
            pytest.warns(PacelineWarning, match="unavailable"),
            pytest.raises(StoreError, match=r"cannot be reached .* the study can be resumed"),
        ):
            append_at(patched, clock, server_store)
        assert 60 <= clock.now < 62
    finally:
        postgres.start()
    server_store.append("study", log[2:])
    assert list(server_store.read("study")) == log


def append_at(patched: pytest.MonkeyPatch, clock: FalseTime, store: Store) -> None:
    """Append the rest of the log by another clock."""
    patched.setattr(sql, "time", clock)
    store.append("study", make_sample_log()[2:])


def test_a_server_that_is_gone_while_a_log_is_read_costs_nothing(
    server_store: Store, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_sample_log()
    server_store.append("study", log[2:])
    monkeypatch.setattr(sql, "CHUNK_BYTES", 0)
    reading = server_store.read("study")
    found = [next(reading)]
    postgres.stop()
    monkeypatch.setattr(sql, "time", FalseTime(5.0, threading.Thread(target=postgres.start)))
    with pytest.warns(PacelineWarning, match="is unavailable"):
        found += reading
    assert found == log


@pytest.fixture
def unfinished(postgres: PostgresServer, tmp_path: Path) -> str:
    """Return the URL of a store with a study of a file, whose driver was killed."""
    url = postgres.url()
    write_study_file(tmp_path)
    (tmp_path / "hold").touch()
    run = ("paceline", "run", "study.py", "--name", "it", "--store", url, "--no-report")
    with RunningCommand(tmp_path, *run) as running:
        running.until("new best")
        running.signal(signal.SIGKILL)
        running.end()
    (tmp_path / "hold").unlink()
    return url


def resume(url: str, folder: Path) -> int:
    """Resume the study in this process; return the exit code."""
    return main(["resume", "it", str(folder / "study.py"), "--store", url, "--no-report", "-q"])


def check_resumed(url: str, before: Sequence[Step]) -> None:
    """Check that the study has ended, and that its log goes on where it was."""
    log = read_log(url, "it")
    assert log[: len(before)] == before
    assert [type(step.event) for step in log].count(Resumed) == 1
    state = fold_log(log)
    assert state.end is not None
    assert state.end.cause is EndCause.QUIET
    assert len(state.trials) == 4
    assert replay_log(log).difference is None


def test_a_resume_while_the_server_is_gone_is_a_sentence_and_a_later_one_goes_on(
    unfinished: str, postgres: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = read_log(unfinished, "it")
    command = ("resume", "it", "study.py", "--store", unfinished, "--no-report", "-q")
    postgres.stop()
    try:
        # A new process, which has never reached the server.
        refused = run_command(tmp_path, *command)
    finally:
        postgres.start()
    assert refused.code == 2
    (line,) = refused.err.splitlines()
    assert "cannot be reached" in line
    assert line.endswith("all appended steps are safe, and the study can be resumed.")
    assert resume(unfinished, tmp_path) == 0
    check_resumed(unfinished, before)


@pytest.mark.filterwarnings("always:.* is unavailable")
@pytest.mark.parametrize(
    "moment",
    [
        "reading",
        "opening",
        pytest.param("claiming", marks=pytest.mark.slow),
        pytest.param("writing", marks=pytest.mark.slow),
    ],
)
def test_a_resume_waits_for_a_server_that_is_gone_for_some_seconds(
    unfinished: str,
    postgres: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    moment: str,
) -> None:
    before = read_log(unfinished, "it")
    monkeypatch.setattr(sql, "CHUNK_BYTES", 0)
    monkeypatch.setattr(sql, "time", FalseTime(5.0, threading.Thread(target=postgres.start)))
    place, name = {
        "reading": (sql, "_read_bodies"),
        "opening": (cli_run, "load_resumable"),
        "claiming": (sql.SqlStore, "claim"),
        "writing": (sql.SqlStore, "append"),
    }[moment]
    call = getattr(place, name)
    calls = iter(range(3))

    def stop_and_call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        # In the middle of the log, or at the first call of another function.
        if next(calls, None) == (2 if moment == "reading" else 0):
            postgres.stop()
        return call(*arguments, **options)

    monkeypatch.setattr(place, name, stop_and_call)
    assert resume(unfinished, tmp_path) == 0
    assert "is unavailable: retrying" in capsys.readouterr().err
    check_resumed(unfinished, before)


@pytest.mark.slow
@pytest.mark.parametrize("resumed", [False, True])
def test_a_study_whose_server_is_gone_across_its_deadline_ends_at_it(
    postgres: PostgresServer, tmp_path: Path, recwarn: pytest.WarningsRecorder, *, resumed: bool
) -> None:
    url = postgres.url()
    stopped = threading.Event()
    deadline_s = 3.0
    began = [0.0]

    def restart() -> None:
        stopped.wait()
        wait_for(lambda: time.monotonic() > began[0] + deadline_s + 0.5, "the deadline")
        postgres.start()

    def stop_once(state: object, steps: object) -> None:
        if not stopped.is_set() and getattr(state, "best", None) is not None:
            postgres.stop()
            stopped.set()

    def interrupt(state: object, steps: object) -> None:
        if getattr(state, "best", None) is not None:
            os.kill(os.getpid(), signal.SIGINT)

    study = pl.Study(
        train_long,
        space={"x": pl.uniform(0, 1)},
        metric="loss",
        mode="min",
        epochs=1_000_000,
        policy="fifo",
        slots=1,
        deadline=deadline_s,
        name="late",
        store=url,
        files=tmp_path,
        progress=False,
    )
    if resumed:
        assert study.run(interrupt).interrupted
    began[0] = time.monotonic()
    starting = threading.Thread(target=restart)
    starting.start()
    result = study.run(stop_once)
    starting.join()
    assert result.end == "deadline"
    assert main(["replay", "late", "--store", url]) == 0
    assert any("is unavailable" in str(each.message) for each in recwarn)


def train_long(trial: pl.Trial) -> None:
    """Train until the end of the study."""
    for epoch in trial.epochs():
        time.sleep(0.01)
        trial.report(loss=1.0 / (epoch + 1))


@pytest.mark.slow
def test_a_study_on_a_full_disk_says_so_and_goes_on_when_there_is_room(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    with mount_small_disk(tmp_path / "disk", 900) as disk:
        options: dict[str, Any] = {
            "space": {"x": pl.uniform(0, 1)},
            "metric": "loss",
            "mode": "min",
            "epochs": 3,
            "trials": 4,
            "policy": "fifo",
            "slots": 1,
            "name": "full",
            "store": str(disk.folder / "runs.db"),
            "progress": False,
        }
        with suppress(StoreError):  # the log may have no room either
            pl.tune(train_heavy, **options)
        found = [str(each.message) for each in recwarn]
        assert any("a checkpoint cannot be written to" in text for text in found)
        for path in (disk.folder / "runs.files").rglob("*.ckpt"):
            path.unlink()
        result = pl.tune(train_light, **{**options, "trials": 5})
        assert len(result.trials) == 5
        assert main(["replay", "full", "--store", str(disk.folder / "runs.db")]) == 0


def train_heavy(trial: pl.Trial) -> None:
    """Keep more than the disk has room for."""
    trial.keep(state={"body": "x" * 500_000})
    train_light(trial)


def train_light(trial: pl.Trial) -> None:
    """Report a few values."""
    for epoch in trial.epochs():
        trial.report(loss=1.0 / (epoch + 1))
