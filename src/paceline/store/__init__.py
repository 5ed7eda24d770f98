"""Stores of logs and inboxes: in memory, in an SQLite file, or on a PostgreSQL server.

Handles steps as numbered rows of JSON and does not interpret them. Importing this package imports
no database driver: `open_store` does, for the kind of store it opens.
"""

from __future__ import annotations

from paceline.store.memory import MemoryStore
from paceline.store.urls import (
    find_store_file,
    find_study_folder,
    hide_password,
    make_folder_name,
    open_store,
)

__all__ = [
    "MemoryStore",
    "find_store_file",
    "find_study_folder",
    "hide_password",
    "make_folder_name",
    "open_store",
]
