"""The processes of all attempts: made, listened to, ended, and known to be gone.

Knows workers and their channels, and when to lose patience with one. What they say, and what it
means that an attempt is gone, it leaves to its owner.
"""

from __future__ import annotations

import contextlib
import select
import selectors
import signal
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from paceline.core.events import Cause
from paceline.engines.process.attempt import Life, Member
from paceline.engines.process.ports import Heard, Moved
from paceline.worker.forkserver_protocol import Exited

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from paceline.core.decisions import Launch
    from paceline.core.values import AttemptId
    from paceline.engines.process.clock import Clock
    from paceline.engines.process.ports import Maker
    from paceline.worker.protocol import AnyMessage, Begin


class Patience(Struct, frozen=True, kw_only=True):
    """How long the engine waits for workers, in seconds."""

    # From a soft end to a hard one.
    grace_s: float = 5.0
    # The same when the study is over: its result does not wait.
    last_grace_s: float = 0.1
    # The same for a gang that has lost one of its processes: whoever waits for that one in an
    # exchange of gradients hears no signal.
    gang_grace_s: float = 0.5
    # Without any report for so long an attempt is taken for hanging; None: never.
    hang_s: float | None = None
    # How often it looks whether its GPUs are still there.
    look_s: float = 10.0


class Owner(Protocol):
    """Who wants to know."""

    def hear(self, member: Member, message: AnyMessage) -> None:
        """A process said something."""

    def gone(self, life: Life) -> None:
        """All processes of an attempt are gone."""

    def moved(self, word: Moved) -> None:
        """Slots came, or are gone."""


class Staff:
    """Everybody who works for a study."""

    def __init__(self, nest: Maker, clock: Clock, patience: Patience) -> None:
        self.lives: dict[AttemptId, Life] = {}
        self._by_worker: dict[int, Member] = {}
        self._nest = nest
        self._clock = clock
        self._patience = patience
        # What becomes readable when there is something to hear; None stands for the nursery.
        self.selector = selectors.DefaultSelector()
        self.selector.register(nest.wire.fileno(), selectors.EVENT_READ, None)

    def prepare(self, count: int) -> None:
        """Have so many more workers made ahead."""
        self._nest.prepare(count)

    def hire(self, launch: Launch, begins: Iterable[Begin], log: Path) -> Life:
        """Let workers become an attempt."""
        life = Life(launch, self._nest.hire(launch.slots), log)
        life.heard_at = self._clock.now
        self.lives[life.id] = life
        for member, begin in zip(life.members, begins, strict=True):
            self._by_worker[member.worker] = member
            if member.channel.fileno() >= 0:
                self.selector.register(member.channel.fileno(), selectors.EVENT_READ, member)
            member.channel.send(begin)
        return life

    def listen(self, source: Member | None, owner: Owner) -> None:
        """Hear what a process has to say; None: what the nursery has."""
        if source is None:
            for word in self._nest.words():
                match word:
                    case Exited():
                        self._exited(word, owner)
                    case Heard(worker=worker) if worker in self._by_worker:
                        member = self._by_worker[worker]
                        for message in member.channel.arrived():
                            owner.hear(member, message)
                    case Moved():
                        owner.moved(word)
        elif not source.channel.closed:  # else its end was told in this very round
            for message in source.channel.arrived():
                owner.hear(source, message)
            if source.channel.closed:
                self.selector.unregister(source.channel.fileno())

    @property
    def orphaned(self) -> bool:
        """Whether the nursery is gone, and every worker with it."""
        return self._nest.wire.closed

    def revive(self, owner: Owner) -> None:
        """Go on with another nursery, after this one was killed."""
        for life in list(self.lives.values()):
            for member in life.members:
                channel = member.channel
                # Without waiting: nobody is left to end what would hold its channel open.
                while not channel.closed and select.select([channel], [], [], 0)[0]:
                    for message in channel.arrived():
                        owner.hear(member, message)
                self._hang_up(member)
            if life.cause is None:
                life.cause, life.note = Cause.LOST, "all workers were killed"
            self._forget(life, owner)
        self.selector.unregister(self._nest.wire.fileno())
        self._nest.revive()
        self.selector.register(self._nest.wire.fileno(), selectors.EVENT_READ, None)

    def end(self, life: Life, grace_s: float | None = None) -> None:
        """End an attempt's processes softly, and hard if they do not go."""
        self._signal(life, signal.SIGTERM)
        grace = self._patience.grace_s if grace_s is None else grace_s
        self._clock.after(grace, lambda: self._end_hard(life))

    def end_all(self) -> None:
        """Let everybody unwind."""
        for life in self.lives.values():
            self._signal(life, signal.SIGTERM)

    def close(self) -> None:
        """End whoever is left, hard, and the nursery."""
        for life in self.lives.values():
            self._signal(life, signal.SIGKILL)
        for member in self._by_worker.values():
            member.channel.close()
        self._nest.close(self._patience.last_grace_s)
        self.selector.close()
        self.lives.clear()

    def _exited(self, word: Exited, owner: Owner) -> None:
        member = self._by_worker.get(word.worker)
        if member is None:
            self._nest.forget(word.worker)
            return
        while not member.channel.closed:
            # Its last words: they were written before it died.
            for message in member.channel.arrived():
                owner.hear(member, message)
        life = member.life
        if word.lost:
            life.lost(word.lost)
        life.leave(member, word.status)
        self._hang_up(member)
        if not life.members:
            self._forget(life, owner)
        elif life.cause in (Cause.FAILED, Cause.LOST):
            self.end(life, self._patience.gang_grace_s)
        elif life.cause is not None or not member.returned:
            # The others do the same as it did, in a moment; whoever does not is stuck.
            self._clock.after(self._patience.grace_s, lambda: self._end_hard(life))

    def _forget(self, life: Life, owner: Owner) -> None:
        del self.lives[life.id]
        owner.gone(life)

    def _hang_up(self, member: Member) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(member.channel.fileno())
        member.channel.close()
        del self._by_worker[member.worker]

    def _end_hard(self, life: Life) -> None:
        life.abandoned()
        life.killed = True
        self._signal(life, signal.SIGKILL)

    def _signal(self, life: Life, number: int) -> None:
        for member in life.members:
            self._nest.kill(member.worker, number)
