"""The tables of a store, their queries, and the migrations between their versions.

Knows columns and queries, in SQL that SQLite and PostgreSQL share. Does not know how a database is
reached or locked.

A new store gets the tables below. A later version is added by one function at the end of
`MIGRATIONS`, which changes the tables of the version before it into those below. Migrations only
add, so the queries below read every version, and only a writer needs the newest one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Integer,
    MetaData,
    Table,
    Text,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    Migration: TypeAlias = Callable[[Connection], None]

# Steps that a reader fetches at a time.
CHUNK_SIZE = 1_000
# Steps are fetched up to this size at a time, and one more.
CHUNK_BYTES = 16 << 20

TABLES = MetaData()
VERSION = Table("paceline_store", TABLES, Column("version", Integer, nullable=False))
STUDIES = Table(
    "paceline_studies",
    TABLES,
    # Ascending: the order of ids is the order of creation.
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
)
STEPS = Table(
    "paceline_steps",
    TABLES,
    Column("study", ForeignKey(STUDIES.c.id), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),
)
INBOX = Table(
    "paceline_inbox",
    TABLES,
    Column("study", ForeignKey(STUDIES.c.id), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),
)

FIND_STUDY = select(STUDIES.c.id).where(STUDIES.c.name == bindparam("name"))
# Locks the row, in databases with row locks, so that two posts get two numbers. The weaker kind of
# lock, because steps refer to the row: a client that hangs while posting must not block the writer.
LOCK_STUDY = FIND_STUDY.with_for_update(key_share=True)
LIST_STUDIES = select(STUDIES.c.name).order_by(STUDIES.c.id)
LAST_STEP = (
    select(STEPS.c.body)
    .where(STEPS.c.study == bindparam("study"))
    .order_by(STEPS.c.number.desc())
    .limit(1)
)
NEXT_STEPS = (
    select(STEPS.c.body)
    .where(STEPS.c.study == bindparam("study"), STEPS.c.number > bindparam("after"))
    .order_by(STEPS.c.number)
    .limit(CHUNK_SIZE)
)
MARKED_STEPS = (
    select(STEPS.c.body)
    .where(STEPS.c.study == bindparam("study"), STEPS.c.body.like(bindparam("pattern")))
    .order_by(STEPS.c.number)
)
DELETE_STEPS = delete(STEPS).where(STEPS.c.study == bindparam("row"))
DELETE_INBOX = delete(INBOX).where(INBOX.c.study == bindparam("row"))
DELETE_STUDY = delete(STUDIES).where(STUDIES.c.id == bindparam("row"))
LAST_COMMAND = select(func.max(INBOX.c.number)).where(INBOX.c.study == bindparam("study"))
NEXT_COMMANDS = (
    select(INBOX.c.number, INBOX.c.body)
    .join(STUDIES)
    .where(STUDIES.c.name == bindparam("name"), INBOX.c.number > bindparam("after"))
    .order_by(INBOX.c.number)
)

# The n-th function makes version n + 1 out of version n. A released one is never changed.
MIGRATIONS: list[Migration] = []


def newest_version() -> int:
    """Return the version of the tables above."""
    return len(MIGRATIONS) + 1


def create_tables(connection: Connection) -> None:
    """Create the tables of the newest version in a database without a store."""
    TABLES.create_all(connection)
    connection.execute(insert(VERSION), {"version": newest_version()})


def upgrade_tables(connection: Connection, found: int) -> None:
    """Change the tables of version `found` into those of the newest version."""
    for migrate in MIGRATIONS[found - 1 :]:
        migrate(connection)
    connection.execute(update(VERSION), {"version": newest_version()})
