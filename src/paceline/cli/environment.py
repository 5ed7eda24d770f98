"""The environment variables: one table of name, default and help, and the only place to read one.

Knows what may be set outside. `docs/cli.md` has the same table, and a test compares the two.
"""

from __future__ import annotations

import os
from typing import NamedTuple


class Variable(NamedTuple):
    """A variable of the environment. An empty one counts as not set."""

    name: str
    default: str
    help: str

    def read(self) -> str:
        """Return its value, or the default."""
        return os.environ.get(self.name) or self.default


STORE = Variable(
    "PACELINE_STORE",
    "sqlite:///paceline.db",
    "The store that commands use where `--store` is not given.",
)

VARIABLES = (STORE,)
