"""Claims: the right to append to a study, which dies with the process that holds it.

Knows files and `flock`. Does not know what is guarded, nor any database.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Held(Exception):
    """Somebody else holds the claim; `holder` is the process, as far as it can be told."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


class Claim:
    """A lock on a file, held from construction to `close`, or to the end of the process.

    Where another claim on the same file lives, in this process or another, it is awaited, or Held
    is raised. Raises OSError where the file cannot be made.
    """

    def __init__(self, path: Path, *, wait: bool = False) -> None:
        self._path = path
        self._descriptor = _locked(path, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        _held.add(self._descriptor)
        try:
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, str(os.getpid()).encode())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go, and leave no file behind."""
        _held.discard(self._descriptor)
        # Unlinked while it is still locked: whoever opens the name from now on makes a new file.
        with suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._descriptor)


def _locked(path: Path, how: int) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, how)
            if _is_at(descriptor, path):
                return descriptor
        except BlockingIOError:
            holder = os.read(descriptor, 20).decode(errors="replace")
            os.close(descriptor)
            raise Held(f"process {holder}" if holder else "another process") from None
        except BaseException:
            os.close(descriptor)
            raise
        # Its last holder unlinked it between our opening and our locking: a lock on a file that
        # no longer has a name excludes nobody.
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


_held: set[int] = set()


def _let_go() -> None:
    # A forked child has the same open file, and would keep the lock alive after its parent's death.
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
