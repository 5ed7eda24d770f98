"""Who keeps an attempt's files where the study's folder is not seen: on a far node's own disk.

Knows the shape alone. What a worker writes there is published from there, and what it starts from
is brought there; the study hears of both as if it had been here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from paceline.core.values import AttemptId
    from paceline.engines.local.shelf import Name


class Away(Protocol):
    """A folder that only one node sees."""

    @property
    def checkpoints(self) -> str:
        """Where its workers write checkpoints, as they see it."""

    def log(self, attempt: AttemptId) -> str:
        """Return where an attempt's output goes, as it sees it."""

    def begin(self, worker: int, attempt: AttemptId, source: Name | None, log: Path) -> None:
        """A worker there is this attempt: bring it what it starts from, and here what it prints."""

    def publish(self, name: Name, done: Callable[[str], None]) -> None:
        """Have a checkpoint put into the storage, and say what went wrong, if anything."""

    def drop(self, name: Name) -> None:
        """Delete a checkpoint, where a copy may lie there."""

    def clear(self, attempt: AttemptId) -> None:
        """Delete what an attempt that is gone has left, whole or in part, and never told."""
