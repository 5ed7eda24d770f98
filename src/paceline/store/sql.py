"""Logs and inboxes in a database, one row a step.

Knows tables and transactions, in SQL that every database speaks; what is particular to one is in
its own module. Does not know what a step says: a row's body is its JSON.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Integer,
    MetaData,
    Select,
    Table,
    Text,
    bindparam,
    func,
    insert,
    inspect,
    select,
)
from sqlalchemy.exc import DBAPIError

from paceline.core.codec import decode_command, decode_step, encode_command
from paceline.core.errors import StoreError
from paceline.store.rows import no_study, rows_of
from paceline.store.sqlite import writing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection, Engine

    from paceline.core.decisions import Step
    from paceline.core.events import Command
    from paceline.store.claims import Claim
    from paceline.store.rows import Row
    from paceline.store.sqlite import SqliteFile

# The version of the tables below. A store of any other version is refused, never guessed at.
SCHEMA = 1
# Steps a lazy store gathers before it commits them.
GROUP = 2_000
# Steps a reader takes at a time.
CHUNK = 1_000

_tables = MetaData()
_version = Table("paceline_store", _tables, Column("version", Integer, nullable=False))
_studies = Table(
    "paceline_studies",
    _tables,
    # Rising, so that the order of ids is the order of age.
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
)
_steps = Table(
    "paceline_steps",
    _tables,
    Column("study", ForeignKey(_studies.c.id), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),
)
_inbox = Table(
    "paceline_inbox",
    _tables,
    Column("study", ForeignKey(_studies.c.id), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),
)

_find = select(_studies.c.id).where(_studies.c.name == bindparam("name"))
# Locks the row where the database has such locks, so that two posts get two numbers.
_take = _find.with_for_update()
_names = select(_studies.c.name).order_by(_studies.c.id)
_last = (
    select(_steps.c.body)
    .where(_steps.c.study == bindparam("study"))
    .order_by(_steps.c.number.desc())
    .limit(1)
)
_chunk = (
    select(_steps.c.body)
    .where(_steps.c.study == bindparam("study"), _steps.c.number > bindparam("after"))
    .order_by(_steps.c.number)
    .limit(CHUNK)
)
_newest = select(func.max(_inbox.c.number)).where(_inbox.c.study == bindparam("study"))
_commands = (
    select(_inbox.c.number, _inbox.c.body)
    .where(_inbox.c.study == bindparam("study"), _inbox.c.number > bindparam("after"))
    .order_by(_inbox.c.number)
)


class _Tail:
    """The end of a log that this store writes: what comes next, and what is not committed yet."""

    def __init__(self, study: int | None, following: int) -> None:
        # None: the study has no row yet.
        self.study = study
        self.following = following
        self.waiting: list[Row] = []


class SqlStore:
    """Keeps logs in a database. What `append` was given is durable when it returns.

    A study has one living writer: the first append claims it until `close` or the end of the
    process. Readers and `post` need no claim and never stand in the writer's way. A `lazy` store
    commits in groups of 2,000 steps and at `close`: when the process is killed, the log ends with
    the last group, and a power cut may undo a few groups more. Simulated studies act on nothing, so
    they lose nothing but time by it.
    """

    def __init__(self, file: SqliteFile, *, create: bool, lazy: bool = False) -> None:
        self._file = file
        self._group = GROUP if lazy else 1
        self._claims: dict[str, Claim] = {}
        self._tails: dict[str, _Tail] = {}
        self._closed = False
        self._reads = file.engine(create=create, durable=not lazy)
        self._writes = writing(self._reads)
        try:
            self._prepare(create)
        except BaseException:
            self.close()
            raise

    def claim(self, study: str) -> None:
        """Become this study's writer, now rather than at the first append.

        Raises StoreError where another writer lives, in this process or any other.
        """
        self._need_open()
        if study not in self._claims:
            self._claims[study] = self._file.claim(study)

    def studies(self) -> Sequence[str]:
        """Return the names of all studies, oldest first."""
        self._commit()
        with self._transaction(self._reads) as connection:
            return connection.execute(_names).scalars().all()

    def append(self, study: str, steps: Sequence[Step]) -> None:
        """Add steps to the end of a study's log: all or none, in one transaction.

        Raises LogError at a gap or an overlap, StoreError where another writer lives or the
        database fails; nothing is written then.
        """
        if not steps:
            return
        self.claim(study)
        tail = self._tails.get(study) or self._tail(study)
        rows = rows_of(study, tail.following, steps)
        tail.waiting += rows
        tail.following = steps[-1].after
        self._tails[study] = tail
        if sum(len(each.waiting) for each in self._tails.values()) >= self._group:
            self._commit()

    def read(self, study: str, after: int = -1) -> Iterator[Step]:
        """Yield the steps whose number is greater than `after`. Raises StudyNotFound."""
        self._commit()
        with self._transaction(self._reads) as connection:
            known = self._known(connection, study)
        return self._stream(known, after)

    def post(self, study: str, command: Command) -> int:
        """Put a command into a study's inbox and return its number. Raises StudyNotFound."""
        self._commit()
        body = encode_command(command).decode()
        with self._transaction(self._writes) as connection:
            known = self._known(connection, study, _take)
            number: int = (connection.execute(_newest, {"study": known}).scalar() or 0) + 1
            connection.execute(insert(_inbox), {"study": known, "number": number, "body": body})
        return number

    def inbox(self, study: str, after: int = 0) -> Sequence[tuple[int, Command]]:
        """Return the commands numbered above `after`, oldest first."""
        with self._transaction(self._reads) as connection:
            known = connection.execute(_find, {"name": study}).scalar()
            rows = connection.execute(_commands, {"study": known, "after": after}).all()
        return [(number, decode_command(body)) for number, body in rows]

    def close(self) -> None:
        """Commit what waits, give the claims up and let the database go."""
        try:
            if not self._closed:
                self._commit()
        finally:
            self._closed = True
            for claim in self._claims.values():
                claim.close()
            self._claims.clear()
            self._reads.dispose()

    def _prepare(self, create: bool) -> None:
        """Check that this is a store of our version; make the tables of an empty one."""
        with self._transaction(self._reads) as connection:
            empty = self._check(connection, create)
        if not empty:
            return
        with self._file.making(self._reads), self._transaction(self._writes) as connection:
            # Asked again: somebody else may just have made the same store.
            if self._check(connection, create):
                _tables.create_all(connection)
                connection.execute(insert(_version), {"version": SCHEMA})

    def _check(self, connection: Connection, create: bool) -> bool:
        """Return whether the database is empty; refuse what is not a store of our version."""
        name, tables = self._file.name, inspect(connection).get_table_names()
        if _version.name in tables:
            found = connection.execute(select(_version.c.version)).scalar()
            if found != SCHEMA:
                raise StoreError(
                    f"{name} is a store of version {found}, and this Paceline reads version "
                    f"{SCHEMA}: upgrade Paceline to open it."
                )
            return False
        if tables:
            raise StoreError(
                f"{name} is a database of something else, with a table {tables[0]!r}: "
                "give the path of a store, or of a file that does not exist yet."
            )
        if not create:
            raise StoreError(f"{name} is empty: check the path, or start a study there first.")
        return True

    def _tail(self, study: str) -> _Tail:
        with self._transaction(self._reads) as connection:
            known = connection.execute(_find, {"name": study}).scalar()
            body = connection.execute(_last, {"study": known}).scalar()
        return _Tail(known, decode_step(body).after if body is not None else 0)

    def _commit(self) -> None:
        """Write everything that waits, in one transaction."""
        waiting = {name: tail for name, tail in self._tails.items() if tail.waiting}
        if not waiting:
            return
        try:
            with self._transaction(self._writes) as connection:
                for name, tail in waiting.items():
                    if tail.study is None:
                        connection.execute(insert(_studies), {"name": name})
                        tail.study = connection.execute(_find, {"name": name}).scalar_one()
                    _insert(connection, tail)
        except BaseException:
            # Whether it was committed is not known here; the next append asks the database.
            self._tails.clear()
            raise
        for tail in waiting.values():
            tail.waiting.clear()

    def _stream(self, study: int, after: int) -> Iterator[Step]:
        # Chunk by chunk, each its own transaction: a reader that pauses between two steps holds
        # nothing open, and a log of any length needs the memory of one chunk.
        while True:
            with self._transaction(self._reads) as connection:
                found = connection.execute(_chunk, {"study": study, "after": after})
                bodies = found.scalars().all()
            for body in bodies:
                step = decode_step(body)
                yield step
            if len(bodies) < CHUNK:
                return
            after = step.number

    def _known(self, connection: Connection, study: str, query: Select[int] = _find) -> int:
        found = connection.execute(query, {"name": study}).scalar()
        if found is None:
            names = connection.execute(_names).scalars().all()
            raise no_study(study, names, self._file.name)
        return found

    @contextmanager
    def _transaction(self, engine: Engine) -> Iterator[Connection]:
        self._need_open()
        try:
            with engine.begin() as connection:
                yield connection
        except DBAPIError as error:
            raise StoreError(self._file.complaint(error.orig or error)) from error
        except UnicodeEncodeError as error:
            # Bodies are valid JSON; only a name can hold half a character.
            raise StoreError(
                f"the study name {error.object!r} is not text: choose another name."
            ) from error

    def _need_open(self) -> None:
        if self._closed:
            raise StoreError(f"the store {self._file.name} is closed: open it again to use it.")


def _insert(connection: Connection, tail: _Tail) -> None:
    connection.execute(
        insert(_steps),
        [
            {"study": tail.study, "number": number, "body": body.decode()}
            for number, body in tail.waiting
        ],
    )
