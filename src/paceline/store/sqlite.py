"""SQLite as a store's database: opening, locking and errors.

Knows everything that is specific to SQLite. Does not know the tables.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from typing import TYPE_CHECKING

from sqlalchemy import URL, Connection, Engine, create_engine, event

from paceline.core.errors import StoreError, StudyRunning
from paceline.store.rows import make_running_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from sqlalchemy.exc import DBAPIError


class LockHeld(Exception):
    """Another lock on the file is held; `holder` is its process, as far as known."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


class FileLock:
    """A lock on a file, held from construction to `close` or to the end of the process.

    If another lock on the same file is held, in this process or another, the constructor waits for
    it or raises LockHeld. Raises OSError if the file cannot be created.
    """

    def __init__(self, path: Path, *, wait: bool = False) -> None:
        self._path = path
        mode = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
        self._descriptor = _lock_file(path, mode)
        _locked_files.add(self._descriptor)
        try:
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, str(os.getpid()).encode())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock and delete its file."""
        _locked_files.discard(self._descriptor)
        # Unlinked while it is still locked: the next process that opens the name makes a new file.
        with suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._descriptor)


def _lock_file(path: Path, mode: int) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, mode)
            if _has_path(descriptor, path):
                return descriptor
        except BlockingIOError:
            holder = os.read(descriptor, 20).decode(errors="replace")
            os.close(descriptor)
            raise LockHeld(f"process {holder}" if holder else "another process") from None
        except BaseException:
            os.close(descriptor)
            raise
        # The last holder unlinked the file between our open and our flock: a lock on a file without
        # a name excludes no other process.
        os.close(descriptor)


def _has_path(descriptor: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


_locked_files: set[int] = set()


def _close_in_child() -> None:
    # A forked child inherits the open files, and would keep the locks after its parent has ended.
    for descriptor in _locked_files:
        os.close(descriptor)
    _locked_files.clear()


os.register_at_fork(after_in_child=_close_in_child)


# How long a transaction waits for another process. Each takes milliseconds, so a longer wait means
# that the other process hangs.
PATIENCE_S = 60

_EXPLANATIONS = {
    sqlite3.SQLITE_NOTADB: (
        "is not an SQLite database: give the path of a store, or of a file that does not exist yet."
    ),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened: check that the file and its folder are writable."),
    sqlite3.SQLITE_READONLY: (
        "cannot be written: check that the file and its folder are writable."
    ),
    sqlite3.SQLITE_BUSY: (
        f"was locked by another process for {PATIENCE_S} s: end that process and try again."
    ),
    sqlite3.SQLITE_FULL: "cannot grow because the disk is full: free some space and try again.",
    sqlite3.SQLITE_CORRUPT: (
        "is damaged: restore it from a backup, or save what is left with sqlite3's .recover."
    ),
    sqlite3.SQLITE_CONSTRAINT: (
        "already holds these entries from a second writer, although the study was claimed: "
        "do not delete its .lock files, and resume the study."
    ),
}


class SqliteFile:
    """One file, by its real path, so that all spellings of the path share the same locks."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path.resolve()

    def make_engine(self, *, create: bool, durable: bool) -> Engine:
        """Return an engine for this file; its first use opens, or creates, the file.

        A `durable` transaction is on the disk when it ends; another may be undone by a power cut,
        but not by a killed process.
        """
        self._check_path(create)
        uri = f"{self._path.as_uri()}?mode={'rwc' if create else 'rw'}"
        level = "FULL" if durable else "NORMAL"

        def connect() -> sqlite3.Connection:
            connection = sqlite3.connect(
                uri, uri=True, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False
            )
            try:
                connection.execute(f"PRAGMA synchronous={level}")
            except BaseException:
                connection.close()
                raise
            return connection

        # The URL is for messages and for the choice of a pool; `connect` opens the file.
        address = URL.create("sqlite", database=str(self._path))
        engine = create_engine(address, creator=connect)
        # With isolation_level=None the driver begins no transaction by itself: it would begin one
        # only at the first write, and what was read before could be stale by then.
        event.listen(engine, "begin", _begin)
        return engine

    @contextmanager
    def lock_tables(self, engine: Engine) -> Iterator[None]:
        """Exclude other processes that would create the tables, and prepare the file for them."""
        # Two processes that change the journal mode at once fail instead of waiting.
        with closing(self._lock(self._path.with_name(f"{self._path.name}.lock"), wait=True)):
            try:
                # On the bare connection, because the mode cannot change inside a transaction.
                with closing(engine.raw_connection()) as connection:
                    connection.cursor().execute("PRAGMA journal_mode=WAL")
            except sqlite3.Error as error:
                raise StoreError(self.explain_error(error)) from error
            yield

    def lock_study(self, study: str) -> FileLock:
        """Return a lock on a study. Raises StudyRunning if another process holds it."""
        # A study's name may be too long for a file name, or contain a slash.
        code = sha256(study.encode(errors="surrogatepass")).hexdigest()[:16]
        path = self._path.with_name(f"{self._path.name}.{code}.lock")
        try:
            return self._lock(path)
        except LockHeld as held:
            raise make_running_error(study, self.name, held.holder) from None

    def make_claims(self, engine: Engine) -> FileClaims:
        """Return an empty set of claims on studies in this file."""
        return FileClaims(self, engine)

    def make_writing_engine(self, engine: Engine) -> Engine:
        """Return the same engine for transactions that take the write lock when they begin."""
        return engine.execution_options(writing=True)

    def check_new(self, tables: Sequence[str], create: bool) -> None:
        """Raise StoreError if a file that holds only these tables cannot become a store."""
        if tables:
            raise StoreError(
                f"{self.name} is a database of another program, with a table {tables[0]!r}: "
                "give the path of a store, or of a file that does not exist yet."
            )
        if not create:
            raise StoreError(f"{self.name} is empty: check the path, or start a study there first.")

    def is_unavailable(self, error: DBAPIError) -> bool:
        """Return False: retries do not bring a file back, and SQLite itself waits for locks."""
        return False

    def explain_error(self, error: BaseException) -> str:
        """Return what an error of SQLite means, as one sentence."""
        code = getattr(error, "sqlite_errorcode", None)
        # The low byte is the kind of error, the rest a sub-kind.
        known = _EXPLANATIONS.get(code & 0xFF) if code is not None else None
        return f"{self.name} {known}" if known else f"{self.name} cannot be used: {error}."

    def _lock(self, path: Path, *, wait: bool = False) -> FileLock:
        try:
            return FileLock(path, wait=wait)
        except OSError as error:
            raise StoreError(
                f"{self.name} cannot be locked ({error.strerror}: {path}): "
                "check that the folder is writable."
            ) from error

    def _check_path(self, create: bool) -> None:
        path, folder = self._path, self._path.parent
        if os.path.isdir(path):
            raise StoreError(
                f"{self.name} is a directory: give the path of a file, such as "
                f"{os.path.join(self.name, 'studies.db')}."
            )
        if not create and not os.path.exists(path):
            raise StoreError(
                f"there is no store at {self.name}: check the path, or start a study there first."
            )
        if not os.path.isdir(folder):
            raise StoreError(
                f"{self.name} cannot be created because {folder} is not a directory: "
                "create the directory first, or choose another path."
            )


class FileClaims:
    """The claims of one store on studies in a file; each is a lock on a file next to it."""

    # A lock on an open file cannot be lost.
    generation = 0

    def __init__(self, file: SqliteFile, engine: Engine) -> None:
        self._file = file
        self._reads = engine
        self._writes = file.make_writing_engine(engine)
        self._locks: list[FileLock] = []

    def acquire(self, study: str) -> None:
        """Claim a study. Raises StudyRunning if another store holds the claim."""
        self._locks.append(self._file.lock_study(study))

    def find_holder(self, study: str) -> str | None:
        """Return the process that holds the claim on a study, this one included."""
        try:
            self._file.lock_study(study).close()
        except StudyRunning as running:
            return running.holder
        return None

    def begin_writing(self) -> AbstractContextManager[Connection]:
        """Begin a transaction that writes."""
        return self._writes.begin()

    def begin_reading(self) -> AbstractContextManager[Connection]:
        """Begin a transaction that reads."""
        return self._reads.begin()

    def close(self) -> None:
        """Release all claims."""
        for lock in self._locks:
            lock.close()
        self._locks.clear()


def _begin(connection: Connection) -> None:
    # A transaction that began as a reader cannot always become a writer; one that will write
    # therefore takes the lock when it begins, where waiting is safe.
    writes = connection.get_execution_options().get("writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
