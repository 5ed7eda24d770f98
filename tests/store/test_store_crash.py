"""Stores used by real processes: killed writers, torn files, concurrent readers and writers.

Run as a program, this file is the other process: `python test_store_crash.py FUNCTION URL …`. The
test and the process talk by lines on pipes, so nothing here depends on timing.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Connection, Engine, event

from paceline.core.decisions import Go, Step
from paceline.core.errors import StoreError
from paceline.core.events import Reported, StopStudy
from paceline.store import open_store
from paceline.store.sql import GROUP_SIZE
from paceline.store.sqlite import FileLock, LockHeld
from paceline.testing.stores import number_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH = 7
# Where Linux lists the processes that wait for locks.
LOCKS = Path("/proc/locks")
needs_locks = pytest.mark.skipif(not LOCKS.exists(), reason="needs /proc/locks")


def make_log(length: int) -> list[Step]:
    """Return a log of reports and decisions that is the same in every process."""
    return number_steps(
        (
            Reported(at=float(epoch), attempt=0, epoch=epoch, metrics={"loss": 1.0}, seconds=1.0),
            (Go(why=f"epoch {epoch} is done", trial=0, until=epoch + 1),) * (epoch % 3),
        )
        for epoch in range(length)
    )


# The other process.


def say(word: object) -> None:
    """Send the test a line."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def hear() -> None:
    """Wait for a line from the test, or for the end of the pipe."""
    sys.stdin.readline()


def kill_self(*_: object) -> None:
    """Kill this process with SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)


def write(url: str, study: str, size: str = str(BATCH), lazy: str = "") -> None:
    """Append batch after batch until killed; send the number of steps after each."""
    store = open_store(url, create=True, lazy=bool(lazy))
    for start in count(step=int(size)):
        store.append(study, make_log(start + int(size))[start:])
        say(start + int(size))


def write_some(url: str, study: str, batches: str) -> None:
    """Append a number of batches, at the same time as other processes."""
    say("ready")
    hear()
    log = make_log(int(batches) * BATCH)
    with closing(open_store(url, create=True)) as store:
        for start in range(0, len(log), BATCH):
            store.append(study, log[start : start + BATCH])


def write_until_stopped(url: str, study: str) -> None:
    """Append batch after batch until the inbox holds a command; send the number of steps."""
    with closing(open_store(url, create=True)) as store:
        log: list[Step] = []
        while not store.inbox(study):
            log = make_log(len(log) + BATCH)
            store.append(study, log[-BATCH:])
            if len(log) == BATCH:
                say("begun")
    say(len(log))


def write_and_die(url: str, study: str, moment: str, size: str) -> None:
    """Append one batch, and be killed at a named moment of the second one."""
    with closing(open_store(url, create=True)) as store:
        log = make_log(2 * int(size))
        store.append(study, log[: int(size)])
        MOMENTS[moment]()
        store.append(study, log[int(size) :])
        kill_self()


def create_and_die(folder: str) -> None:
    """Create one store after another, killed one statement later each time, until one succeeds."""
    for statements in count():
        place = os.path.join(folder, str(statements))
        os.mkdir(place)
        # Forked from a process without open files of a store.
        child = os.fork()
        if child == 0:
            _kill_after(statements)
            open_store(os.path.join(place, "runs.db"), create=True).close()
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            return


def _kill_after(statements: int) -> None:
    left = iter(range(statements))

    def one_more(*_: object) -> None:
        if next(left, None) is None:
            kill_self()

    event.listen(Engine, "before_cursor_execute", one_more)
    event.listen(Engine, "commit", one_more)


def hold(url: str, study: str) -> None:
    """Write a study, with a child process that outlives this one."""
    store = open_store(url, create=True)
    store.append(study, make_log(1))
    if os.fork() == 0:
        say("the child runs")
        hear()
        say("the child ends")
        os._exit(0)
    signal.pause()


def wait_for_lock(lock: str) -> None:
    """Wait for a lock and hold it."""
    with closing(FileLock(Path(lock), wait=True)):
        say("holding")
        hear()


def take_turns(folder: str, turns: str) -> None:
    """Lock and release repeatedly, and check that no other process holds the lock meanwhile."""
    say("ready")
    hear()
    left = int(turns)
    while left:
        try:
            lock = FileLock(Path(folder, "lock"))
        except LockHeld:
            continue
        # Fails if the token exists: another process believes that it holds the lock.
        os.close(os.open(os.path.join(folder, "token"), os.O_CREAT | os.O_EXCL))
        os.unlink(os.path.join(folder, "token"))
        lock.close()
        left -= 1


def _listen(name: str, word: str) -> Callable[[], None]:
    def on_statement(connection: Connection, cursor: object, statement: str, *_: object) -> None:
        if word in statement:
            kill_self()

    return lambda: event.listen(Engine, name, on_statement)


MOMENTS: dict[str, Callable[[], None]] = {
    "at the begin": lambda: event.listen(Engine, "begin", kill_self),
    "before the rows": _listen("before_cursor_execute", "INSERT INTO paceline_steps"),
    "after the rows": _listen("after_cursor_execute", "INSERT INTO paceline_steps"),
    "before the commit": lambda: event.listen(Engine, "commit", kill_self),
    "after the commit": lambda: None,
}


# The tests.


@contextmanager
def other(program: Callable[..., None], *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run one of the functions above in another process; kill it at the end of the block."""
    command = [sys.executable, __file__, program.__name__, *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read_line(process: subprocess.Popen[str]) -> str:
    """Return the next line of the other process."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line or process.poll() is None or process.returncode == -signal.SIGKILL, errors(process)
    return line


def send_line(process: subprocess.Popen[str]) -> None:
    """Send the other process the line it waits for."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def together(processes: list[subprocess.Popen[str]]) -> None:
    """Let other processes begin at the same time, when all of them are ready."""
    for process in processes:
        assert read_line(process) == "ready"
    for process in processes:
        send_line(process)


def errors(process: subprocess.Popen[str]) -> str:
    """Return the standard error of the other process after its end."""
    assert process.stderr is not None
    return process.stderr.read()


def until_waiting(process: subprocess.Popen[str]) -> None:
    """Wait until the other process waits for a lock; the kernel marks it with an arrow."""
    marks = {"->", str(process.pid)}
    while not any(marks <= set(line.split()) for line in LOCKS.read_text().splitlines()):
        assert process.poll() is None, errors(process)


class Location:
    """The location of a store, with checks of its content."""

    def __init__(self, url: str, path: Path | None = None) -> None:
        self.url = url
        # None for a server.
        self._path = path

    def count_steps(self, study: str) -> int:
        """Return the number of steps in the log, and check them and the integrity of the file."""
        with closing(open_store(self.url, create=True)) as store:
            steps = list(store.read(study)) if study in store.studies() else []
        assert steps == make_log(len(steps))
        if self._path is not None:
            with closing(sqlite3.connect(self._path)) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return len(steps)

    def check_append(self, study: str, length: int) -> None:
        """Append to a log of this length, like a driver that resumes the study."""
        log = make_log(length + 10)
        with closing(open_store(self.url, create=True)) as store:
            store.append(study, log[length:])
            assert list(store.read(study)) == log
        self.check_clean(study)

    def check_clean(self, study: str) -> None:
        """Check that no lock or temporary file is left."""
        if self._path is not None:
            assert os.listdir(self._path.parent) == [self._path.name]
        with closing(open_store(self.url, create=False)) as store:
            assert store.holder(study) is None


@pytest.fixture(params=["sqlite", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """An empty location of each kind."""
    if request.param == "postgres":
        return Location(request.getfixturevalue("postgres").url())
    return locate_file(tmp_path / "runs.db")


def locate_file(path: Path) -> Location:
    """Return the location of a store in a file."""
    return Location(str(path), path)


@pytest.mark.parametrize(
    "batches", [2, 13, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 5))]
)
def test_a_killed_writer_loses_no_batch_whose_append_returned(
    location: Location, batches: int
) -> None:
    with other(write, location.url, "study") as writer:
        counts = [int(read_line(writer)) for _ in range(batches)]
        # The writer may be anywhere in the next batches.
        writer.kill()
    length = location.count_steps("study")
    assert length >= counts[-1] == batches * BATCH
    assert length % BATCH == 0
    location.check_append("study", length)


@pytest.mark.parametrize(
    ("moment", "size"),
    # The large batch exceeds the cache of SQLite, so part of it is in the file before the commit.
    [*((moment, BATCH) for moment in MOMENTS), ("after the rows", 10_000)],
)
def test_a_batch_is_stored_completely_or_not_at_all(
    location: Location, moment: str, size: int
) -> None:
    with other(write_and_die, location.url, "study", moment, size) as writer:
        assert writer.wait() == -signal.SIGKILL, errors(writer)
    length = 2 * size if moment == "after the commit" else size
    assert location.count_steps("study") == length
    location.check_append("study", length)


def test_a_torn_file_holds_complete_batches(tmp_path: Path) -> None:
    path, torn = tmp_path / "runs.db", tmp_path / "torn" / "runs.db"
    with other(write, path, "study") as writer:
        while int(read_line(writer)) < 4 * BATCH:
            pass
        writer.kill()
    wal = path.with_name("runs.db-wal").read_bytes()
    lengths = []
    for cut in range(0, len(wal), len(wal) // 40):
        torn.parent.mkdir()
        shutil.copy(path, torn)
        # Of the last write, the disk kept only the first bytes.
        torn.with_name("runs.db-wal").write_bytes(wal[:cut] + bytes(len(wal) - cut))
        lengths.append(locate_file(torn).count_steps("study"))
        locate_file(torn).check_append("study", lengths[-1])
        shutil.rmtree(torn.parent)
    assert lengths == sorted(lengths)
    assert all(length % BATCH == 0 for length in lengths)
    assert len(set(lengths)) >= 4


def test_a_killed_lazy_writer_leaves_complete_groups(location: Location) -> None:
    with other(write, location.url, "study", GROUP_SIZE // 2, "lazy") as writer:
        while int(read_line(writer)) < 2 * GROUP_SIZE + GROUP_SIZE // 2:
            pass
        writer.kill()
    length = location.count_steps("study")
    assert length >= 2 * GROUP_SIZE
    assert length % GROUP_SIZE == 0
    location.check_append("study", length)


def test_a_store_whose_creation_was_interrupted_is_created_by_the_next_process(
    tmp_path: Path,
) -> None:
    with other(create_and_die, tmp_path) as maker:
        assert maker.wait() == 0, errors(maker)
    folders = list(tmp_path.iterdir())
    assert len(folders) > 5
    for folder in folders:
        locate_file(folder / "runs.db").check_append("study", 0)


def test_a_killed_writer_releases_its_study(location: Location) -> None:
    with other(hold, location.url, "study") as writer:
        assert read_line(writer) == "the child runs"
        with closing(open_store(location.url, create=False)) as store:
            log = make_log(2)
            written = f"'study' .* by process {writer.pid}( on .*)?: wait"
            with pytest.raises(StoreError, match=written):
                store.append("study", log[1:])
            writer.kill()
            writer.wait()
            # The child still runs, but holds no claim.
            store.append("study", log[1:])
            assert list(store.read("study")) == log
        send_line(writer)
        assert read_line(writer) == "the child ends"


def test_writers_of_different_studies_do_not_disturb_each_other(location: Location) -> None:
    names = ["a", "b", "c"]
    with (
        other(write_some, location.url, "a", 20) as first,
        other(write_some, location.url, "b", 20) as second,
        other(write_some, location.url, "c", 20) as third,
    ):
        writers = [first, second, third]
        # All of them create the store, then write to it.
        together(writers)
        for writer in writers:
            assert writer.wait() == 0, errors(writer)
    assert [location.count_steps(name) for name in names] == [20 * BATCH] * 3


@needs_locks
def test_a_store_that_two_processes_create_at_once_is_created_once(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    lock = FileLock(path.with_name("runs.db.lock"))
    with (
        other(write_some, path, "a", 1) as first,
        other(write_some, path, "b", 1) as second,
    ):
        for writer in (first, second):
            send_line(writer)
            until_waiting(writer)
        lock.close()
        for writer in (first, second):
            assert writer.wait() == 0, errors(writer)
    assert [locate_file(path).count_steps(name) for name in "ab"] == [BATCH] * 2
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT version FROM paceline_store").fetchall() == [(1,)]


@needs_locks
def test_a_lock_on_a_file_that_its_last_holder_deleted_is_acquired_again(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = FileLock(path)
    with other(wait_for_lock, path) as waiting:
        until_waiting(waiting)
        lock.close()
        assert read_line(waiting) == "holding"
        with pytest.raises(LockHeld, match=str(waiting.pid)):
            FileLock(path)
        send_line(waiting)
        assert waiting.wait() == 0, errors(waiting)
    assert os.listdir(tmp_path) == []


def test_one_of_several_concurrent_writers_of_a_study_wins(location: Location) -> None:
    with (
        other(write_some, location.url, "study", 5) as first,
        other(write_some, location.url, "study", 5) as second,
        other(write_some, location.url, "study", 5) as third,
    ):
        writers = [first, second, third]
        together(writers)
        ends = [(writer.wait(), errors(writer)) for writer in writers]
    assert [code for code, _ in ends].count(0) == 1
    for code, error in ends:
        # Refused while the winner wrote, or because its log exists after it has ended.
        refused = "is being written by" in error or "does not follow the log" in error
        assert code == 0 or refused, error
    assert location.count_steps("study") == 5 * BATCH


def test_a_lock_has_one_holder_at_a_time(tmp_path: Path) -> None:
    with other(take_turns, tmp_path, 200) as first, other(take_turns, tmp_path, 200) as second:
        writers = [first, second]
        together(writers)
        for writer in writers:
            assert writer.wait() == 0, errors(writer)
    assert os.listdir(tmp_path) == []


def test_a_reader_follows_a_writer_and_can_stop_it(location: Location) -> None:
    with other(write_until_stopped, location.url, "study") as writer:
        assert read_line(writer) == "begun"
        seen: list[Step] = []
        with closing(open_store(location.url, create=False)) as store:
            while len(seen) < 100 * BATCH:
                seen += store.read("study", seen[-1].number if seen else -1)
                assert writer.poll() is None, errors(writer)
            # A reader that pauses in the middle does not block the writer either.
            paused = store.read("study")
            assert next(paused) == seen[0]
            store.post("study", StopStudy())
            length = int(read_line(writer))
            assert writer.wait() == 0, errors(writer)
            seen += store.read("study", seen[-1].number)
            assert seen == make_log(length)
            rest = [seen[0], *paused]
            assert rest == seen[: len(rest)]
    location.check_clean("study")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
