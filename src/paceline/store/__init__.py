"""Where logs and inboxes are kept: in memory, in an SQLite file, or on a server.

Knows steps as numbered rows of JSON and nothing of what they say. Importing this package imports no
database: `open_store` does, when it is asked for one.
"""

from __future__ import annotations

from paceline.store.memory import MemoryStore
from paceline.store.urls import folder_of, open_store, path_of, safe_name, shown

__all__ = ["MemoryStore", "folder_of", "open_store", "path_of", "safe_name", "shown"]
