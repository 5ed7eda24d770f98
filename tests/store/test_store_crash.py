"""Stores among real processes: killed writers, torn files, readers and writers side by side.

Run as a program, this file is the other process: `python test_store_crash.py PROGRAM URL …`. The
two talk by lines on pipes, so nothing here waits for a clock.
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
from paceline.store.sql import GROUP
from paceline.store.sqlite import Claim, Held
from paceline.testing.stores import numbered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH = 7
# Where Linux tells who waits for which lock.
LOCKS = Path("/proc/locks")
needs_locks = pytest.mark.skipif(not LOCKS.exists(), reason="nobody tells who waits for a lock")


def log_of(length: int) -> list[Step]:
    """Return a log that is the same in every process: report after report, each with an answer."""
    return numbered(
        (
            Reported(at=float(epoch), attempt=0, epoch=epoch, metrics={"loss": 1.0}, seconds=1.0),
            (Go(why=f"epoch {epoch} is done", trial=0, until=epoch + 1),) * (epoch % 3),
        )
        for epoch in range(length)
    )


# The other process.


def say(word: object) -> None:
    """Tell the test something."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def hear() -> None:
    """Wait for a line from the test, or for the end of the pipe."""
    sys.stdin.readline()


def die(*_: object) -> None:
    """Be killed at exactly this place."""
    os.kill(os.getpid(), signal.SIGKILL)


def write(url: str, study: str, size: str = str(BATCH), lazy: str = "") -> None:
    """Append batch after batch until killed, and tell after each how many steps there are."""
    store = open_store(url, create=True, lazy=bool(lazy))
    for start in count(step=int(size)):
        store.append(study, log_of(start + int(size))[start:])
        say(start + int(size))


def write_some(url: str, study: str, batches: str) -> None:
    """Append so many batches, together with others who do the same."""
    say("ready")
    hear()
    log = log_of(int(batches) * BATCH)
    with closing(open_store(url, create=True)) as store:
        for start in range(0, len(log), BATCH):
            store.append(study, log[start : start + BATCH])


def write_until_told(url: str, study: str) -> None:
    """Append batch after batch until the store's inbox says stop, and tell how many there are."""
    with closing(open_store(url, create=True)) as store:
        log: list[Step] = []
        while not store.inbox(study):
            log = log_of(len(log) + BATCH)
            store.append(study, log[-BATCH:])
            if len(log) == BATCH:
                say("begun")
    say(len(log))


def die_at(url: str, study: str, moment: str, size: str) -> None:
    """Append one batch, and be killed at a named moment of the second."""
    with closing(open_store(url, create=True)) as store:
        log = log_of(2 * int(size))
        store.append(study, log[: int(size)])
        MOMENTS[moment]()
        store.append(study, log[int(size) :])
        die()


def die_making(folder: str) -> None:
    """Make one store after another, killed one statement later each time, until one is made."""
    for statements in count():
        place = os.path.join(folder, str(statements))
        os.mkdir(place)
        # Forked from a process that has opened nothing yet.
        child = os.fork()
        if child == 0:
            _die_after(statements)
            open_store(os.path.join(place, "runs.db"), create=True).close()
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            return


def _die_after(statements: int) -> None:
    left = iter(range(statements))

    def one_more(*_: object) -> None:
        if next(left, None) is None:
            die()

    event.listen(Engine, "before_cursor_execute", one_more)
    event.listen(Engine, "commit", one_more)


def hold(url: str, study: str) -> None:
    """Be a study's living writer, with a child that outlives it."""
    store = open_store(url, create=True)
    store.append(study, log_of(1))
    if os.fork() == 0:
        say("the child is there")
        hear()
        say("the child is gone")
        os._exit(0)
    signal.pause()


def wait_for(lock: str) -> None:
    """Wait for a claim and hold it."""
    with closing(Claim(Path(lock), wait=True)):
        say("holding")
        hear()


def take_turns(folder: str, turns: str) -> None:
    """Claim and release again and again, and see that nobody else is in between."""
    say("ready")
    hear()
    left = int(turns)
    while left:
        try:
            claim = Claim(Path(folder, "lock"))
        except Held:
            continue
        # Fails where the token exists: another process believes that it holds the claim.
        os.close(os.open(os.path.join(folder, "token"), os.O_CREAT | os.O_EXCL))
        os.unlink(os.path.join(folder, "token"))
        claim.close()
        left -= 1


def _listen(name: str, word: str) -> Callable[[], None]:
    def on_statement(connection: Connection, cursor: object, statement: str, *_: object) -> None:
        if word in statement:
            die()

    return lambda: event.listen(Engine, name, on_statement)


MOMENTS: dict[str, Callable[[], None]] = {
    "at the begin": lambda: event.listen(Engine, "begin", die),
    "before the rows": _listen("before_cursor_execute", "INSERT INTO paceline_steps"),
    "after the rows": _listen("after_cursor_execute", "INSERT INTO paceline_steps"),
    "before the commit": lambda: event.listen(Engine, "commit", die),
    "after the commit": lambda: None,
}


# The tests.


@contextmanager
def other(program: Callable[..., None], *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run one of the programs above as another process; it is gone when this ends."""
    command = [sys.executable, __file__, program.__name__, *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def heard(process: subprocess.Popen[str]) -> str:
    """Return the next line the other process says."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line or process.poll() is None or process.returncode == -signal.SIGKILL, errors(process)
    return line


def tell(process: subprocess.Popen[str]) -> None:
    """Send the other process the line it waits for."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def together(processes: list[subprocess.Popen[str]]) -> None:
    """Let other processes begin at once, when all of them are ready."""
    for process in processes:
        assert heard(process) == "ready"
    for process in processes:
        tell(process)


def errors(process: subprocess.Popen[str]) -> str:
    """Return what the other process complained about, when it has ended."""
    assert process.stderr is not None
    return process.stderr.read()


def until_waiting(process: subprocess.Popen[str]) -> None:
    """Return when the other process stands before a lock; the kernel lists those with an arrow."""
    marks = {"->", str(process.pid)}
    while not any(marks <= set(line.split()) for line in LOCKS.read_text().splitlines()):
        assert process.poll() is None, errors(process)


class Place:
    """Where a store is, and whether all is well there."""

    def __init__(self, url: str, path: Path | None = None) -> None:
        self.url = url
        # Of a file.
        self._path = path

    def whole_prefix(self, study: str) -> int:
        """Return how many steps the log has; they must be the first ones, and the file sound."""
        with closing(open_store(self.url, create=True)) as store:
            steps = list(store.read(study)) if study in store.studies() else []
        assert steps == log_of(len(steps))
        if self._path is not None:
            with closing(sqlite3.connect(self._path)) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return len(steps)

    def goes_on(self, study: str, length: int) -> None:
        """Append to a log of this length, as a driver that takes the study up again."""
        log = log_of(length + 10)
        with closing(open_store(self.url, create=True)) as store:
            store.append(study, log[length:])
            assert list(store.read(study)) == log
        self.is_tidy(study)

    def is_tidy(self, study: str) -> None:
        """See that no writer has left anything behind."""
        if self._path is not None:
            assert os.listdir(self._path.parent) == [self._path.name]
        with closing(open_store(self.url, create=False)) as store:
            assert store.holder(study) is None


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place of each kind."""
    if request.param == "postgres":
        return Place(request.getfixturevalue("cluster").url())
    return file_at(tmp_path / "runs.db")


def file_at(path: Path) -> Place:
    """Return the place of a file."""
    return Place(str(path), path)


@pytest.mark.parametrize("batches", [1, 2, 5, 13])
def test_a_killed_writer_leaves_every_batch_it_was_told_is_safe(place: Place, batches: int) -> None:
    with other(write, place.url, "study") as writer:
        told = [int(heard(writer)) for _ in range(batches)]
        # Wherever it is now: the next batches are on their way.
        writer.kill()
    length = place.whole_prefix("study")
    assert length >= told[-1] == batches * BATCH
    assert length % BATCH == 0
    place.goes_on("study", length)


@pytest.mark.parametrize(
    ("moment", "size"),
    # The large ones outgrow SQLite's cache, so that part of them is in the file before the commit.
    [*((moment, BATCH) for moment in MOMENTS), ("after the rows", 10_000)],
)
def test_a_batch_is_there_whole_or_not_at_all(place: Place, moment: str, size: int) -> None:
    with other(die_at, place.url, "study", moment, size) as writer:
        assert writer.wait() == -signal.SIGKILL, errors(writer)
    length = 2 * size if moment == "after the commit" else size
    assert place.whole_prefix("study") == length
    place.goes_on("study", length)


def test_a_torn_tail_leaves_whole_batches(tmp_path: Path) -> None:
    path, torn = tmp_path / "runs.db", tmp_path / "torn" / "runs.db"
    with other(write, path, "study") as writer:
        while int(heard(writer)) < 4 * BATCH:
            pass
        writer.kill()
    wal = path.with_name("runs.db-wal").read_bytes()
    lengths = []
    for cut in range(0, len(wal), len(wal) // 40):
        torn.parent.mkdir()
        shutil.copy(path, torn)
        # The disk kept the first bytes of what was written last, and then something else.
        torn.with_name("runs.db-wal").write_bytes(wal[:cut] + bytes(len(wal) - cut))
        lengths.append(file_at(torn).whole_prefix("study"))
        file_at(torn).goes_on("study", lengths[-1])
        shutil.rmtree(torn.parent)
    assert lengths == sorted(lengths)
    assert all(length % BATCH == 0 for length in lengths)
    assert len(set(lengths)) >= 4


def test_a_killed_lazy_writer_leaves_whole_groups(place: Place) -> None:
    with other(write, place.url, "study", GROUP // 2, "lazy") as writer:
        while int(heard(writer)) < 2 * GROUP + GROUP // 2:
            pass
        writer.kill()
    length = place.whole_prefix("study")
    assert length >= 2 * GROUP
    assert length % GROUP == 0
    place.goes_on("study", length)


def test_a_store_whose_making_was_cut_short_is_made_by_the_next(tmp_path: Path) -> None:
    with other(die_making, tmp_path) as maker:
        assert maker.wait() == 0, errors(maker)
    places = list(tmp_path.iterdir())
    assert len(places) > 5
    for place in places:
        file_at(place / "runs.db").goes_on("study", 0)


def test_a_study_is_free_when_its_writer_was_killed(place: Place) -> None:
    with other(hold, place.url, "study") as writer:
        assert heard(writer) == "the child is there"
        with closing(open_store(place.url, create=False)) as store:
            log = log_of(2)
            written = f"'study' .* by process {writer.pid}( on .*)?: wait"
            with pytest.raises(StoreError, match=written):
                store.append("study", log[1:])
            writer.kill()
            writer.wait()
            # Its child still lives, and holds nothing.
            store.append("study", log[1:])
            assert list(store.read("study")) == log
        tell(writer)
        assert heard(writer) == "the child is gone"


def test_writers_of_different_studies_work_side_by_side(place: Place) -> None:
    names = ["a", "b", "c"]
    with (
        other(write_some, place.url, "a", 60) as first,
        other(write_some, place.url, "b", 60) as second,
        other(write_some, place.url, "c", 60) as third,
    ):
        writers = [first, second, third]
        # All make the store, and then all write to it.
        together(writers)
        for writer in writers:
            assert writer.wait() == 0, errors(writer)
    assert [place.whole_prefix(name) for name in names] == [60 * BATCH] * 3


@needs_locks
def test_a_store_that_two_make_at_once_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    making = Claim(path.with_name("runs.db.lock"))
    with (
        other(write_some, path, "a", 1) as first,
        other(write_some, path, "b", 1) as second,
    ):
        for writer in (first, second):
            tell(writer)
            until_waiting(writer)
        making.close()
        for writer in (first, second):
            assert writer.wait() == 0, errors(writer)
    assert [file_at(path).whole_prefix(name) for name in "ab"] == [BATCH] * 2
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT version FROM paceline_store").fetchall() == [(1,)]


@needs_locks
def test_a_claim_on_a_file_that_its_last_holder_removed_is_taken_again(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    claim = Claim(path)
    with other(wait_for, path) as waiting:
        until_waiting(waiting)
        claim.close()
        assert heard(waiting) == "holding"
        with pytest.raises(Held, match=str(waiting.pid)):
            Claim(path)
        tell(waiting)
        assert waiting.wait() == 0, errors(waiting)
    assert os.listdir(tmp_path) == []


def test_of_many_who_begin_one_study_at_once_one_writes_it(place: Place) -> None:
    with (
        other(write_some, place.url, "study", 5) as first,
        other(write_some, place.url, "study", 5) as second,
        other(write_some, place.url, "study", 5) as third,
    ):
        writers = [first, second, third]
        together(writers)
        ends = [(writer.wait(), errors(writer)) for writer in writers]
    assert [code for code, _ in ends].count(0) == 1
    for code, complaint in ends:
        # Refused while the winner wrote, or because the log had begun when it had ended.
        refused = "is being written by" in complaint or "goes on with entry" in complaint
        assert code == 0 or refused, complaint
    assert place.whole_prefix("study") == 5 * BATCH


def test_a_claim_that_comes_and_goes_has_one_holder_at_a_time(tmp_path: Path) -> None:
    with other(take_turns, tmp_path, 500) as first, other(take_turns, tmp_path, 500) as second:
        writers = [first, second]
        together(writers)
        for writer in writers:
            assert writer.wait() == 0, errors(writer)
    assert os.listdir(tmp_path) == []


def test_a_reader_follows_a_living_writer_and_can_tell_it_to_stop(place: Place) -> None:
    with other(write_until_told, place.url, "study") as writer:
        assert heard(writer) == "begun"
        seen: list[Step] = []
        with closing(open_store(place.url, create=False)) as store:
            while len(seen) < 100 * BATCH:
                seen += store.read("study", seen[-1].number if seen else -1)
                assert writer.poll() is None, errors(writer)
            # A reader that stands still in the middle is in nobody's way either.
            standing = store.read("study")
            assert next(standing) == seen[0]
            store.post("study", StopStudy())
            length = int(heard(writer))
            assert writer.wait() == 0, errors(writer)
            seen += store.read("study", seen[-1].number)
            assert seen == log_of(length)
            stood = [seen[0], *standing]
            assert stood == seen[: len(stood)]
    place.is_tidy("study")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
