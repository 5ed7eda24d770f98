"""Addresses of stores: which store a URL or a path means.

Knows the spellings and no store's inside. The only place that imports the database.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.errors import StoreError
from paceline.store.memory import MemoryStore

if TYPE_CHECKING:
    from paceline.core.ports import Store

_MEMORY = "memory:"
_SQLITE = "sqlite:///"
_POSTGRES = "postgresql://"
_SUFFIXES = (".db", ".sqlite")


def open_store(url: str, *, create: bool, lazy: bool = False) -> Store:
    """Return the store at this address.

    That is `memory:`, `sqlite:///runs.db`, a path like `runs.db`, or `postgresql://user@host/db`.
    With `create`, a file that does not exist is made, and tables where there are none; without, it
    is an error and stays as it is. `lazy` is for simulated studies: what is appended is kept in
    groups, up to the last whole one.
    """
    if url == _MEMORY:
        return MemoryStore()
    path = path_of(url)
    # Imported here, because SQLAlchemy takes longer to import than most commands run.
    from paceline.store.sql import SqlStore

    if path is None:
        from paceline.store.postgres import PostgresServer

        return SqlStore(PostgresServer(url, shown(url)), create=create, lazy=lazy)
    from paceline.store.sqlite import SqliteFile

    return SqlStore(SqliteFile(path), create=create, lazy=lazy)


def shown(url: str) -> str:
    """Return an address as it may be shown: without its password.

    >>> shown("postgresql://me:secret@host/db?sslpassword=secret"), shown("runs.db")
    ('postgresql://me:***@host/db?sslpassword=***', 'runs.db')
    """
    # To the last @, because a password that should have been escaped may hold one.
    hidden = re.sub(r"(://[^/@:]*):.*@", r"\1:***@", url)
    return re.sub(r"([?&]\w*password=)[^&]*", r"\1***", hidden)


def path_of(url: str) -> Path | None:
    """Return the file of the store at this address; None: it is in memory or on a server."""
    return None if url == _MEMORY or url.startswith(_POSTGRES) else _path(url)


def folder_of(url: str, study: str) -> Path | None:
    """Return the folder for a study's checkpoints and output; None: the store is in memory.

    It is beside the store's file, or in the user's home where the store is on a server: found from
    any folder, and from any machine that shares the home.
    """
    if url == _MEMORY:
        return None
    path = path_of(url)
    if path is not None:
        return path.with_suffix(".files") / safe_name(study)
    return Path.home() / ".paceline" / safe_name(_where(url)) / safe_name(study)


def safe_name(name: str) -> str:
    """Return a name, such as a study's, as a folder may have it."""
    # It may hold anything; the digest tells apart what looks alike once it is made safe.
    safe = re.sub(r"[^\w.-]+", "-", name).strip(".-")[:80]
    return f"{safe}-{blake2b(name.encode(), digest_size=4).hexdigest()}"


def _where(url: str) -> str:
    """Return the server and the database of an address: who connects, and how, is no part of it.

    >>> _where("postgresql://me:secret@host:5433/db?sslmode=require")
    'host:5433/db'
    """
    where, _, query = url.removeprefix(_POSTGRES).partition("?")
    parts = [part for part in query.split("&") if part.startswith(("host=", "port=", "options="))]
    return "&".join([where.rpartition("@")[2], *parts])


def _path(url: str) -> Path:
    scheme, separator, _ = url.partition("://")
    path = url.removeprefix(_SQLITE)
    if path != url and path not in ("", ":memory:"):
        return Path(path)
    if not separator and path.endswith(_SUFFIXES):
        return Path(path)
    found = f"the scheme {scheme!r}" if separator and scheme != "sqlite" else repr(url)
    raise StoreError(
        f"{found} names no store: give a path that ends in .db or .sqlite, "
        "sqlite:///relative.db, sqlite:////absolute/path.db, postgresql://user@host/database, "
        "or memory:."
    )
