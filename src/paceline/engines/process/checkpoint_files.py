"""A study's files: its checkpoints with their digests, and what each attempt printed.

Knows folders and names. Workers write checkpoints themselves; here they are remembered, deleted
when they are dropped, and swept away when no log names them. Where they are kept in a storage
elsewhere, the folder is a cache of it: what was used last stays, as far as it may.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from paceline.core.errors import CheckpointError
from paceline.worker.trial import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from pathlib import Path

    from paceline.core.ports import Storage
    from paceline.core.values import AttemptId

    Name = tuple[AttemptId, int]

_NAMED = re.compile(r"(\d+)-(\d+)\.ckpt")
_ADOPTED = re.compile(r"adopted-(\d+)-(\d+)\.ckpt")


class Shelf:
    """Where a study's files lie."""

    def __init__(
        self, files: Path, storage: Storage | None = None, cache_bytes: int | None = None
    ) -> None:
        self.checkpoints = files / "checkpoints"
        self.logs = files / "logs"
        for folder in (self.checkpoints, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        # Where checkpoints are kept; None: here, and nowhere else.
        self.storage = storage
        self.cache_bytes = cache_bytes
        self._digests: dict[Name, str] = {}
        # What may be deleted here because it lies in the storage too: used last comes last.
        self._cached: dict[Name, int] = {}
        # What attempts are about to read.
        self._wanted: dict[AttemptId, Name] = {}

    def saved(self, name: Name, digest: str) -> None:
        """A checkpoint was written; its bytes hash to this."""
        self._digests[name] = digest

    def digest(self, name: Name) -> str:
        """Return what a checkpoint's bytes must hash to; empty where nobody knows."""
        return self._digests.get(name, "")

    def path(self, name: Name) -> Path:
        """Return where a checkpoint lies on this machine, if it does."""
        return self.checkpoints / name_of(*name)

    def drop(self, name: Name) -> None:
        """Delete a checkpoint on this machine."""
        self._digests.pop(name, None)
        self._cached.pop(name, None)
        self.path(name).unlink(missing_ok=True)

    # In a storage elsewhere. What takes time is returned as work, to be done beside the loop.

    def publish(self, name: Name) -> Callable[[], str]:
        """Return the work that puts a checkpoint into the storage; it says what went wrong."""
        storage, path = self.storage, str(self.path(name))
        assert storage is not None

        def work() -> str:
            try:
                storage.put(name_of(*name), path)
            except CheckpointError as error:
                return str(error)
            return ""

        return work

    def fetch(self, name: Name) -> Callable[[], str]:
        """Return the work that brings a checkpoint here; it says what went wrong."""
        storage, path = self.storage, str(self.path(name))
        assert storage is not None

        def work() -> str:
            try:
                storage.get(name_of(*name), path)
            except CheckpointError as error:
                return str(error)
            return ""

        return work

    def forget(self, name: Name) -> Callable[[], None]:
        """Return the work that deletes a checkpoint from the storage."""
        storage = self.storage
        assert storage is not None

        def work() -> None:
            # What stays is named by no log, and swept at the next chance.
            with contextlib.suppress(CheckpointError):
                storage.delete(name_of(*name))

        return work

    def wanted(self, attempt: AttemptId, name: Name) -> bool:
        """Keep a checkpoint here until an attempt has read it; False: it must be brought first."""
        if self.storage is None:
            return True
        self._wanted[attempt] = name
        if name in self._cached:
            self._cached[name] = self._cached.pop(name)
        return self.path(name).exists()

    def read(self, attempt: AttemptId) -> None:
        """An attempt has what it wanted, or needs it no more."""
        self._wanted.pop(attempt, None)

    def cached(self, name: Name) -> None:
        """A checkpoint lies here and in the storage: make room for it."""
        with contextlib.suppress(FileNotFoundError):
            self._cached.pop(name, None)
            self._cached[name] = self.path(name).stat().st_size
        if self.cache_bytes is None:
            return
        taken, wanted = sum(self._cached.values()), set(self._wanted.values())
        for oldest in [each for each in self._cached if each not in wanted]:
            if taken <= self.cache_bytes:
                break
            taken -= self._cached.pop(oldest)
            self.path(oldest).unlink(missing_ok=True)

    # What is left behind

    def clear(self, attempt: AttemptId, *, told_all: bool) -> None:
        """Delete what an attempt that is gone has written, whole or in part, and never told."""
        self.read(attempt)
        # Of what was saved one after the other, what a later one made superfluous is still here.
        if told_all and self.storage is None:
            return
        for path in self.checkpoints.glob(f"*{attempt}-*"):
            found = _NAMED.search(path.name)
            if found is None or int(found[1]) != attempt or _ADOPTED.search(path.name):
                continue
            if path.name != found[0] or (attempt, int(found[2])) not in self._digests:
                path.unlink(missing_ok=True)

    def sweep(self, named: Container[Name]) -> None:
        """Delete what lies among the checkpoints on this machine and is not named in the log."""
        for path in self.checkpoints.iterdir():
            name = _name(path.name)
            if name is None or name not in named:
                path.unlink(missing_ok=True)
            elif self.storage is not None:
                self.cached(name)

    def sweep_storage(self, named: Container[Name]) -> None:
        """Do the same in the storage elsewhere."""
        if self.storage is None:
            return
        for stored in self.storage.list():
            name = _name(stored.name)
            if name is None or name not in named:
                self.storage.delete(stored.name)

    def log(self, attempt: AttemptId) -> Path:
        """Return where an attempt's output goes."""
        return self.logs / f"attempt-{attempt}.log"


def _name(file: str) -> Name | None:
    """Return the checkpoint that a file of this name is; None: it is none."""
    found = _NAMED.fullmatch(file)
    if found is not None:
        return int(found[1]), int(found[2])
    found = _ADOPTED.fullmatch(file)
    return None if found is None else (-int(found[1]), int(found[2]))
