"""The local engine: attempts as processes on this machine, their reports as facts.

Knows the wall clock, workers and their channels, and when to lose patience with one. The same
decisions go in and the same kinds of facts come out as in the simulator. Nothing here decides
anything: it carries out, and tells.
"""

from __future__ import annotations

import contextlib
import math
import select
import selectors
import signal
from collections import deque
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.values import loss_of
from paceline.engines.local.beside import Beside
from paceline.engines.local.briefing import Briefing, processes
from paceline.engines.local.clock import Clock
from paceline.engines.local.life import Life, Member
from paceline.engines.local.past import Past
from paceline.worker import channel as c
from paceline.worker.wire import Exited

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.decisions import Step
    from paceline.core.ports import Adviser
    from paceline.core.values import AttemptId, Config, StudySpec
    from paceline.engines.local.devices import Devices
    from paceline.engines.local.nest import Nest
    from paceline.engines.local.shelf import Shelf


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


class LocalEngine:
    """Carries decisions out on this machine."""

    def __init__(
        self,
        spec: StudySpec,
        nest: Nest,
        devices: Devices,
        *,
        shelf: Shelf,
        adviser: Adviser | None = None,
        patience: Patience | None = None,
        began: float | None = None,
    ) -> None:
        self._spec = spec
        self._nest = nest
        self._devices = devices
        self._adviser = adviser
        self._patience = patience or Patience()
        self._shelf = shelf
        self._briefing = Briefing(spec, devices, shelf)
        self._clock = Clock(began)
        self._applied = -1
        self._configs: list[Config] = []
        self._lives: dict[AttemptId, Life] = {}
        self._by_worker: dict[int, Member] = {}
        # Of the log that is being resumed.
        self._past = Past()
        # Those who have said that they saved: at their goal they go, unless it is moved on.
        self._parked: list[Life] = []
        # The best loss so far: whoever beats it saves at once.
        self._best: float | None = None
        self._slots = list(range(devices.slots))
        self._told: deque[e.AnyEvent] = deque()
        self._opened = self._closed = False
        self._beside = Beside()
        self._selector = selectors.DefaultSelector()
        self._selector.register(nest.wire.fileno(), selectors.EVENT_READ, None)
        self._selector.register(self._beside.fileno(), selectors.EVENT_READ, self._beside)
        nest.prepare(devices.slots)

    # The port

    @property
    def now(self) -> float:
        """Seconds on the study's clock, which stands still while no driver runs."""
        return self._clock.now

    def replay(self, step: Step) -> None:
        """Take a step of the log: what it leaves for the engine to know."""
        self._applied = step.number
        self._past.take(step)
        self._clock.resume(step.event.at)
        event = step.event
        if isinstance(event, e.Saved):
            self._shelf.saved((event.attempt, event.epoch), event.digest)
        elif isinstance(event, e.Reported):
            self._better(event)
        for decision in step.decisions:
            if isinstance(decision, d.Open):
                self._configs.append(decision.config)

    def wait(self, patience: float | None = None) -> Sequence[e.AnyEvent] | None:
        """Return what has happened, in order; wait where nothing has."""
        if self._closed:
            return None
        if not self._opened:
            self._open()
        # What was told at the last call has had its consequences by now.
        while self._parked:
            self._release(self._parked.pop())
        clock = self._clock
        until = math.inf if patience is None else clock.now + patience
        while not self._told:
            now, due = clock.now, clock.due
            nearest = min(due, until)
            if nearest > now:
                timeout = None if nearest == math.inf else nearest - now
                for key, _ in self._selector.select(timeout):
                    self._listen(key.data)
            elif due <= now:
                clock.strike()
            else:
                break
        told, self._told = self._told, deque()
        return list(told)

    def apply(self, step: Step) -> None:
        """Carry a step's decisions out, once."""
        if step.number <= self._applied:
            return
        self._applied = step.number
        for decision in step.decisions:
            act = _ACT.get(type(decision))
            if act is not None:
                act(self, decision)

    def close(self, grace_s: float | None = None) -> None:
        """End everything that still runs: softly first, and after the grace hard."""
        if self._closed:
            return
        self._closed = True
        until = self.now + (self._patience.last_grace_s if grace_s is None else grace_s)
        for worker in self._by_worker:
            self._nest.kill(worker, signal.SIGTERM)
        try:
            while self._lives and not self._nest.wire.closed and self.now < until:
                for key, _ in self._selector.select(max(0.0, until - self.now)):
                    self._listen(key.data)
        finally:  # an interrupt ends our patience
            for worker, member in self._by_worker.items():
                self._nest.kill(worker, signal.SIGKILL)
                member.channel.close()
            self._nest.close(self._patience.last_grace_s)
            self._selector.close()
            self._beside.close()
            self._lives.clear()
            self._told.clear()

    # Facts

    def _open(self) -> None:
        self._opened = True
        self._told.append(e.CapacityChanged(at=self.now, slots=tuple(self._slots)))
        past, self._past = self._past, Past()
        for attempt in past.lost:
            note = "its driver was gone"
            self._told.append(e.Ended(at=self.now, attempt=attempt, cause=e.Cause.LOST, note=note))
        for ask in past.asked.values():
            _ACT[type(ask)](self, ask)
        if self._patience.hang_s is not None:
            self._clock.after(self._patience.hang_s / 4, self._look_for_hanging)

    def _listen(self, source: Member | Beside | None) -> None:
        if source is None:
            for word in self._nest.words():
                if isinstance(word, Exited):
                    self._exited(word)
            if self._nest.wire.closed and not self._closed:
                self._bereaved()
        elif isinstance(source, Member):
            if source.channel.closed:
                return  # its end was told in this very round
            for message in source.channel.arrived():
                self._hear(source, message)
            if source.channel.closed:
                self._selector.unregister(source.channel.fileno())
        else:
            answer = source.answer()
            self._told.append(replace(answer, at=self._clock.strike()))

    def _hear(self, member: Member, message: c.AnyMessage) -> None:
        life = member.life
        at = life.heard_at = self._clock.strike()
        match message:
            case c.Report(epoch=epoch, metrics=metrics, seconds=seconds, saved=saved):
                life.epoch = epoch
                report = e.Reported(
                    at=at, attempt=life.id, epoch=epoch, metrics=metrics, seconds=seconds
                )
                self._told.append(report)
                if self._better(report):
                    self._spread_best(life)
                if saved is not None:
                    self._hear(member, saved)
            case c.Wrote(epoch=epoch, seconds=seconds, bytes=size, digest=digest):
                self._shelf.saved((life.id, epoch), digest)
                self._told.append(
                    e.Saved(
                        at=at,
                        attempt=life.id,
                        epoch=epoch,
                        seconds=seconds,
                        bytes=size,
                        digest=digest,
                    )
                )
                self._parked.append(life)
            case c.Skipped(epoch=epoch, note=note):
                self._told.append(e.Missed(at=at, attempt=life.id, epoch=epoch, note=note))
                self._parked.append(life)
            case c.Spoilt(note=note) if life.cause is None:
                self._told.append(e.Spoiled(at=at, attempt=life.id, note=note))
                life.cause, life.note = e.Cause.LOST, note
            case c.Done():
                member.returned = True
                if not member.rank:
                    life.cause = life.cause or e.Cause.FINISHED
            case c.Bereft(rank=rank):
                life.bereft(rank)
            case c.Failed(note=note):
                life.failed(note)

    def _exited(self, word: Exited) -> None:
        member = self._by_worker.get(word.worker)
        if member is None:
            self._nest.forget(word.worker)
            return
        while not member.channel.closed:
            # Its last words: they were written before it died.
            for message in member.channel.arrived():
                self._hear(member, message)
        life = member.life
        life.leave(member, word.status)
        self._hang_up(member)
        if not life.members:
            self._gone(life)
        elif life.cause in (e.Cause.FAILED, e.Cause.LOST):
            self._end(life, self._patience.gang_grace_s)
        elif life.cause is not None or not member.returned:
            # The others do the same as it did, in a moment; whoever does not is stuck.
            self._clock.after(self._patience.grace_s, lambda: self._end_hard(life))

    def _bereaved(self) -> None:
        """The nursery was killed, and every worker with it: go on with another."""
        for life in list(self._lives.values()):
            for member in life.members:
                channel = member.channel
                # Without waiting: nobody is left to end what would hold its channel open.
                while not channel.closed and select.select([channel], [], [], 0)[0]:
                    for message in channel.arrived():
                        self._hear(member, message)
                self._hang_up(member)
            if life.cause is None:
                life.cause, life.note = e.Cause.LOST, "all workers were killed"
            self._gone(life)
        self._selector.unregister(self._nest.wire.fileno())
        self._nest.revive()
        self._selector.register(self._nest.wire.fileno(), selectors.EVENT_READ, None)
        self._nest.prepare(len(self._slots))

    def _hang_up(self, member: Member) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(member.channel.fileno())
        member.channel.close()
        del self._by_worker[member.worker]

    def _gone(self, life: Life) -> None:
        """All processes of an attempt are gone: tell it, once."""
        del self._lives[life.id]
        cause, note = life.ended()
        self._shelf.clear(life.id, told_all=cause in (e.Cause.GOAL, e.Cause.FINISHED))
        at = self._clock.strike()
        self._told.append(e.Ended(at=at, attempt=life.id, cause=cause, note=note))

    def _better(self, report: e.Reported) -> bool:
        loss = loss_of(report.metrics.get(self._spec.metric), self._spec.sign)
        if loss < (math.inf if self._best is None else self._best):
            self._best = loss
            return True
        return False

    def _spread_best(self, source: Life) -> None:
        assert self._best is not None
        for life in self._lives.values():
            if life is not source:
                life.tell_best(self._best)

    def _look_for_hanging(self) -> None:
        limit = self._patience.hang_s
        assert limit is not None
        for life in self._lives.values():
            if life.cause is None and self.now - life.heard_at > limit:
                life.cause = e.Cause.FAILED
                life.note = f"it said nothing for {limit:g} s"
                self._end(life)
        self._clock.after(limit / 4, self._look_for_hanging)

    # Decisions

    def _open_trial(self, decision: d.Open) -> None:
        self._configs.append(decision.config)

    def _launch(self, decision: d.Launch) -> None:
        size = processes(decision)
        workers = [self._nest.worker()] if size == 1 else self._nest.gang(size)
        life = Life(decision, workers, self._shelf.log(decision.attempt))
        life.heard_at = self.now
        self._lives[life.id] = life
        begins = self._briefing.of(decision, self._configs[decision.trial], self._best)
        for member, begin in zip(life.members, begins, strict=True):
            self._by_worker[member.worker] = member
            self._selector.register(member.channel.fileno(), selectors.EVENT_READ, member)
            member.channel.send(begin)
        if size == 1:
            self._nest.prepare(1)

    def _amend(self, decision: d.Amend) -> None:
        life = self._lives.get(decision.attempt)
        if life is None or decision.version <= life.version:
            return
        life.version = decision.version
        life.goal = decision.goal
        life.say(
            c.Order(
                version=decision.version,
                config=self._configs[decision.trial],
                goal=decision.goal,
                save_at=decision.save_at,
            )
        )

    def _release(self, life: Life) -> None:
        """Let an attempt go that stands at its goal with its checkpoint."""
        # After its last epoch it goes on to whatever the function does then, and ends by itself.
        if life.cause is None and life.goal <= life.epoch < self._spec.epochs:
            life.cause = e.Cause.GOAL
            life.say(c.Release())

    def _halt(self, decision: d.Halt) -> None:
        life = self._lives.get(decision.attempt)
        if life is not None and life.cause is None:
            life.cause = e.Cause.HALTED
            self._end(life)

    def _end(self, life: Life, grace_s: float | None = None) -> None:
        """End an attempt's processes softly, and hard if they do not go."""
        for member in life.members:
            self._nest.kill(member.worker, signal.SIGTERM)
        grace = self._patience.grace_s if grace_s is None else grace_s
        self._clock.after(grace, lambda: self._end_hard(life))

    def _end_hard(self, life: Life) -> None:
        if life.members and life.cause is None:
            life.cause, life.note = e.Cause.FAILED, "one of its processes left before the others"
        life.killed = True
        for member in life.members:
            self._nest.kill(member.worker, signal.SIGKILL)

    def _wake_at(self, decision: d.WakeAt) -> None:
        woke = e.Woke(at=decision.at, trial=decision.trial)
        self._clock.at(decision.at, lambda: self._told.append(woke))

    def _drop(self, decision: d.Drop) -> None:
        for name in decision.checkpoints:
            self._shelf.drop(name)

    def _provide(self, decision: d.Provide) -> None:
        fresh = max(self._slots, default=-1) + 1
        more = self._devices.more(len(self._slots), decision.slots)
        self._slots += range(fresh, fresh + more)
        self._nest.prepare(more)
        at = self._clock.strike()
        self._told.append(e.CapacityChanged(at=at, slots=tuple(self._slots)))

    def _retire(self, decision: d.Retire) -> None:
        self._slots = [slot for slot in self._slots if slot not in decision.slots]

    def _ask(self, decision: d.AskForecast | d.AskProposal) -> None:
        assert self._adviser is not None
        kind = "forecasts" if isinstance(decision, d.AskForecast) else "proposals"
        self._beside.do(kind, self._adviser.answer(decision))


_ACT: dict[type, Callable[[LocalEngine, Any], None]] = {
    d.Open: LocalEngine._open_trial,
    d.Launch: LocalEngine._launch,
    d.Amend: LocalEngine._amend,
    d.Halt: LocalEngine._halt,
    d.Drop: LocalEngine._drop,
    d.WakeAt: LocalEngine._wake_at,
    d.AskForecast: LocalEngine._ask,
    d.AskProposal: LocalEngine._ask,
    d.Provide: LocalEngine._provide,
    d.Retire: LocalEngine._retire,
}
