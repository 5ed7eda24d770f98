"""One attempt as the local engine sees it: its processes, its order, and how it will have ended.

Knows what was heard from workers and what was said to them. Most attempts have one process; a wide
one has a gang of them, of which the first speaks for all, and which ends as one. Does not know
the study.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from paceline.core.events import Cause
from paceline.worker.protocol import Best

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from paceline.core.decisions import Launch
    from paceline.engines.process.ports import Line
    from paceline.worker.protocol import AnyMessage

# How much of an attempt's output goes with its failure.
_TAIL_BYTES, _TAIL_LINES = 4096, 15
# How often it is told the study's best between two of its reports.
_UNHEARD = 16


class Member:
    """One process of an attempt, by its rank."""

    __slots__ = ("channel", "life", "rank", "returned", "worker")

    def __init__(self, life: Life, worker: int, channel: Line, rank: int) -> None:
        self.life = life
        self.worker = worker
        self.channel = channel
        self.rank = rank
        # Its training function came to its end.
        self.returned = False


class Life:
    """Workers that have become an attempt."""

    def __init__(self, launch: Launch, workers: Iterable[tuple[int, Line]], log: Path) -> None:
        self.id = launch.attempt
        self.slots = launch.slots
        self.width = launch.width
        self.log = log
        self.epoch = launch.start
        self.goal = launch.goal
        self.save_at = launch.save_at
        self.version = 0
        # Those whose processes are not known to be gone, the first before the others.
        self.members = [
            Member(self, worker, channel, rank) for rank, (worker, channel) in enumerate(workers)
        ]
        self._leader = self.members[0].channel
        self._size = len(self.members)
        # The epoch in which it was last told the study's best, and how often.
        self._told_in, self._told = -1, 0
        # When it was last heard from, on the study's clock.
        self.heard_at = 0.0
        # Its processes were ended hard: how they went says nothing any more.
        self.killed = False
        # How it has ended or will have ended, as far as is known; None: it lives.
        self.cause: Cause | None = None
        self.note = ""
        # What is known of a process that the first one misses.
        self._missing = ""

    def say(self, message: AnyMessage) -> None:
        """Tell the attempt something; the first of a gang passes on what the others must know."""
        self._leader.send(message)

    def tell_best(self, loss: float) -> None:
        """Tell it what is to be beaten; not without end, where it does not report meanwhile.

        It would not read it before its epoch is over, and a socket that is full holds up the
        driver. Who knows less saves once more than it has to.
        """
        if self.epoch != self._told_in:
            self._told_in, self._told = self.epoch, 0
        if self._told < _UNHEARD:
            self._told += 1
            self._leader.send(Best(loss=loss))

    def bereft(self, rank: int) -> None:
        """The first process misses another; why, that one may still say."""
        if self.cause is None:
            self.cause = Cause.FAILED
            self._missing = f"process {rank} of its {self._size} left before the others"

    def failed(self, note: str, *, starved: bool) -> None:
        """One of its processes raised an error; the first to tell is told."""
        if self.cause is None or (self._missing and not self.note):
            # Who shared its slot may be blameless.
            crowded = starved and self.width < 1.0
            self.cause, self.note = Cause.CROWDED if crowded else Cause.FAILED, note

    def abandoned(self) -> None:
        """One of its processes left and others stay; why, may still be known."""
        if self.members and self.cause is None:
            self.cause = Cause.FAILED
            self._missing = "one of its processes left before the others"

    def lost(self, note: str) -> bool:
        """One of its processes is gone by nobody's fault; that others miss it comes second.

        Return whether that is how it ends: it may have ended otherwise before.
        """
        news = self.cause is None or bool(self._missing and not self.note)
        if news:
            self.cause, self.note = Cause.LOST, note
        return news

    def leave(self, member: Member, status: int) -> None:
        """One of its processes is gone with this status; some of that is the attempt's end."""
        self.members.remove(member)
        if self.cause not in (None, Cause.FAILED) or self.killed:
            return
        if status < 0 and (self.cause is None or -status != signal.SIGTERM):
            # What others say, that they lost a peer, comes second.
            self._died(member, status)
        elif self.cause is None and (status or not member.rank):
            self._died(member, status)

    def ended(self) -> tuple[Cause, str]:
        """Return how it ended, now that all its processes are gone."""
        assert self.cause is not None
        if self.cause is Cause.FAILED:
            return self.cause, self.note or self._missing or self.tail()
        return self.cause, self.note

    def tail(self) -> str:
        """Return the end of what it has printed."""
        try:
            with open(self.log, "rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - _TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.rstrip().splitlines()[-_TAIL_LINES:])

    def _died(self, member: Member, status: int) -> None:
        how = f"was ended by {_named(-status)}" if status < 0 else f"exited with code {status}"
        who = "its process" if self._size == 1 else f"process {member.rank} of its {self._size}"
        tail = self.tail()
        self.cause = Cause.FAILED
        if status == -signal.SIGKILL and self.width < 1.0:
            # The kernel's way to say that there is no memory left: the whole slot is worth a try.
            self.cause = Cause.CROWDED
        self.note = f"{who} {how}; its output ends:\n{tail}" if tail else f"{who} {how}"


def _named(number: int) -> str:
    hint = ", perhaps for want of memory" if number == signal.SIGKILL else ""
    return f"{signal.Signals(number).name}{hint}"
