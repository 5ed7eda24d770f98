"""Logs and inboxes in a database, one row a step.

Knows transactions, and how a log is found again when the database was away. What is particular to
one database is in its own module, behind `Database`. Does not know what a step says: a row's body
is its JSON.
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
from paceline.core.errors import PacelineWarning, StoreError
from paceline.store.migrations import bring_up, newest
from paceline.store.rows import no_study, rows_of
from paceline.store.schema import (
    CHUNK,
    COMMANDS,
    FIND,
    INBOX,
    LAST,
    NAMES,
    NEWEST,
    SOME,
    STEPS,
    STUDIES,
    TAKE,
    VERSION,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from sqlalchemy import Connection, Engine, Select

    from paceline.core.decisions import Step
    from paceline.core.events import Command
    from paceline.store.rows import Row

T = TypeVar("T")

# Steps a lazy store gathers before it commits them.
GROUP = 2_000
# How long a database that was there may be away.
PATIENCE_S = 60.0
# When it is asked again: at once, as mostly a line is lost and not what it leads to; then later.
PAUSES_S, LONGEST_S = (0.0, 0.05, 0.1, 0.2, 0.4), 1.0


class Claims(Protocol):
    """The claims of one store: studies that nobody else may append to."""

    # Counts how often they were lost and taken again; who wrote before may have been overtaken.
    lives: int

    def take(self, study: str) -> None:
        """Claim a study. Raises StudyRunning where somebody else holds it."""
        ...

    def holder(self, study: str) -> str | None:
        """Return who holds a study, whoever that is."""
        ...

    def writing(self) -> AbstractContextManager[Connection]:
        """Give a transaction that can only be committed while the claims hold."""
        ...

    def reading(self) -> AbstractContextManager[Connection]:
        """Give a transaction that reads, and finds out on the way where the claims are lost."""
        ...

    def close(self) -> None:
        """Give all of them up."""
        ...


class Database(Protocol):
    """What is particular to one kind of database."""

    # What users call it: without a password.
    name: str

    def engine(self, *, create: bool, durable: bool) -> Engine:
        """Return an engine; nothing is opened or made before its first use.

        What it writes survives a killed process and, where it is `durable`, a power cut.
        """
        ...

    def writing(self, engine: Engine) -> Engine:
        """Return the same engine for transactions that write."""
        ...

    def making(self, engine: Engine) -> AbstractContextManager[None]:
        """Keep others waiting who would make or change the tables too."""
        ...

    def claims(self, engine: Engine) -> Claims:
        """Return an empty set of claims."""
        ...

    def refuse(self, tables: Sequence[str], create: bool) -> None:
        """Raise StoreError where a database with these tables, and no store, cannot become one."""
        ...

    def away(self, error: DBAPIError) -> bool:
        """Return whether it may be back in a moment."""
        ...

    def complaint(self, error: BaseException) -> str:
        """Return what one of its errors means, as one sentence."""
        ...


class _End(NamedTuple):
    """Where a log ends in the database."""

    # None: the study has no row yet.
    study: int | None
    following: int
    body: str | None


class _Tail:
    """The end of a log that this store writes: what comes next, and what is not committed yet."""

    def __init__(self, end: _End, life: int) -> None:
        self.study = end.study
        self.following = end.following
        # The life of the claims in which this was read.
        self.life = life
        self.waiting: list[Row] = []


class SqlStore:
    """Keeps logs in a database. What `append` was given is durable when it returns.

    A study has one living writer: the first append claims it until `close` or the end of the
    process. Readers and `post` need no claim and never stand in the writer's way. A `lazy` store
    commits in groups of 2,000 steps and at `close`: when the process is killed, the log ends with
    the last group, and a power cut may undo a few groups more. Simulated studies act on nothing, so
    they lose nothing but time by it.

    A database that goes away is waited for; where that takes too long, StoreError is raised, and
    the log ends with the last step that was appended.
    """

    def __init__(self, database: Database, *, create: bool, lazy: bool = False) -> None:
        self._database = database
        self._group = GROUP if lazy else 1
        self._tails: dict[str, _Tail] = {}
        self._closed = False
        self._reads = database.engine(create=create, durable=not lazy)
        self._writes = database.writing(self._reads)
        self._claims = database.claims(self._reads)
        self._claimed: set[str] = set()
        try:
            self._version = self._try(lambda: self._opened(create), patience_s=0.0)
        except BaseException:
            self.close()
            raise

    def claim(self, study: str) -> None:
        """Become this study's writer, now rather than at the first append.

        Raises StudyRunning where another writer lives, in this process or any other. A store of an
        older version is brought up to date.
        """
        if study in self._claimed:
            return self._need_open()
        if self._version < newest():
            self._version = self._try(self._brought_up)
        self._try(lambda: self._claims.take(study))
        self._claimed.add(study)

    def holder(self, study: str) -> str | None:
        """Return who writes a study, such as `process 4711`; None where nobody does."""
        return self._try(lambda: self._claims.holder(study))

    def studies(self) -> Sequence[str]:
        """Return the names of all studies, oldest first."""
        self._commit()
        return self._read(lambda connection: connection.execute(NAMES).scalars().all())

    def append(self, study: str, steps: Sequence[Step]) -> None:
        """Add steps to the end of a study's log: all or none, in one transaction.

        Raises LogError at a gap or an overlap, StoreError where another writer lives or the
        database fails; nothing is written then.
        """
        if not steps:
            return
        self.claim(study)
        tail = self._tails.get(study) or self._try(lambda: self._tail(study))
        rows = rows_of(study, tail.following, steps)
        tail.waiting += rows
        tail.following = steps[-1].after
        self._tails[study] = tail
        if sum(len(each.waiting) for each in self._tails.values()) >= self._group:
            self._commit()

    def read(self, study: str, after: int = -1) -> Iterator[Step]:
        """Yield the steps whose number is greater than `after`. Raises StudyNotFound."""
        self._commit()
        return self._stream(self._read(lambda connection: self._known(connection, study)), after)

    def post(self, study: str, command: Command) -> int:
        """Put a command into a study's inbox and return its number. Raises StudyNotFound."""
        self._commit()
        body = encode_command(command).decode()

        def posted() -> int:
            with self._writes.begin() as connection:
                known = self._known(connection, study, TAKE)
                number: int = (connection.execute(NEWEST, {"study": known}).scalar() or 0) + 1
                connection.execute(insert(INBOX), {"study": known, "number": number, "body": body})
            return number

        # Once: nobody knows whether a post whose answer was lost has arrived, and two are too many.
        return self._try(posted, patience_s=0.0)

    def inbox(self, study: str, after: int = 0) -> Sequence[tuple[int, Command]]:
        """Return the commands numbered above `after`, oldest first."""

        def found() -> Sequence[tuple[int, Command]]:
            # Who drives a study looks here all the time, and so learns early of a lost claim.
            with self._claims.reading() as connection:
                rows = connection.execute(COMMANDS, {"name": study, "after": after}).all()
            return [(number, decode_command(body)) for number, body in rows]

        return self._try(found)

    def close(self) -> None:
        """Commit what waits, give the claims up and let the database go."""
        try:
            if not self._closed:
                self._commit()
        finally:
            self._closed = True
            self._claims.close()
            self._reads.dispose()

    def _opened(self, create: bool) -> int:
        """Return the version of this store; make the tables of an empty one."""
        with self._reads.begin() as connection:
            found = self._found(connection, create)
        return found or self._brought_up()

    def _brought_up(self) -> int:
        with self._database.making(self._reads), self._writes.begin() as connection:
            # Asked again: somebody else may just have done it.
            found = self._found(connection, True)
            if found < newest():
                bring_up(connection, found)
        return newest()

    def _found(self, connection: Connection, create: bool) -> int:
        """Return the version of the tables, 0 for none; refuse what is not a store we can read."""
        tables = inspect(connection).get_table_names()
        if VERSION.name not in tables:
            self._database.refuse(tables, create)
            return 0
        found: int = connection.execute(select(VERSION.c.version)).scalar_one()
        if found > newest():
            raise StoreError(
                f"{self._database.name} is a store of version {found}, and this Paceline reads "
                f"versions up to {newest()}: upgrade Paceline to open it."
            )
        return found

    def _tail(self, study: str) -> _Tail:
        with self._claims.reading() as connection:
            end = _end(connection, study)
        return _Tail(end, self._claims.lives)

    def _commit(self) -> None:
        """Write everything that waits, in one transaction."""
        waiting = {name: tail for name, tail in self._tails.items() if tail.waiting}
        if not waiting:
            return
        try:
            self._try(lambda: self._write(waiting))
        except BaseException:
            # Whether it was committed is not known here; the next append asks the database.
            self._tails.clear()
            raise
        for tail in waiting.values():
            tail.waiting.clear()

    def _write(self, waiting: dict[str, _Tail]) -> None:
        with self._claims.writing() as connection:
            for name, tail in waiting.items():
                if tail.life != self._claims.lives:
                    self._find_again(connection, name, tail)
                if tail.study is None:
                    connection.execute(insert(STUDIES), {"name": name})
                    tail.study = connection.execute(FIND, {"name": name}).scalar_one()
                if tail.waiting:
                    _insert(connection, tail)

    def _find_again(self, connection: Connection, name: str, tail: _Tail) -> None:
        """Compare the log with what we know of it, after its claim was lost and taken again."""
        end = _end(connection, name)
        number, _ = tail.waiting[0] if tail.waiting else (tail.following, b"")
        if tail.waiting and (end.following, end.body) == (tail.following, _text(tail.waiting[-1])):
            # The connection was lost between the commit and the word that it was done.
            tail.waiting.clear()
        elif end.following != number:
            raise StoreError(
                f"study {name!r} in {self._database.name} was written by another driver while the "
                "connection was lost: this one has stopped; look at it with `paceline show`."
            )
        tail.study, tail.life = end.study, self._claims.lives

    def _stream(self, study: int, after: int) -> Iterator[Step]:
        # Chunk by chunk, each its own transaction: a reader that pauses between two steps holds
        # nothing open, and a log of any length needs the memory of one chunk.
        while True:
            bodies = self._read(partial(_bodies, study=study, after=after))
            for body in bodies:
                step = decode_step(body)
                yield step
            if len(bodies) < CHUNK:
                return
            after = step.number

    def _known(self, connection: Connection, study: str, query: Select[int] = FIND) -> int:
        found = connection.execute(query, {"name": study}).scalar()
        if found is None:
            names = connection.execute(NAMES).scalars().all()
            raise no_study(study, names, self._database.name)
        return found

    def _read(self, work: Callable[[Connection], T]) -> T:
        def done() -> T:
            with self._reads.begin() as connection:
                return work(connection)

        return self._try(done)

    def _try(self, work: Callable[[], T], patience_s: float | None = None) -> T:
        """Do something with the database, again where it was away; complain in our words."""
        self._need_open()
        until = time.monotonic() + (PATIENCE_S if patience_s is None else patience_s)
        told = False
        for pause in chain(PAUSES_S, repeat(LONGEST_S)):
            try:
                return work()
            except DBAPIError as error:
                if not self._database.away(error) or time.monotonic() >= until:
                    raise StoreError(self._database.complaint(error.orig or error)) from error
            except UnicodeEncodeError as error:
                # Bodies are valid JSON; only a name can hold half a character.
                raise StoreError(
                    f"the study name {error.object!r} is not text: choose another name."
                ) from error
            if pause == LONGEST_S and not told:
                told = True
                word = f"is away: waiting for it, for {PATIENCE_S:g} s at most."
                warnings.warn(f"{self._database.name} {word}", PacelineWarning, stacklevel=2)
            time.sleep(pause)
        raise AssertionError("the pauses never end")

    def _need_open(self) -> None:
        if self._closed:
            raise StoreError(f"the store {self._database.name} is closed: open it again to use it.")


def _end(connection: Connection, study: str) -> _End:
    known = connection.execute(FIND, {"name": study}).scalar()
    body = connection.execute(LAST, {"study": known}).scalar()
    return _End(known, decode_step(body).after if body is not None else 0, body)


def _bodies(connection: Connection, study: int, after: int) -> Sequence[str]:
    return connection.execute(SOME, {"study": study, "after": after}).scalars().all()


def _insert(connection: Connection, tail: _Tail) -> None:
    connection.execute(
        insert(STEPS),
        [{"study": tail.study, "number": row[0], "body": _text(row)} for row in tail.waiting],
    )


def _text(row: Row) -> str:
    return row[1].decode()
