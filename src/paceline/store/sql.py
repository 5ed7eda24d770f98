"""Logs and inboxes in an SQL database, one row per step.

Knows transactions, and how to find the end of a log again after the database was unavailable. What
is specific to one kind of database is in its own module, behind `Database`. Does not interpret
steps: a row's body is JSON.
"""

from __future__ import annotations

import time
import warnings
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from sqlalchemy import insert, inspect, select
from sqlalchemy.exc import DBAPIError

from paceline.core.codec import decode_command, decode_step, encode_command
from paceline.core.errors import LogError, PacelineWarning, StoreError
from paceline.store.rows import (
    encode_rows,
    make_event_mark,
    make_not_found_error,
    select_steps,
)
from paceline.store.schema import (
    CHUNK_BYTES,
    CHUNK_SIZE,
    DELETE_INBOX,
    DELETE_STEPS,
    DELETE_STUDY,
    FIND_STUDY,
    INBOX,
    LAST_COMMAND,
    LAST_STEP,
    LIST_STUDIES,
    LOCK_STUDY,
    MARKED_STEPS,
    NEXT_COMMANDS,
    NEXT_STEPS,
    STEPS,
    STUDIES,
    VERSION,
    create_tables,
    newest_version,
    upgrade_tables,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from sqlalchemy import Connection, Engine, Select

    from paceline.core.decisions import Step
    from paceline.core.events import Command
    from paceline.store.rows import Row

T = TypeVar("T")

# Steps that a lazy store commits together.
GROUP_SIZE = 2_000
# How long an operation waits for a database that became unavailable.
PATIENCE_S = 60.0
# Pauses between retries: none at first, since mostly only the connection was lost; then longer.
PAUSES_S, LONGEST_S = (0.0, 0.05, 0.1, 0.2, 0.4), 1.0
# Databases that this process has opened. Their addresses are right, so the next opening waits for
# them too; a first opening does not, since the address may be wrong.
_opened_before: set[str] = set()


class Claims(Protocol):
    """The claims of one store: each lets this store alone append to one study."""

    # Counts how often the claims were lost and acquired again; another process may have written
    # in between.
    generation: int

    def acquire(self, study: str) -> None:
        """Claim a study. Raises StudyRunning if another store holds the claim."""
        ...

    def find_holder(self, study: str) -> str | None:
        """Return the process that holds the claim on a study, this one included."""
        ...

    def begin_writing(self) -> AbstractContextManager[Connection]:
        """Begin a transaction that can only be committed while the claims hold."""
        ...

    def begin_reading(self) -> AbstractContextManager[Connection]:
        """Begin a transaction that reads, and notices if the claims are lost."""
        ...

    def close(self) -> None:
        """Release all claims."""
        ...


class Database(Protocol):
    """What is specific to one kind of database."""

    # For messages: without a password.
    name: str

    def make_engine(self, *, create: bool, durable: bool) -> Engine:
        """Return an engine; its first use opens, or creates, the database.

        What it commits survives a killed process and, with `durable`, a power cut.
        """
        ...

    def make_writing_engine(self, engine: Engine) -> Engine:
        """Return the same engine for transactions that write."""
        ...

    def lock_tables(self, engine: Engine) -> AbstractContextManager[None]:
        """Exclude other processes that would create or upgrade the tables too."""
        ...

    def make_claims(self, engine: Engine) -> Claims:
        """Return an empty set of claims."""
        ...

    def check_new(self, tables: Sequence[str], create: bool) -> None:
        """Raise StoreError if a database that holds only these tables cannot become a store."""
        ...

    def is_unavailable(self, error: DBAPIError) -> bool:
        """Return whether a retry may succeed soon."""
        ...

    def explain_error(self, error: BaseException) -> str:
        """Return what an error of this database means, as one sentence."""
        ...


class _End(NamedTuple):
    """The end of a log in the database."""

    # None: the study has no row yet.
    study: int | None
    following: int
    body: str | None


class _Tail:
    """The end of a log that this store writes: the next number, and rows not yet committed."""

    def __init__(self, end: _End, generation: int) -> None:
        self.study = end.study
        self.following = end.following
        # The generation of the claims in which this was read.
        self.generation = generation
        self.pending: list[Row] = []


class SqlStore:
    """Keep logs in a database. When `append` returns, its steps are durable.

    A study has one writer: the first append claims the study until `close` or the end of the
    process. Readers and `post` need no claim and never block the writer. A `lazy` store commits in
    groups of 2,000 steps and at `close`: if the process is killed, the log ends with the last
    group, and a power cut may undo a few more groups. Simulated studies have no effects outside the
    log, so they lose only time.

    Operations wait for a database that becomes unavailable. If that takes too long, they raise
    StoreError, and the log ends with the last appended step.
    """

    def __init__(self, database: Database, *, create: bool, lazy: bool = False) -> None:
        self._database = database
        self._group = GROUP_SIZE if lazy else 1
        self._tails: dict[str, _Tail] = {}
        self._closed = False
        self._reads = database.make_engine(create=create, durable=not lazy)
        self._writes = database.make_writing_engine(self._reads)
        self._claims = database.make_claims(self._reads)
        self._claimed: set[str] = set()
        try:
            patience_s = None if database.name in _opened_before else 0.0
            self._version = self._try(lambda: self._open(create), patience_s)
            _opened_before.add(database.name)
        except BaseException:
            self.close()
            raise

    def claim(self, study: str) -> None:
        """Become this study's writer now instead of at the first append.

        Raises StudyRunning if the study has a writer, in this process or any other. Upgrades a
        store of an older version.
        """
        if study in self._claimed:
            return self._need_open()
        if self._version < newest_version():
            self._version = self._try(self._create_or_upgrade)
        self._try(lambda: self._claims.acquire(study))
        self._claimed.add(study)

    def holder(self, study: str) -> str | None:
        """Return the process that writes a study, such as `process 4711`, or None."""
        return self._try(lambda: self._claims.find_holder(study))

    def studies(self) -> Sequence[str]:
        """Return the names of all studies, oldest first."""
        self._commit()
        return self._read(lambda connection: connection.execute(LIST_STUDIES).scalars().all())

    def append(self, study: str, steps: Sequence[Step]) -> None:
        """Add steps to the end of a study's log: all or none, in one transaction.

        Raises LogError at a gap or an overlap, and StoreError if the study has another writer or
        the database fails; nothing is written then.
        """
        if not steps:
            return
        self.claim(study)
        tail = self._tails.get(study) or self._try(lambda: self._read_tail(study))
        rows = encode_rows(study, tail.following, steps)
        tail.pending += rows
        tail.following = steps[-1].after
        self._tails[study] = tail
        if sum(len(each.pending) for each in self._tails.values()) >= self._group:
            self._commit()

    def read(self, study: str, after: int = -1) -> Iterator[Step]:
        """Yield the steps whose number is greater than `after`. Raises StudyNotFound."""
        self._commit()
        return self._stream(self._read(lambda connection: self._find(connection, study)), after)

    def find_steps(self, study: str, kind: str) -> Sequence[Step]:
        """Return the steps whose event is of this kind. Raises StudyNotFound."""
        self._commit()
        pattern = f"%{make_event_mark(kind)}%"

        def select_marked(connection: Connection) -> Sequence[str]:
            row = self._find(connection, study)
            found = connection.execute(MARKED_STEPS, {"study": row, "pattern": pattern})
            return found.scalars().all()

        return select_steps(self._read(select_marked), kind)

    def delete(self, study: str) -> None:
        """Delete a study's log and inbox, in one transaction.

        Raises StudyNotFound, and StudyRunning if the study has a writer in another process.
        """
        self.claim(study)
        self._tails.pop(study, None)

        def delete_rows() -> None:
            with self._claims.begin_writing() as connection:
                row = self._find(connection, study)
                for statement in (DELETE_STEPS, DELETE_INBOX, DELETE_STUDY):
                    connection.execute(statement, {"row": row})

        self._try(delete_rows)

    def post(self, study: str, command: Command) -> int:
        """Put a command into a study's inbox and return its number. Raises StudyNotFound."""
        self._commit()
        body = encode_command(command).decode()

        def insert_command() -> int:
            with self._writes.begin() as connection:
                row = self._find(connection, study, LOCK_STUDY)
                number: int = (connection.execute(LAST_COMMAND, {"study": row}).scalar() or 0) + 1
                connection.execute(insert(INBOX), {"study": row, "number": number, "body": body})
            return number

        # Without retries: a command whose confirmation was lost may have arrived, and must not
        # arrive twice.
        return self._try(insert_command, patience_s=0.0)

    def inbox(self, study: str, after: int = 0) -> Sequence[tuple[int, Command]]:
        """Return the commands numbered above `after`, oldest first."""

        def select_commands() -> Sequence[tuple[int, Command]]:
            # A driver polls its inbox all the time, and so notices a lost claim early.
            with self._claims.begin_reading() as connection:
                rows = connection.execute(NEXT_COMMANDS, {"name": study, "after": after}).all()
            return [(number, decode_command(body)) for number, body in rows]

        return self._try(select_commands)

    def close(self) -> None:
        """Commit pending rows, release the claims and close all connections."""
        try:
            if not self._closed:
                self._commit()
        finally:
            self._closed = True
            self._claims.close()
            self._reads.dispose()

    def _open(self, create: bool) -> int:
        """Return the version of this store; create the tables of a new one."""
        with self._reads.begin() as connection:
            found = self._read_version(connection, create)
        return self._create_or_upgrade() if found is None else found

    def _create_or_upgrade(self) -> int:
        with self._database.lock_tables(self._reads), self._writes.begin() as connection:
            # Read again: another process may have created or upgraded the tables meanwhile.
            found = self._read_version(connection, create=True)
            if found is None:
                create_tables(connection)
            elif found < newest_version():
                upgrade_tables(connection, found)
        return newest_version()

    def _read_version(self, connection: Connection, create: bool) -> int | None:
        """Return the version of the tables, None without tables.

        Raises StoreError if the database is not a store that can be read, or made.
        """
        tables = inspect(connection).get_table_names()
        if VERSION.name not in tables:
            self._database.check_new(tables, create)
            return None
        found: int = connection.execute(select(VERSION.c.version)).scalar_one()
        if found > newest_version():
            raise StoreError(
                f"{self._database.name} is a store of version {found}, and this Paceline reads "
                f"versions up to {newest_version()}: upgrade Paceline to open it."
            )
        return found

    def _read_tail(self, study: str) -> _Tail:
        with self._claims.begin_reading() as connection:
            end = _read_end(connection, study)
        return _Tail(end, self._claims.generation)

    def _commit(self) -> None:
        """Write all pending rows in one transaction."""
        tails = {name: tail for name, tail in self._tails.items() if tail.pending}
        if not tails:
            return
        try:
            self._try(lambda: self._write(tails))
        except BaseException:
            # Whether the transaction was committed is unknown; the next append asks the database.
            self._tails.clear()
            raise
        for tail in tails.values():
            tail.pending.clear()

    def _write(self, tails: dict[str, _Tail]) -> None:
        with self._claims.begin_writing() as connection:
            for name, tail in tails.items():
                if tail.generation != self._claims.generation:
                    self._find_end_again(connection, name, tail)
                if tail.study is None:
                    connection.execute(insert(STUDIES), {"name": name})
                    tail.study = connection.execute(FIND_STUDY, {"name": name}).scalar_one()
                if tail.pending:
                    _insert_steps(connection, tail)

    def _find_end_again(self, connection: Connection, name: str, tail: _Tail) -> None:
        """Compare the log with its known end, after the claim was lost and acquired again."""
        end = _read_end(connection, name)
        number, _ = tail.pending[0] if tail.pending else (tail.following, b"")
        if tail.pending and (end.following, end.body) == (tail.following, _text(tail.pending[-1])):
            # The connection was lost between the commit and its confirmation.
            tail.pending.clear()
        elif end.following != number:
            raise StoreError(
                f"study {name!r} in {self._database.name} was written by another driver while the "
                "connection was lost: this driver has stopped; inspect the study with "
                "`paceline show`."
            )
        tail.study, tail.generation = end.study, self._claims.generation

    def _stream(self, study: int, after: int) -> Iterator[Step]:
        # One transaction per chunk: a reader that pauses between two steps holds nothing open, and
        # a log of any length needs the memory of one chunk.
        while True:
            bodies, is_last = self._read(partial(_read_bodies, study=study, after=after))
            for body in bodies:
                step = decode_step(body)
                # The row is sorted by a number of its own, which an edited store may have wrong.
                if not after < step.number < 2**62:
                    raise LogError(
                        f"step {step.number} follows step {after} in the log: it was edited or "
                        "damaged; restore the store from a backup."
                    )
                after = step.number
                yield step
            if is_last:
                return

    def _find(self, connection: Connection, study: str, query: Select[int] = FIND_STUDY) -> int:
        found = connection.execute(query, {"name": study}).scalar()
        if found is None:
            names = connection.execute(LIST_STUDIES).scalars().all()
            raise make_not_found_error(study, names, self._database.name)
        return found

    def _read(self, query: Callable[[Connection], T]) -> T:
        def run_query() -> T:
            with self._reads.begin() as connection:
                return query(connection)

        return self._try(run_query)

    def _try(self, operation: Callable[[], T], patience_s: float | None = None) -> T:
        """Run an operation, with retries while the database is unavailable.

        Raises StoreError instead of the database's own errors.
        """
        self._need_open()
        deadline = time.monotonic() + (PATIENCE_S if patience_s is None else patience_s)
        warned = False
        for pause in chain(PAUSES_S, repeat(LONGEST_S)):
            try:
                return operation()
            except DBAPIError as error:
                if not self._database.is_unavailable(error) or time.monotonic() >= deadline:
                    raise StoreError(self._database.explain_error(error.orig or error)) from error
            except UnicodeDecodeError as error:
                raise StoreError(
                    f"{self._database.name} is damaged: it has text that cannot be decoded; "
                    "restore it from a backup."
                ) from error
            except UnicodeEncodeError as error:
                # Bodies are valid JSON; only a name can hold half a character.
                raise StoreError(
                    f"the study name {error.object!r} is not text: choose another name."
                ) from error
            if pause == LONGEST_S and not warned:
                warned = True
                warnings.warn(
                    f"{self._database.name} is unavailable: retrying for up to {PATIENCE_S:g} s.",
                    PacelineWarning,
                    stacklevel=2,
                )
            time.sleep(pause)
        raise AssertionError("unreachable: the retries do not end")

    def _need_open(self) -> None:
        if self._closed:
            raise StoreError(f"the store {self._database.name} is closed: open it again to use it.")


def _read_end(connection: Connection, study: str) -> _End:
    row = connection.execute(FIND_STUDY, {"name": study}).scalar()
    body = connection.execute(LAST_STEP, {"study": row}).scalar()
    return _End(row, decode_step(body).after if body is not None else 0, body)


def _read_bodies(connection: Connection, study: int, after: int) -> tuple[Sequence[str], bool]:
    """Return the next steps, fewer if they are long, and whether there are no more."""
    found: list[str] = []
    size = 0
    with connection.execute(NEXT_STEPS, {"study": study, "after": after}) as rows:
        for body in rows.scalars():
            found.append(body)
            size += len(body)
            if size > CHUNK_BYTES:
                return found, False
    return found, len(found) < CHUNK_SIZE


def _insert_steps(connection: Connection, tail: _Tail) -> None:
    connection.execute(
        insert(STEPS),
        [{"study": tail.study, "number": row[0], "body": _text(row)} for row in tail.pending],
    )


def _text(row: Row) -> str:
    return row[1].decode()
