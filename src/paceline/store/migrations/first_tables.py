"""Version 1: studies, their steps, their inboxes, and the version itself.

Knows the tables as they were then. They are written out here, because those of today move on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, Column, ForeignKey, Integer, Text

if TYPE_CHECKING:
    from alembic.operations import Operations


def upgrade(operations: Operations) -> None:
    """Make the first tables."""
    operations.create_table("paceline_store", Column("version", Integer, nullable=False))
    operations.create_table(
        "paceline_studies",
        Column("id", Integer, primary_key=True),
        Column("name", Text, nullable=False, unique=True),
    )
    for name in ("paceline_steps", "paceline_inbox"):
        operations.create_table(
            name,
            Column("study", Integer, ForeignKey("paceline_studies.id"), primary_key=True),
            Column("number", BigInteger, primary_key=True, autoincrement=False),
            Column("body", Text, nullable=False),
        )
