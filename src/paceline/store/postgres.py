"""PostgreSQL as a store's database: connecting, locking and errors.

Knows everything that is specific to PostgreSQL and its driver. Does not know the tables. A claim on
a study belongs to the session that writes: both are lost together, so a driver that was cut off
can never append after another driver has resumed its study.
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
from paceline.store.postgres_security import (
    explain_refusal,
    protect_password,
    warn_of_clear_text,
)
from paceline.store.rows import make_running_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from psycopg import Connection as Session

# How long a claim waits for another one to be released: a server takes a moment to notice that a
# process has ended.
CLAIM_MS = 500
# Unless the URL says otherwise, both ends notice a lost connection within half a minute; the server
# then releases the claim.
KEEPALIVE = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
CONNECT_S = "10"

_EXPLANATIONS = {
    "42501": (
        "denies this user permission: grant CREATE on the schema to create a store, and SELECT, "
        "INSERT and UPDATE on the paceline tables and their sequence to use it."
    ),
    "3F000": (
        "has no schema of that name, or denies this user access to it: create it, grant USAGE on "
        "it, or correct the search_path."
    ),
    "25006": "is a read-only replica: give the URL of the primary server.",
    "53100": "cannot grow because the server's disk is full: free some space and try again.",
    "54000": "cannot store such a long name: choose a shorter one.",
    "23505": (
        "already holds these entries from a second writer, although the study was claimed: connect "
        "to the server itself instead of a transaction pooler, and resume the study."
    ),
}
_KEY = "hashtextextended(current_schema() || '.' || :study, 0)"
_LOCK = text(f"SELECT pg_advisory_lock({_KEY})")
_TABLES_KEY = "hashtextextended(current_schema(), 1)"
_HOLDER = text(
    "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'advisory' AND granted AND objsubid = 1 "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    f"AND (classid::bigint << 32 | objid::bigint) = {_KEY}"
)
_SET = text("SELECT set_config(:name, :value, false)")
_NAME = "paceline, "


class PostgresServer:
    """One database on a server, by its URL."""

    def __init__(self, url: str, name: str) -> None:
        # For messages: the URL without a password.
        self.name = name
        try:
            address = make_url(url)
        except (ArgumentError, ValueError):
            raise StoreError(
                f"{name} is not a valid URL: write postgresql://user@host:port/database."
            ) from None
        query = {**KEEPALIVE, "connect_timeout": CONNECT_S, **address.query}
        self._url: URL = address.set(drivername="postgresql+psycopg", query=query)
        # As the user gave it.
        self._address = address

    def make_engine(self, *, create: bool, durable: bool) -> Engine:
        """Return an engine for this database; its first use connects."""
        try:
            protected = self._url.update_query_dict(protect_password(self._address))
            engine = create_engine(protected, hide_parameters=True)
        except ImportError:
            raise StoreError(
                f"{self.name} needs psycopg: install it with pip install 'paceline[postgres]'."
            ) from None

        def configure(session: Session[Any], _: object) -> None:
            warn_of_clear_text(session, self.name, self._address.query)
            session.autocommit = True
            # A server may be configured for more than `on`, which must not be weakened.
            if not durable:
                session.execute("SET synchronous_commit = off")
            elif session.execute("SHOW synchronous_commit").fetchone() == ("off",):
                session.execute("SET synchronous_commit = on")
            session.autocommit = False

        event.listen(engine, "connect", configure)
        return engine

    def make_writing_engine(self, engine: Engine) -> Engine:
        """Return the same engine: every transaction may write."""
        return engine

    @contextmanager
    def lock_tables(self, engine: Engine) -> Iterator[None]:
        """Exclude other processes that would create or upgrade the tables too."""
        with engine.begin() as connection:
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_TABLES_KEY})"))
            yield

    def make_claims(self, engine: Engine) -> SessionClaims:
        """Return an empty set of claims on studies in this database."""
        return SessionClaims(engine, self.name)

    def check_new(self, tables: Sequence[str], create: bool) -> None:
        """Raise StoreError unless a store may be created.

        Tables of other programs do not matter: a database is often shared, and all of our tables
        begin with `paceline_`.
        """
        if not create:
            raise StoreError(
                f"{self.name} holds no store: check the URL, or start a study there first."
            )

    def is_unavailable(self, error: DBAPIError) -> bool:
        """Return whether the connection was lost, or the server is down, starting or stopping."""
        if error.orig is None or explain_refusal(str(error.orig)) is not None:
            return False
        return _is_connection_error(error.orig)

    def explain_error(self, error: BaseException) -> str:
        """Return what an error of PostgreSQL means, as one sentence."""
        code = getattr(error, "sqlstate", None)
        known = _EXPLANATIONS.get(code or "")
        if known:
            return f"{self.name} {known}"
        message = " ".join(str(error).split()).rstrip(".")
        refusal = explain_refusal(message)
        if refusal is not None:
            return f"{self.name} {refusal} ({message})."
        if _is_connection_error(error):
            return (
                f"{self.name} cannot be reached ({message}): check the URL, the server and your "
                "access to it; all appended steps are safe, and the study can be resumed."
            )
        return f"{self.name} cannot be used: {message}."


class SessionClaims:
    """The claims of one store on studies in a database: advisory locks of the writing session."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name
        self._studies: list[str] = []
        self._session: Connection | None = None
        self.generation = 0

    def acquire(self, study: str) -> None:
        """Claim a study. Raises StudyRunning if another store holds the claim."""
        self._lock(self._ensure_session(), study)
        self._studies.append(study)

    def find_holder(self, study: str) -> str | None:
        """Return the process that holds the claim on a study, this one included."""
        with self._engine.begin() as connection:
            found = connection.execute(_HOLDER, {"study": study}).scalar()
        return None if found is None else found.removeprefix(_NAME) or "another process"

    @contextmanager
    def begin_writing(self) -> Iterator[Connection]:
        """Begin a transaction of the session that holds the claims."""
        session = self._ensure_session()
        with session.begin():
            yield session

    def begin_reading(self) -> AbstractContextManager[Connection]:
        """Begin a transaction of the session that holds the claims, or of any without claims."""
        return self.begin_writing() if self._studies else self._engine.begin()

    def close(self) -> None:
        """Release all claims."""
        self._studies.clear()
        session, self._session = self._session, None
        if session is None:
            return
        # Explicitly: a server may take its time to notice that a session has ended. If the
        # connection is lost, so are the claims.
        with suppress(DBAPIError), session.begin():
            session.execute(text("SELECT pg_advisory_unlock_all()"))
        session.close()

    def _ensure_session(self) -> Connection:
        """Return the session; if it was lost, open another one and acquire the claims again."""
        if self._session is not None and not self._session.invalidated:
            return self._session
        if self._session is not None:
            self._session.close()
            self._session = None
        session = self._engine.connect()
        try:
            self._prepare(session)
        except BaseException:
            session.close()
            raise
        self._session = session
        self.generation += 1
        return session

    def _prepare(self, session: Connection) -> None:
        connection = session.connection.driver_connection
        assert connection is not None
        _claiming_sessions.add(connection)
        # Closing it must end the session on the server; a pool would keep both open.
        session.detach()
        with session.begin():
            # Shown in the server's list of sessions, and as the holder of these claims.
            process = f"{_NAME}process {os.getpid()} on {socket.gethostname()}"
            settings = {"application_name": process}
            # The server's names for the same settings.
            settings |= {f"tcp_{name.removeprefix('tcp_')}": KEEPALIVE[name] for name in KEEPALIVE}
            for name, value in settings.items():
                session.execute(_SET, {"name": name, "value": value})
        for study in self._studies:
            try:
                self._lock(session, study)
            except StudyRunning as running:
                raise StudyRunning(
                    f"study {study!r} was taken over by {running.holder} while the connection to "
                    f"{self._name} was lost: this driver has stopped; the log is complete.",
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
            holder = self.find_holder(study) or "another process"
            raise make_running_error(study, self._name, holder) from None


def _is_connection_error(error: BaseException) -> bool:
    from psycopg import OperationalError

    # An error without a code does not come from the server, but from the connection.
    return isinstance(error, OperationalError) and (error.sqlstate or "57P")[:3] == "57P"


# Sessions that hold claims, as connections of the driver.
_claiming_sessions: WeakSet[Session[Any]] = WeakSet()


def _close_in_child() -> None:
    # A forked child inherits the open sockets, and would keep the sessions open after its parent
    # has ended. The descriptors stay in use, so that no clean-up closes an unrelated file.
    null = os.open(os.devnull, os.O_RDWR)
    for session in _claiming_sessions:
        if not session.closed:
            os.dup2(null, session.fileno())
    os.close(null)


os.register_at_fork(after_in_child=_close_in_child)
