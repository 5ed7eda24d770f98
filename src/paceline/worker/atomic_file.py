"""Atomic file writes: a file appears complete, or not at all.

Knows a temporary name in the same folder and the rename at the end. Does not sync to disk: the
caller does where it matters.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The suffix of a file that is being written.
PART = ".part"


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename it to the file at the end."""
    part = path.with_name(f".{path.name}.{uuid4().hex}{PART}")
    try:
        yield part
        os.replace(part, path)
    except BaseException:
        # A full disk, or the end of this attempt: the incomplete file is useless.
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
