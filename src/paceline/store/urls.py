"""URLs of stores: parse them, open the store, and find the files that belong to it.

Knows the spellings of URLs. Does not know how a store works inside. The only importer of the
database modules.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from paceline.core.errors import StoreError
from paceline.store.memory import MemoryStore

if TYPE_CHECKING:
    from paceline.core.ports import Store

_MEMORY = "memory:"
_SQLITE = "sqlite:///"
_POSTGRES = "postgresql://"
_SUFFIXES = (".db", ".sqlite")

# Stores in memory that have a name, while they are in use.
_named: WeakValueDictionary[str, MemoryStore] = WeakValueDictionary()


def open_store(url: str, *, create: bool, lazy: bool = False) -> Store:
    """Open the store at a URL.

    The URL is `memory:`, `sqlite:///runs.db`, a path like `runs.db`, or
    `postgresql://user@host/db`. With `create`, a missing file or missing tables are created;
    without, they are an error and nothing is changed. `lazy` is for simulated studies: appended
    steps are committed in groups.
    """
    if url.startswith(_MEMORY):
        return open_memory(url)
    path = find_store_file(url)
    # Imported here, because SQLAlchemy takes longer to import than most commands run.
    from paceline.store.sql import SqlStore

    if path is None:
        from paceline.store.postgres import PostgresServer

        return SqlStore(PostgresServer(url, hide_password(url)), create=create, lazy=lazy)
    from paceline.store.sqlite import SqliteFile

    return SqlStore(SqliteFile(path), create=create, lazy=lazy)


def open_memory(url: str) -> MemoryStore:
    """Return the store in memory of this name; `memory:` alone is a new one each time.

    A name refers to the same store as long as the program holds that.
    """
    store = _named.get(url) or MemoryStore()
    if url != _MEMORY:
        _named[url] = store
    return store


def hide_password(url: str) -> str:
    """Return a URL without its passwords, for messages.

    >>> hide_password("postgresql://me:secret@host/db?sslpassword=secret"), hide_password("runs.db")
    ('postgresql://me:***@host/db?sslpassword=***', 'runs.db')
    """
    # Up to the last @, because an unescaped password may contain one.
    hidden = re.sub(r"(://[^/@:]*):.*@", r"\1:***@", url)
    return re.sub(r"([?&]\w*password=)[^&]*", r"\1***", hidden)


def find_store_file(url: str) -> Path | None:
    """Return the file of the store at a URL, or None if it is in memory or on a server."""
    return None if url.startswith((_MEMORY, _POSTGRES)) else _parse_path(url)


def find_study_folder(url: str, study: str) -> Path | None:
    """Return the folder for a study's checkpoints and output, or None for a store in memory.

    It is next to the store's file or, for a store on a server, in the user's home: found from any
    working directory, and from any machine that shares the home.
    """
    if url.startswith(_MEMORY):
        return None
    path = find_store_file(url)
    if path is not None:
        return path.with_suffix(".files") / make_folder_name(study)
    return (
        Path.home() / ".paceline" / make_folder_name(_name_database(url)) / make_folder_name(study)
    )


def make_folder_name(name: str) -> str:
    """Return a valid folder name for any name, such as a study's."""
    # The digest keeps names apart that become equal when their special characters are replaced.
    safe = re.sub(r"[^\w.-]+", "-", name).strip(".-")[:80]
    return f"{safe}-{blake2b(name.encode(), digest_size=4).hexdigest()}"


def _name_database(url: str) -> str:
    """Return the server and the database of a URL, without the user and the connection options.

    >>> _name_database("postgresql://me:secret@host:5433/db?sslmode=require")
    'host:5433/db'
    """
    where, _, query = url.removeprefix(_POSTGRES).partition("?")
    parts = [part for part in query.split("&") if part.startswith(("host=", "port=", "options="))]
    return "&".join([where.rpartition("@")[2], *parts])


def _parse_path(url: str) -> Path:
    scheme, separator, _ = url.partition("://")
    path = url.removeprefix(_SQLITE)
    if path != url and path not in ("", ":memory:"):
        return Path(path)
    if not separator and path.endswith(_SUFFIXES):
        return Path(path)
    found = f"the scheme {scheme!r}" if separator and scheme != "sqlite" else repr(url)
    raise StoreError(
        f"{found} is not a store URL: give a path that ends in .db or .sqlite, "
        "sqlite:///relative.db, sqlite:////absolute/path.db, postgresql://user@host/database, "
        "or memory:."
    )
