"""What attempts have said and the study may not hear yet, because a checkpoint is on its way.

Where checkpoints are kept in a storage elsewhere, one is saved when it lies there, and meanwhile
the attempt trains on. The study's best and a trial's last epoch are told only together with their
checkpoints: such a report waits, and all that its attempt says after it. Of saves that queue up
behind a slow storage the latest is enough, unless somebody asked for the earlier one: so the queue
stays short. Does not know the storage.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from paceline.core import events as e

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.values import AttemptId

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
