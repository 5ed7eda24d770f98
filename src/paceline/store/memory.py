"""Logs and inboxes in the memory of this process: for tests and for studies that are not stored.

Knows rows and their order. Touches no disk; the logs are lost with the object.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from paceline.core.codec import decode_step
from paceline.store.rows import encode_rows, make_not_found_error, select_steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paceline.core.decisions import Step
    from paceline.core.events import Command


class _Log:
    """The rows of one study; the numbers are a list of their own, to be searched by bisection."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.bodies: list[bytes] = []
        self.following = 0
        self.inbox: list[Command] = []


class MemoryStore:
    """Keep steps as the bytes that a file would hold, so that later changes cannot reach them."""

    def __init__(self) -> None:
        self._logs: dict[str, _Log] = {}

    def studies(self) -> Sequence[str]:
        """Return the names of all studies, oldest first."""
        return list(self._logs)

    def claim(self, study: str) -> None:
        """Do nothing: no other process can reach this memory."""

    def holder(self, study: str) -> str | None:
        """Return None: only the process that writes can ask."""
        return None

    def append(self, study: str, steps: Sequence[Step]) -> None:
        """Add steps to the end of a study's log: all or none. Raises LogError at a gap."""
        if not steps:
            return
        log = self._logs.get(study) or _Log()
        rows = encode_rows(study, log.following, steps)
        log.numbers.extend(number for number, _ in rows)
        log.bodies.extend(body for _, body in rows)
        log.following = steps[-1].after
        self._logs[study] = log

    def read(self, study: str, after: int = -1) -> Iterator[Step]:
        """Yield the steps whose number is greater than `after`. Raises StudyNotFound."""
        return self._read_log(self._find(study), after)

    def find_steps(self, study: str, kind: str) -> Sequence[Step]:
        """Return the steps whose event is of this kind. Raises StudyNotFound."""
        return select_steps(self._find(study).bodies, kind)

    def delete(self, study: str) -> None:
        """Delete a study's log and inbox. Raises StudyNotFound."""
        self._find(study)
        del self._logs[study]

    def post(self, study: str, command: Command) -> int:
        """Put a command into a study's inbox and return its number. Raises StudyNotFound."""
        inbox = self._find(study).inbox
        inbox.append(command)
        return len(inbox)

    def inbox(self, study: str, after: int = 0) -> Sequence[tuple[int, Command]]:
        """Return the commands numbered above `after`, oldest first."""
        log = self._logs.get(study)
        return list(enumerate(log.inbox, start=1))[max(after, 0) :] if log else []

    def close(self) -> None:
        """Do nothing: the logs exist as long as the object."""

    def _find(self, study: str) -> _Log:
        try:
            return self._logs[study]
        except KeyError:
            raise make_not_found_error(study, self.studies(), "this memory store") from None

    @staticmethod
    def _read_log(log: _Log, after: int) -> Iterator[Step]:
        index = bisect_right(log.numbers, after)
        # By index instead of over a slice: the log may grow while it is read.
        while index < len(log.bodies):
            yield decode_step(log.bodies[index])
            index += 1
