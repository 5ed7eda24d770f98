"""Files of a study: written so that they appear complete or not at all; links are not followed.

Knows a temporary name in the same folder and the rename at the end. Does not sync to disk: the
caller does where it matters.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO, Any

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


def open_regular_file(path: Path, flags: int = os.O_RDONLY, mode: str = "rb") -> IO[Any]:
    """Open a file; raise OSError if the path is a link, a pipe or a device.

    The folder of a study may come from elsewhere, and a link in it may lead out of it.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return open(descriptor, mode)
    except BaseException:
        os.close(descriptor)
        raise
