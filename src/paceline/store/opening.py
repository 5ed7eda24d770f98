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
_SUFFIXES = (".db", ".sqlite")


def open_store(url: str, *, create: bool, lazy: bool = False) -> Store:
    """Return the store at this address: `memory:`, `sqlite:///runs.db`, or a path like `runs.db`.

    With `create`, a file that does not exist is made; without, it is an error and stays absent.
    `lazy` is for simulated studies: a file then holds what is appended up to the last group alone.
    """
    if url == _MEMORY:
        return MemoryStore()
    path = _path(url)
    # Imported here, because SQLAlchemy takes longer to import than most commands run.
    from paceline.store.sql import SqlStore
    from paceline.store.sqlite import SqliteFile

    return SqlStore(SqliteFile(path), create=create, lazy=lazy)


def path_of(url: str) -> Path | None:
    """Return the file of the store at this address; None: it is in memory."""
    return None if url == _MEMORY else _path(url)


def folder_of(url: str, study: str) -> Path | None:
    """Return the folder beside a store for a study's checkpoints and output; None: in memory."""
    path = path_of(url)
    if path is None:
        return None
    return path.with_suffix(".files") / safe_name(study)


def safe_name(study: str) -> str:
    """Return a study's name as a folder may have it."""
    # The name may hold anything; its digest tells apart what looks alike once it is made safe.
    safe = re.sub(r"[^\w.-]+", "-", study).strip(".-")[:80]
    digest = blake2b(study.encode(), digest_size=4).hexdigest()
    return f"{safe}-{digest}"


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
        "sqlite:///relative.db, sqlite:////absolute/path.db, or memory:."
    )
