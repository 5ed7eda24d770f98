"""How a file appears: whole, or not at all.

Knows a place beside it to write to, and the name that it takes at the end. Does not know what is
written, nor whether it has reached the disk: who writes says so.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# How a name that is being written begins and ends: no checkpoint is called so.
PART = ".part"


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Give a place that nobody else writes to; what is there at the end is the file."""
    part = path.with_name(f".{path.name}.{uuid4().hex}{PART}")
    try:
        yield part
        os.replace(part, path)
    except BaseException:
        # A full disk, or the end of this attempt: what is not whole is of no use to anybody.
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
