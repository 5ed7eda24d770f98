"""Logs and inboxes in the memory of this process: for tests, and for studies nobody keeps.

Knows rows and their order. Touches no disk; everything is gone with the object.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from paceline.core.codec import decode_step
from paceline.store.rows import no_study, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paceline.core.decisions import Step
    from paceline.core.events import Command


class _Log:
    """One study's rows, with the numbers apart so that a place is found by bisection."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.bodies: list[bytes] = []
        self.following = 0
        self.inbox: list[Command] = []


class MemoryStore:
    """Keeps steps as the bytes a file would hold, so that nobody can change them afterwards."""

    def __init__(self) -> None:
        self._logs: dict[str, _Log] = {}

    def studies(self) -> Sequence[str]:
        """Return the names of all studies, oldest first."""
        return list(self._logs)

    def claim(self, study: str) -> None:
        """Do nothing: no other process can reach this memory."""

    def holder(self, study: str) -> str | None:
        """Return None: whoever could ask is the holder."""
        return None

    def append(self, study: str, steps: Sequence[Step]) -> None:
        """Add steps to the end of a study's log: all or none. Raises LogError at a gap."""
        if not steps:
            return
        log = self._logs.get(study) or _Log()
        rows = rows_of(study, log.following, steps)
        log.numbers.extend(number for number, _ in rows)
        log.bodies.extend(body for _, body in rows)
        log.following = steps[-1].after
        self._logs[study] = log

    def read(self, study: str, after: int = -1) -> Iterator[Step]:
        """Yield the steps whose number is greater than `after`. Raises StudyNotFound."""
        return self._steps(self._known(study), after)

    def post(self, study: str, command: Command) -> int:
        """Put a command into a study's inbox and return its number. Raises StudyNotFound."""
        inbox = self._known(study).inbox
        inbox.append(command)
        return len(inbox)

    def inbox(self, study: str, after: int = 0) -> Sequence[tuple[int, Command]]:
        """Return the commands numbered above `after`, oldest first."""
        log = self._logs.get(study)
        return list(enumerate(log.inbox, start=1))[max(after, 0) :] if log else []

    def close(self) -> None:
        """Do nothing: the logs live as long as the object."""

    def _known(self, study: str) -> _Log:
        try:
            return self._logs[study]
        except KeyError:
            raise no_study(study, self.studies(), "this memory store") from None

    @staticmethod
    def _steps(log: _Log, after: int) -> Iterator[Step]:
        place = bisect_right(log.numbers, after)
        # By index, and not over a slice: a reader may go on while the log grows.
        while place < len(log.bodies):
            yield decode_step(log.bodies[place])
            place += 1
