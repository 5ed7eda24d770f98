"""A study's files: its checkpoints with their digests, what each attempt printed, where gangs meet.

Knows folders and names. Workers write checkpoints themselves; here they are remembered, deleted
when they are dropped, and swept away when no log names them.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from paceline.worker.trial import name_of

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

    from paceline.core.values import AttemptId

    Name = tuple[AttemptId, int]

_NAMED = re.compile(r"(\d+)-(\d+)\.ckpt")
_ADOPTED = re.compile(r"adopted-(\d+)-(\d+)\.ckpt")


class Shelf:
    """Where a study's files lie."""

    def __init__(self, files: Path) -> None:
        self.checkpoints = files / "checkpoints"
        self.logs = files / "logs"
        for folder in (self.checkpoints, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        self._digests: dict[Name, str] = {}

    def saved(self, name: Name, digest: str) -> None:
        """A checkpoint was written; its bytes hash to this."""
        self._digests[name] = digest

    def digest(self, name: Name) -> str:
        """Return what a checkpoint's bytes must hash to; empty where nobody knows."""
        return self._digests.get(name, "")

    def drop(self, name: Name) -> None:
        """Delete a checkpoint."""
        self._digests.pop(name, None)
        (self.checkpoints / name_of(*name)).unlink(missing_ok=True)

    def clear(self, attempt: AttemptId, *, told_all: bool) -> None:
        """Delete what an attempt that is gone has written, whole or in part, and never told."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # most meet nobody
            self.meeting(attempt).unlink()
        if told_all:
            return
        for path in self.checkpoints.glob(f"*{attempt}-*"):
            found = _NAMED.search(path.name)
            if found is None or int(found[1]) != attempt or _ADOPTED.search(path.name):
                continue
            if path.name != found[0] or (attempt, int(found[2])) not in self._digests:
                path.unlink(missing_ok=True)

    def sweep(self, named: Container[Name]) -> None:
        """Delete what lies among the checkpoints and is not named in the log."""
        for path in self.checkpoints.iterdir():
            if _name(path.name) not in named:
                path.unlink(missing_ok=True)

    def log(self, attempt: AttemptId) -> Path:
        """Return where an attempt's output goes."""
        return self.logs / f"attempt-{attempt}.log"

    def meeting(self, attempt: AttemptId) -> Path:
        """Return the file by which the processes of a wide attempt find each other."""
        return self.checkpoints / f"attempt-{attempt}.meeting"


def _name(file: str) -> Name | None:
    """Return the checkpoint that a file of this name is; None: it is none."""
    found = _NAMED.fullmatch(file)
    if found is not None:
        return int(found[1]), int(found[2])
    found = _ADOPTED.fullmatch(file)
    return None if found is None else (-int(found[1]), int(found[2]))
