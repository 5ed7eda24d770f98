"""Checkpoints on their way between this machine and where they are kept.

Knows the shelf and the threads beside the loop: each attempt's checkpoints go one after the other,
in their order. Where they are kept on this machine nothing is on its way, and nothing is held up.
Those of attempts on far nodes are sent and fetched there; when they are told is the same for all.
"""

from __future__ import annotations

import warnings
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from paceline.core import events as e
from paceline.core.errors import PacelineWarning
from paceline.core.events import Cause

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.values import AttemptId
    from paceline.engines.process.attempt import Life, Member
    from paceline.engines.process.background import Beside
    from paceline.engines.process.checkpoint_files import Name, Shelf
    from paceline.engines.process.ports import Away


_SUPERSEDED = "a later one was saved before this could be uploaded"


class _Upload(NamedTuple):
    """A checkpoint that was written here; `asked`: somebody waits for this very one."""

    saved: e.Saved
    asked: bool


class _Mark:
    """Holds up what was said after it until the checkpoint of this epoch is settled."""

    __slots__ = ("epoch",)

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch


class _Box:
    """What is held up of one attempt."""

    def __init__(self) -> None:
        self.said: deque[e.AnyEvent | _Mark] = deque()
        # In the order of their epochs; the one that has begun is no longer among them.
        self.queued: deque[_Upload] = deque()
        self.under_way = False
        self.ended: e.Ended | None = None

    def mark(self, epoch: int) -> _Mark | None:
        marks = (each for each in self.said if isinstance(each, _Mark))
        return next((mark for mark in marks if mark.epoch == epoch), None)


class Outbox:
    """Passes on what may be told. `upload` begins an upload; `tell` gets facts in their order."""

    def __init__(
        self,
        upload: Callable[[e.Saved], None],
        tell: Callable[[e.AnyEvent], None],
        now: Callable[[], float],
    ) -> None:
        self._upload = upload
        self._tell = tell
        self._now = now
        self._boxes: dict[AttemptId, _Box] = {}

    def say(self, attempt: AttemptId, event: e.AnyEvent) -> None:
        """Tell something now, or after what is held up."""
        box = self._boxes.get(attempt)
        if box is not None and box.said:
            box.said.append(event)
        else:
            self._tell(event)

    def saved(self, saved: e.Saved, report: e.Reported | None, *, asked: bool) -> None:
        """A checkpoint was written here; with the report that may be told only with it, if any."""
        box = self._boxes.setdefault(saved.attempt, _Box())
        if box.queued and not box.queued[-1].asked:
            old = box.queued.pop().saved
            mark = box.mark(old.epoch)
            if mark is not None:
                # What waited for the earlier one is as safe with this one.
                mark.epoch = saved.epoch
            missed = e.Missed(at=saved.at, attempt=old.attempt, epoch=old.epoch, note=_SUPERSEDED)
            self.say(saved.attempt, missed)
        if report is not None:
            if box.mark(saved.epoch) is None:
                box.said.append(_Mark(saved.epoch))
            box.said.append(report)
        box.queued.append(_Upload(saved, asked))
        self._go_on(saved.attempt, box)

    def settled(self, saved: e.Saved, note: str) -> None:
        """An upload is done, or failed for this reason."""
        box = self._boxes[saved.attempt]
        box.under_way = False
        mark = box.mark(saved.epoch)
        if mark is not None:
            box.said.remove(mark)
        while box.said and not isinstance(box.said[0], _Mark):
            self._tell_late(box.said.popleft())  # type: ignore[arg-type]
        # Uploads are settled in the order of their epochs: this one's report has been told by now.
        lost = e.Missed(at=saved.at, attempt=saved.attempt, epoch=saved.epoch, note=note)
        self._tell_late(lost if note else saved)
        self._go_on(saved.attempt, box)

    def end(self, event: e.Ended) -> None:
        """The attempt is gone; that is told when all it has saved is settled."""
        box = self._boxes.setdefault(event.attempt, _Box())
        box.ended = event
        self._go_on(event.attempt, box)

    def _go_on(self, attempt: AttemptId, box: _Box) -> None:
        if box.under_way:
            return
        if box.queued:
            box.under_way = True
            self._upload(box.queued.popleft().saved)
            return
        del self._boxes[attempt]
        if box.ended is not None:
            self._tell_late(box.ended)

    def _tell_late(self, event: e.AnyEvent) -> None:
        # Facts are told in the order of their times.
        self._tell(replace(event, at=self._now()))


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
