"""The driver's view of a node that keeps files on a disk of its own.

Knows which attempts are there, what is on its way from there, and what may lie there as a copy. How
the node does it, and when the study hears of it, others know.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.errors import CheckpointError
from paceline.engines.ray.words import Clear, Drop, Publish, Settle
from paceline.worker.trial import name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.ports import Storage
    from paceline.core.values import AttemptId
    from paceline.engines.local.shelf import Name
    from paceline.engines.ray.words import AnyWord, Kept, Printed


class Afar:
    """The files of one node; `say` reaches it."""

    def __init__(self, folder: str, say: Callable[[AnyWord], None]) -> None:
        self._folder = Path(folder)
        self._say = say
        self._lost = False
        # Whom to tell what came of an upload, and where an attempt's output goes on this machine.
        self._done: dict[Name, Callable[[str], None]] = {}
        self._logs: dict[AttemptId, Path] = {}
        self._copies: set[Name] = set()

    @property
    def checkpoints(self) -> str:
        """Where its workers write checkpoints, as they see it."""
        return str(self._folder / "checkpoints")

    @property
    def busy(self) -> bool:
        """Whether something is on its way from there."""
        return bool(self._done)

    def log(self, attempt: AttemptId) -> str:
        """Return where an attempt's output goes, as it sees it."""
        return str(self._folder / "logs" / f"attempt-{attempt}.log")

    def begin(self, worker: int, attempt: AttemptId, source: Name | None, log: Path) -> None:
        """A worker there is this attempt: bring it what it starts from, and here what it prints."""
        self._logs[attempt] = log
        if source is not None:
            self._copies.add(source)
        self._say(Settle(worker, attempt, source))

    def publish(self, name: Name, done: Callable[[str], None]) -> None:
        """Have a checkpoint put into the storage, and say what went wrong, if anything."""
        if self._lost:
            done(_lost(name))
            return
        self._done[name] = done
        self._copies.add(name)
        self._say(Publish(name))

    def drop(self, name: Name) -> None:
        """Delete a checkpoint, where a copy may lie there."""
        if name in self._copies:
            self._copies.remove(name)
            self._say(Drop(name))

    def clear(self, attempt: AttemptId) -> None:
        """Delete what an attempt that is gone has left, whole or in part, and never told."""
        self._logs.pop(attempt, None)
        if not self._lost:
            self._say(Clear(attempt))

    # What the node says

    def kept(self, word: Kept) -> None:
        """An upload is done, or failed."""
        self._done.pop(word.name)(word.note)

    def printed(self, word: Printed) -> None:
        """More of what an attempt has printed is here; other nodes may have brought some, too."""
        if word.body and word.attempt in self._logs:
            with open(self._logs[word.attempt], "ab") as file:
                file.write(word.body)

    def lose(self) -> None:
        """The node is gone, and with it what was not published."""
        self._lost = True
        self._copies.clear()
        for name in list(self._done):
            self._done.pop(name)(_lost(name))


def same_storage(storage: Storage, name: str) -> bool:
    """Say whether what a node has put into its storage is found in ours; delete it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            storage.get(name, str(Path(folder) / "found"))
            storage.delete(name)
        except CheckpointError:
            return False
    return True


def _lost(name: Name) -> str:
    return f"checkpoint {name_of(*name)} went with its node before it was published."
