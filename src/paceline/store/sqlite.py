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

from paceline.core.codec import MAX_BYTES
from paceline.core.errors import StoreError
from paceline.store.rows import make_running_error
from paceline.store.schema import TABLES

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
            # On a full disk it is a lock without the name of its holder.
            with suppress(OSError):
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


def find_lock_holder(path: Path) -> str | None:
    """Return the process that holds the lock on a file; None: none does. Writes nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_holder(descriptor)
    finally:
        os.close(descriptor)
    return None


def _read_holder(descriptor: int) -> str:
    holder = os.read(descriptor, 20).decode(errors="replace")
    return f"process {holder}" if holder.isdecimal() else "another process"


def _lock_file(path: Path, mode: int) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, mode)
            if _has_path(descriptor, path):
                return descriptor
        except BlockingIOError:
            holder = _read_holder(descriptor)
            os.close(descriptor)
            raise LockHeld(holder) from None
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
    sqlite3.SQLITE_IOERR: (
        "cannot be read or written: check the disk; all steps that were appended before are safe."
    ),
    sqlite3.SQLITE_TOOBIG: "has an entry that is too long: it is damaged, or was edited.",
    sqlite3.SQLITE_CORRUPT: (
        "is damaged: restore it from a backup, or save what is left with sqlite3's .recover."
    ),
    sqlite3.SQLITE_CONSTRAINT: (
        "already holds these entries from a second writer, although the study was claimed: "
        "do not delete its .lock files, and resume the study."
    ),
}


# Errors of a disk that is full or read-only: SQLite needs room beside a file even to read it.
_UNWRITABLE = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
)


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
        level = "FULL" if durable else "NORMAL"

        def connect() -> sqlite3.Connection:
            try:
                return self._connect(f"mode={'rwc' if create else 'rw'}", level)
            except sqlite3.OperationalError as error:
                # An error of the driver itself has no code.
                code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
                if create or code & 0xFF not in _UNWRITABLE:
                    raise
                # It can still be read.
                return self._connect(self._choose_reading_mode(), level)

        # The URL is for messages and for the choice of a pool; `connect` opens the file.
        address = URL.create("sqlite", database=str(self._path))
        engine = create_engine(address, creator=connect)
        # With isolation_level=None the driver begins no transaction by itself: it would begin one
        # only at the first write, and what was read before could be stale by then.
        event.listen(engine, "begin", _begin)
        return engine

    def _connect(self, mode: str, level: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self._path.as_uri()}?{mode}",
            uri=True,
            timeout=PATIENCE_S,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            # The file may come from elsewhere: nothing in its schema may run, or grow.
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_BYTES + 2**20)
            connection.execute("PRAGMA trusted_schema=OFF")
            connection.execute(f"PRAGMA synchronous={level}")
            self._check_schema(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _choose_reading_mode(self) -> str:
        """Return how to open a file on a disk that is full or read-only: without files beside it.

        Only if the file has all that was written: else the newest steps are in another file.
        """
        log = self._path.with_name(f"{self._path.name}-wal")
        is_whole = not log.exists() or not log.stat().st_size
        return "mode=ro&immutable=1" if is_whole else "mode=ro"

    def _check_schema(self, connection: sqlite3.Connection) -> None:
        """Raise StoreError if a store has views, triggers or computed columns: none has its own."""
        schema = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
        own = {name for name in TABLES.tables if any(name == row[1] for row in schema)}
        found = [
            f"a {kind} {name!r}"
            for kind, name, sql in schema
            if kind in ("view", "trigger") or (name in own and "CREATE TABLE" not in str(sql))
        ]
        for name in own:
            columns = connection.execute("SELECT name, hidden FROM pragma_table_xinfo(?)", (name,))
            found += [f"a computed column {column!r}" for column, hidden in columns if hidden]
        if own and found:
            raise StoreError(
                f"{self.name} has {found[0]}, which no store has: it was not written by Paceline, "
                "and is not read."
            )

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
        try:
            return self._lock(self._find_lock(study))
        except LockHeld as held:
            raise make_running_error(study, self.name, held.holder) from None

    def find_holder(self, study: str) -> str | None:
        """Return the process that holds the lock on a study; None: none does."""
        try:
            return find_lock_holder(self._find_lock(study))
        except OSError as error:
            raise StoreError(f"{self.name} cannot be read: {error.strerror}.") from error

    def _find_lock(self, study: str) -> Path:
        # A study's name may be too long for a file name, or contain a slash.
        code = sha256(study.encode(errors="surrogatepass")).hexdigest()[:16]
        return self._path.with_name(f"{self._path.name}.{code}.lock")

    def make_claims(self, engine: Engine) -> FileClaims:
        """Return an empty set of claims on studies in this file."""
        return FileClaims(self, engine)

    def make_writing_engine(self, engine: Engine) -> Engine:
        """Return the same engine for transactions that take the write lock when they begin."""
        return engine.execution_options(writing=True)

    def check_new(self, tables: Sequence[str], create: bool) -> None:
        """Raise StoreError if a file that holds only these tables cannot become a store."""
        if {"study_directions", "trial_values"} <= {*tables}:
            raise StoreError(
                f"{self.name} is a database of Optuna: give another file. To learn from a study in "
                "it, give warm_start=optuna.load_study(…), with Optuna's own load_study."
            )
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
        if code is None and "decode" in str(error):
            known = _EXPLANATIONS[sqlite3.SQLITE_CORRUPT]
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
        return self._file.find_holder(study)

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
