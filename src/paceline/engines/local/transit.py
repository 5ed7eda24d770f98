"""Checkpoints on their way between this machine and where they are kept.

Knows the shelf and the threads beside the loop: each attempt's checkpoints go one after the other,
in their order. Where they are kept on this machine nothing is on its way, and nothing is held up.
Those of attempts on far nodes are sent and fetched there; when they are told is the same for all.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, NamedTuple

from paceline.core.errors import PacelineWarning
from paceline.core.events import Cause
from paceline.engines.local.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core import events as e
    from paceline.core.values import AttemptId
    from paceline.engines.local.away import Away
    from paceline.engines.local.beside import Beside
    from paceline.engines.local.life import Life, Member
    from paceline.engines.local.shelf import Name, Shelf

# So many uploads at a time.
_LINES = 4


class Published(NamedTuple):
    """What came of putting a checkpoint into the storage."""

    saved: e.Saved
    note: str


class Brought(NamedTuple):
    """What came of bringing a checkpoint here for an attempt."""

    attempt: AttemptId
    name: Name
    note: str


class Transit:
    """Sends and fetches. `tell` gets facts as soon as they are true, in their order."""

    def __init__(
        self,
        shelf: Shelf,
        beside: Beside,
        tell: Callable[[e.AnyEvent], None],
        now: Callable[[], float],
    ) -> None:
        self._shelf = shelf
        self._beside = beside
        self._tell = tell
        # Once is enough: the log has them all.
        self._warned = False
        self._outbox = Outbox(self._upload, tell, now)
        # Where each process of an attempt has its files, where not here; the first one's is what it
        # writes. And all who may hold copies.
        self._away: dict[AttemptId, Sequence[Away | None]] = {}
        self._homes: set[Away] = set()

    def say(self, attempt: AttemptId, event: e.AnyEvent) -> None:
        """Tell something of an attempt, in its turn."""
        self._outbox.say(attempt, event)

    def begin(self, life: Life, homes: Sequence[Away | None], source: Name | None) -> None:
        """An attempt begins, with these keeping the files of its processes; None: they are here."""
        self._away[life.id] = homes
        for member, away in zip(life.members, homes, strict=True):
            if away is not None:
                self._homes.add(away)
                away.begin(member.worker, life.id, source, life.log)

    def here(self, member: Member) -> bool:
        """Say whether a process has its files on this machine."""
        return self._away[member.life.id][member.rank] is None

    def end(self, event: e.Ended) -> None:
        """Tell that an attempt is gone, when all it saved is safe or lost."""
        self._outbox.end(event)

    def wrote(self, saved: e.Saved, report: e.Reported | None, *, asked: bool) -> None:
        """A worker has written a checkpoint; `report` may be told only together with it."""
        if self._shelf.storage is not None:
            self._outbox.saved(saved, report, asked=asked)
            return
        self._shelf.saved((saved.attempt, saved.epoch), saved.digest)
        if report is not None:
            self._tell(report)
        self._tell(saved)

    def fetch(self, attempt: AttemptId, name: Name) -> None:
        """Bring a checkpoint here for an attempt that waits for it."""
        work = self._shelf.fetch(name)
        self._beside.do("downloads", lambda: Brought(attempt, name, work()))

    def drop(self, name: Name) -> None:
        """Delete a checkpoint, wherever it lies."""
        self._shelf.drop(name)
        for away in self._homes:
            away.drop(name)
        if self._shelf.storage is not None:
            self._beside.do(_line(name[0]), self._shelf.forget(name))

    def clear(self, ended: e.Ended) -> None:
        """Delete what an attempt that is gone has left, wherever it was."""
        told_all = ended.cause in (Cause.GOAL, Cause.FINISHED)
        self._shelf.clear(ended.attempt, told_all=told_all)
        for away in set(self._away.pop(ended.attempt, ())):
            if away is not None:
                away.clear(ended.attempt)

    def arrived(self, answer: Published | Brought) -> None:
        """Something has got where it should, or will not."""
        if isinstance(answer, Brought):
            if not answer.note:
                self._shelf.cached(answer.name)
            return
        saved, note = answer
        if note and not self._warned:
            self._warned = True
            warnings.warn(f"{note} Training goes on without it.", PacelineWarning, stacklevel=2)
        if not note:
            name = (saved.attempt, saved.epoch)
            self._shelf.saved(name, saved.digest)
            self._shelf.cached(name)
        self._outbox.settled(saved, note)

    def _upload(self, saved: e.Saved) -> None:
        name, (away, *_) = (saved.attempt, saved.epoch), self._away.get(saved.attempt, (None,))
        if away is not None:
            away.publish(name, lambda note: self.arrived(Published(saved, note)))
            return
        work = self._shelf.publish(name)
        self._beside.do(_line(saved.attempt), lambda: Published(saved, work()))


def _line(attempt: AttemptId) -> str:
    """Return who uploads for an attempt, and deletes after it."""
    return f"uploads-{attempt % _LINES}"
