"""How the tables of a store became what they are: one step a version, from an empty database on.

Knows the order. Version n is what the first n migrations make, in every kind of database; a new
store is an empty one that is brought up. A migration adds and never takes away, so that the queries
of today read every version, and only who writes needs the newest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import insert, update

from paceline.store.migrations import first_tables
from paceline.store.schema import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from alembic.operations import Operations
    from sqlalchemy import Connection

    Migration = Callable[[Operations], None]

# In order; what was released is never changed again.
MIGRATIONS: list[Migration] = [first_tables.upgrade]


def newest() -> int:
    """Return the version that the last of them makes."""
    return len(MIGRATIONS)


def bring_up(connection: Connection, found: int) -> None:
    """Make the tables of the newest version out of those of version `found`; 0 is an empty one."""
    # Imported here: it takes longer than opening a store, and few are brought up.
    from alembic.migration import MigrationContext
    from alembic.operations import Operations

    operations = Operations(MigrationContext.configure(connection))
    for upgrade in MIGRATIONS[found:]:
        upgrade(operations)
    version = {"version": newest()}
    connection.execute(update(VERSION) if found else insert(VERSION), version)
