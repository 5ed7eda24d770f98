"""A store's SQLite file: how it is opened, locked and complained about.

Knows everything that is particular to SQLite, and no table.
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
from paceline.store.rows import being_written

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from sqlalchemy.exc import DBAPIError


class Held(Exception):
    """Somebody else holds the claim; `holder` is the process, as far as it can be told."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


class Claim:
    """A lock on a file, held from construction to `close`, or to the end of the process.

    Where another claim on the same file lives, in this process or another, it is awaited, or Held
    is raised. Raises OSError where the file cannot be made.
    """

    def __init__(self, path: Path, *, wait: bool = False) -> None:
        self._path = path
        self._descriptor = _locked(path, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        _held.add(self._descriptor)
        try:
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, str(os.getpid()).encode())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go, and leave no file behind."""
        _held.discard(self._descriptor)
        # Unlinked while it is still locked: whoever opens the name from now on makes a new file.
        with suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._descriptor)


def _locked(path: Path, how: int) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, how)
            if _is_at(descriptor, path):
                return descriptor
        except BlockingIOError:
            holder = os.read(descriptor, 20).decode(errors="replace")
            os.close(descriptor)
            raise Held(f"process {holder}" if holder else "another process") from None
        except BaseException:
            os.close(descriptor)
            raise
        # Its last holder unlinked it between our opening and our locking: a lock on a file that
        # no longer has a name excludes nobody.
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


_held: set[int] = set()


def _let_go() -> None:
    # A forked child has the same open file, and would keep the lock alive after its parent's death.
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


# How long a transaction waits for another process's. Each takes milliseconds, so whoever waits
# longer waits for a process that hangs.
PATIENCE_S = 60

_COMPLAINTS = {
    sqlite3.SQLITE_NOTADB: (
        "is not an SQLite database: give the path of a store, or of a file that does not exist yet."
    ),
    sqlite3.SQLITE_CANTOPEN: (
        "cannot be opened: check that you may write to the file and to its folder."
    ),
    sqlite3.SQLITE_READONLY: (
        "cannot be written: check that you may write to the file and to its folder."
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
        "leave its .lock files alone, and resume the study."
    ),
}


class SqliteFile:
    """One file, by its real path, so that all who name it differently meet at the same locks."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path.resolve()

    def engine(self, *, create: bool, durable: bool) -> Engine:
        """Return an engine for this file. Nothing is opened or made before its first use.

        Transactions of `durable` ones are on the disk when they end; others may be undone by a
        power cut, but by no killed process.
        """
        self._look(create)
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

        # The address is for messages and for the choice of a pool; `connect` knows the file.
        address = URL.create("sqlite", database=str(self._path))
        engine = create_engine(address, creator=connect)
        # The driver begins no transaction by itself here (isolation_level=None): it would begin
        # one only at the first write, and what was read before could be stale by then.
        event.listen(engine, "begin", _begin)
        return engine

    @contextmanager
    def making(self, engine: Engine) -> Iterator[None]:
        """Prepare an empty file for a store's tables, and keep others who would do so waiting."""
        # Two that change the mode at once fail instead of waiting, however patient they are.
        with closing(self._lock(self._path.with_name(f"{self._path.name}.lock"), wait=True)):
            try:
                # On the bare connection, because the mode cannot change inside a transaction.
                with closing(engine.raw_connection()) as connection:
                    connection.cursor().execute("PRAGMA journal_mode=WAL")
            except sqlite3.Error as error:
                raise StoreError(self.complaint(error)) from error
            yield

    def claim(self, study: str) -> Claim:
        """Take the right to append to this study, or say who has it."""
        # A name may be longer than a file's may be, or hold a slash.
        code = sha256(study.encode(errors="surrogatepass")).hexdigest()[:16]
        path = self._path.with_name(f"{self._path.name}.{code}.lock")
        try:
            return self._lock(path)
        except Held as held:
            raise being_written(study, self.name, held.holder) from None

    def claims(self, engine: Engine) -> FileClaims:
        """Return an empty set of claims on this file's studies."""
        return FileClaims(self, engine)

    def writing(self, engine: Engine) -> Engine:
        """Return the same engine for transactions that hold the write lock from their begin."""
        return engine.execution_options(writing=True)

    def refuse(self, tables: Sequence[str], create: bool) -> None:
        """Raise StoreError where a file with these tables, and no store, cannot become one."""
        if tables:
            raise StoreError(
                f"{self.name} is a database of something else, with a table {tables[0]!r}: "
                "give the path of a store, or of a file that does not exist yet."
            )
        if not create:
            raise StoreError(f"{self.name} is empty: check the path, or start a study there first.")

    def away(self, error: DBAPIError) -> bool:
        """Return False: a file is there or it is not; where it is locked, SQLite itself waits."""
        return False

    def complaint(self, error: BaseException) -> str:
        """Return what SQLite's error means, as one sentence."""
        code = getattr(error, "sqlite_errorcode", None)
        # The low byte is the kind, the rest tells sub-kinds apart.
        known = _COMPLAINTS.get(code & 0xFF) if code is not None else None
        return f"{self.name} {known}" if known else f"{self.name} cannot be used: {error}."

    def _lock(self, path: Path, *, wait: bool = False) -> Claim:
        try:
            return Claim(path, wait=wait)
        except OSError as error:
            raise StoreError(
                f"{self.name} cannot be locked ({error.strerror}: {path}): "
                "check that you may write to that folder."
            ) from error

    def _look(self, create: bool) -> None:
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
                f"{self.name} cannot be made because {folder} is not a directory: "
                "make that directory first, or choose another path."
            )


class FileClaims:
    """The claims of one store on a file, each a lock on a file beside it."""

    # A lock on an open file is never lost.
    lives = 0

    def __init__(self, file: SqliteFile, engine: Engine) -> None:
        self._file = file
        self._reads = engine
        self._writes = file.writing(engine)
        self._held: list[Claim] = []

    def take(self, study: str) -> None:
        """Claim a study. Raises StudyRunning where somebody else holds it."""
        self._held.append(self._file.claim(study))

    def holder(self, study: str) -> str | None:
        """Return who holds a study, whoever that is."""
        try:
            self._file.claim(study).close()
        except StudyRunning as running:
            return running.holder
        return None

    def writing(self) -> AbstractContextManager[Connection]:
        """Give a transaction that writes."""
        return self._writes.begin()

    def reading(self) -> AbstractContextManager[Connection]:
        """Give a transaction that reads."""
        return self._reads.begin()

    def close(self) -> None:
        """Give all of them up."""
        for claim in self._held:
            claim.close()
        self._held.clear()


def _begin(connection: Connection) -> None:
    # A transaction that began as a reader cannot always become a writer; one that will write
    # therefore takes its turn at the begin, where waiting is safe.
    writes = connection.get_execution_options().get("writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
