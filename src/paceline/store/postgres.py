"""A store's PostgreSQL database: how it is reached, locked and complained about.

Knows everything that is particular to PostgreSQL and its driver, and no table. Who writes a study
holds its claim in the same session that writes: whoever has lost the one has lost the other, so a
driver that was cut off can never append over the one that has taken its study up.
"""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError

from paceline.core.errors import StoreError, StudyRunning
from paceline.store.rows import being_written

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from psycopg import Connection as Session

# How long a claim waits for another to be let go: a server takes a moment to see that a process is
# gone, and whoever is alive holds its claim for longer than anybody waits.
CLAIM_MS = 500
# Both ends find out within half a minute that the other is cut off, unless the address says
# otherwise; the server then lets the claim go.
KEEPALIVE = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
CONNECT_S = "10"

_COMPLAINTS = {
    "42501": (
        "lets this user not do that: grant it CREATE on the schema to make a store, and SELECT, "
        "INSERT and UPDATE on the paceline tables, with their sequence, to use it."
    ),
    "3F000": (
        "has no schema of that name, or lets this user not into it: make it, grant USAGE on it, or "
        "correct the search_path."
    ),
    "25006": "is a copy that can only be read: give the address of the server it is copied from.",
    "53100": "cannot grow because the server's disk is full: free some space and try again.",
    "54000": "cannot hold a name as long as that: choose a shorter one.",
    "23505": (
        "already holds these entries from a second writer, although the study was claimed: connect "
        "to the server itself and not to a pooler of transactions, and resume the study."
    ),
}
_KEY = "hashtextextended(current_schema() || '.' || :study, 0)"
_LOCK = text(f"SELECT pg_advisory_lock({_KEY})")
_MAKING = "hashtextextended(current_schema(), 1)"
_HOLDER = text(
    "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'advisory' AND granted AND objsubid = 1 "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    f"AND (classid::bigint << 32 | objid::bigint) = {_KEY}"
)
_SET = text("SELECT set_config(:name, :value, false)")
_NAME = "paceline, "


class PostgresServer:
    """One database on a server, by its address."""

    def __init__(self, url: str, name: str) -> None:
        # What may be shown: the address without a password.
        self.name = name
        try:
            address = make_url(url)
        except (ArgumentError, ValueError):
            raise StoreError(
                f"{name} is no address: write postgresql://user@host:port/database."
            ) from None
        given = {**KEEPALIVE, "connect_timeout": CONNECT_S, **address.query}
        self._address: URL = address.set(drivername="postgresql+psycopg", query=given)

    def engine(self, *, create: bool, durable: bool) -> Engine:
        """Return an engine for this database. Nothing is reached before its first use."""
        try:
            engine = create_engine(self._address, hide_parameters=True)
        except ImportError:
            raise StoreError(
                f"{self.name} needs psycopg: install it with pip install 'paceline[postgres]'."
            ) from None

        def settle(session: Session[Any], _: object) -> None:
            session.autocommit = True
            # A server may be set up to promise more than `on`, which is not ours to take away.
            if not durable:
                session.execute("SET synchronous_commit = off")
            elif session.execute("SHOW synchronous_commit").fetchone() == ("off",):
                session.execute("SET synchronous_commit = on")
            session.autocommit = False

        event.listen(engine, "connect", settle)
        return engine

    def writing(self, engine: Engine) -> Engine:
        """Return the same engine: every transaction may write here."""
        return engine

    @contextmanager
    def making(self, engine: Engine) -> Iterator[None]:
        """Keep others waiting who would make or change the tables too."""
        with engine.begin() as connection:
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_MAKING})"))
            yield

    def claims(self, engine: Engine) -> SessionClaims:
        """Return an empty set of claims on this database's studies."""
        return SessionClaims(engine, self.name)

    def refuse(self, tables: Sequence[str], create: bool) -> None:
        """Raise StoreError where there is no store and none is to be made.

        Tables of others are no hindrance: a database is often shared, and ours are named for us.
        """
        if not create:
            raise StoreError(
                f"{self.name} holds no store: check the address, or start a study there first."
            )

    def away(self, error: DBAPIError) -> bool:
        """Return whether the server was lost, is not up, or is on its way up or down."""
        return error.orig is not None and _lost(error.orig)

    def complaint(self, error: BaseException) -> str:
        """Return what PostgreSQL's error means, as one sentence."""
        code = getattr(error, "sqlstate", None)
        known = _COMPLAINTS.get(code or "")
        if known:
            return f"{self.name} {known}"
        said = " ".join(str(error).split()).rstrip(".")
        if _lost(error):
            return (
                f"{self.name} cannot be reached ({said}): check the address, and that the server "
                "is up and lets you in; what was appended is safe, and the study can be resumed."
            )
        return f"{self.name} cannot be used: {said}."


class SessionClaims:
    """The claims of one store on a database: advisory locks of the session that writes."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name
        self._studies: list[str] = []
        self._session: Connection | None = None
        self.lives = 0

    def take(self, study: str) -> None:
        """Claim a study. Raises StudyRunning where somebody else holds it."""
        self._lock(self._living(), study)
        self._studies.append(study)

    def holder(self, study: str) -> str | None:
        """Return who holds a study, whoever that is."""
        with self._engine.begin() as connection:
            found = connection.execute(_HOLDER, {"study": study}).scalar()
        return None if found is None else found.removeprefix(_NAME) or "another process"

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Give a transaction of the session that holds the claims."""
        session = self._living()
        with session.begin():
            yield session

    def reading(self) -> AbstractContextManager[Connection]:
        """Give a transaction of the session that holds the claims, or of any if there are none."""
        return self.writing() if self._studies else self._engine.begin()

    def close(self) -> None:
        """Give all of them up."""
        self._studies.clear()
        session, self._session = self._session, None
        if session is None:
            return
        # Said in so many words: a server may take its time to see that a session has ended. Where
        # it is gone, so are the claims.
        with suppress(DBAPIError), session.begin():
            session.execute(text("SELECT pg_advisory_unlock_all()"))
        session.close()

    def _living(self) -> Connection:
        """Return the session; where it was lost, another one that has taken its claims again."""
        if self._session is not None and not self._session.invalidated:
            return self._session
        if self._session is not None:
            self._session.close()
            self._session = None
        session = self._engine.connect()
        try:
            self._begin(session)
        except BaseException:
            session.close()
            raise
        self._session = session
        self.lives += 1
        return session

    def _begin(self, session: Connection) -> None:
        held = session.connection.driver_connection
        assert held is not None
        _open.add(held)
        # Its end must be the session's end; a pool would keep both.
        session.detach()
        with session.begin():
            # Shown to whoever asks the server who is connected, and who wants a claim of ours.
            who = f"{_NAME}process {os.getpid()} on {socket.gethostname()}"
            settings = {"application_name": who}
            # The server's names for the same.
            settings |= {f"tcp_{name.removeprefix('tcp_')}": KEEPALIVE[name] for name in KEEPALIVE}
            for name, value in settings.items():
                session.execute(_SET, {"name": name, "value": value})
        for study in self._studies:
            try:
                self._lock(session, study)
            except StudyRunning as running:
                raise StudyRunning(
                    f"study {study!r} was taken over by {running.holder} while the connection to "
                    f"{self._name} was lost: this driver has stopped, and its log is whole.",
                    running.holder,
                ) from None

    def _lock(self, session: Connection, study: str) -> None:
        from psycopg.errors import LockNotAvailable

        try:
            with session.begin():
                session.execute(text(f"SET LOCAL lock_timeout = {CLAIM_MS}"))
                session.execute(_LOCK, {"study": study})
        except DBAPIError as error:
            if not isinstance(error.orig, LockNotAvailable):
                raise
            holder = self.holder(study) or "another process"
            raise being_written(study, self._name, holder) from None


def _lost(error: BaseException) -> bool:
    from psycopg import OperationalError

    # Without a code: it was not the server who said so.
    return isinstance(error, OperationalError) and (error.sqlstate or "57P")[:3] == "57P"


# Sessions that hold claims, as the driver knows them.
_open: WeakSet[Session[Any]] = WeakSet()


def _let_go() -> None:
    # A forked child has the same open socket, and would keep the session alive after its parent's
    # death. The number stays taken, so that no clean-up meets a file of somebody else.
    nothing = os.open(os.devnull, os.O_RDWR)
    for session in _open:
        if not session.closed:
            os.dup2(nothing, session.fileno())
    os.close(nothing)


os.register_at_fork(after_in_child=_let_go)
