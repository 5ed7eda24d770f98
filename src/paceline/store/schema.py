"""The tables of a store as they are today, and what is asked of them.

Knows columns and queries, in SQL that every database speaks. How older tables become these is the
migrations'.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Integer,
    MetaData,
    Table,
    Text,
    bindparam,
    func,
    select,
)

# Steps a reader takes at a time.
CHUNK = 1_000

TABLES = MetaData()
VERSION = Table("paceline_store", TABLES, Column("version", Integer, nullable=False))
STUDIES = Table(
    "paceline_studies",
    TABLES,
    # Rising, so that the order of ids is the order of age.
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

FIND = select(STUDIES.c.id).where(STUDIES.c.name == bindparam("name"))
# Locks the row where the database has such locks, so that two posts get two numbers. The weaker
# lock, because steps refer to the row: who posts and hangs must not keep the writer waiting.
TAKE = FIND.with_for_update(key_share=True)
NAMES = select(STUDIES.c.name).order_by(STUDIES.c.id)
LAST = (
    select(STEPS.c.body)
    .where(STEPS.c.study == bindparam("study"))
    .order_by(STEPS.c.number.desc())
    .limit(1)
)
SOME = (
    select(STEPS.c.body)
    .where(STEPS.c.study == bindparam("study"), STEPS.c.number > bindparam("after"))
    .order_by(STEPS.c.number)
    .limit(CHUNK)
)
NEWEST = select(func.max(INBOX.c.number)).where(INBOX.c.study == bindparam("study"))
COMMANDS = (
    select(INBOX.c.number, INBOX.c.body)
    .join(STUDIES)
    .where(STUDIES.c.name == bindparam("name"), INBOX.c.number > bindparam("after"))
    .order_by(INBOX.c.number)
)
