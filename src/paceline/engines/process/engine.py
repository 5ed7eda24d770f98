"""The local engine: attempts as processes on this machine, their reports as facts.

Knows the wall clock, what workers say and what it means for the study. The same decisions go in and
the same kinds of facts come out as in the simulator. Nothing here decides anything: it carries out,
and tells.
"""

from __future__ import annotations

import math
import selectors
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import replace

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.values import loss_of
from paceline.engines.process.background import Beside
from paceline.engines.process.clock import Clock
from paceline.engines.process.ports import Moved
from paceline.engines.process.supervisor import Patience, Staff
from paceline.engines.process.uploads import Brought, Published, Transit
from paceline.plan.cadence import SAVE_SHARE
from paceline.worker import protocol as c
from paceline.worker.protocol import Begin
from paceline.worker.trial import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from paceline.core.decisions import Launch, Step
    from paceline.core.events import Reported
    from paceline.core.ports import Adviser
    from paceline.core.values import AttemptId, Config, StudySpec
    from paceline.engines.process.attempt import Life, Member
    from paceline.engines.process.checkpoint_files import Shelf
    from paceline.engines.process.ports import Ground, Maker


class Briefing:
    """Writes first messages."""

    def __init__(self, spec: StudySpec, devices: Ground, shelf: Shelf) -> None:
        self._spec = spec
        self._devices = devices
        self._shelf = shelf

    def of(self, launch: Launch, config: Config, best: float | None) -> Iterator[Begin]:
        """Yield what to tell each process, by rank; `best` is the study's best loss so far."""
        spec, shelf, devices = self._spec, self._shelf, self._devices
        seed = config.get("seed")
        homes = [devices.away(slot) for slot in launch.slots]
        checkpoint, digest, missing = None, "", False
        if launch.source is not None:
            name = (launch.source, launch.start)
            checkpoint, digest = name_of(*name), shelf.digest(name)
            missing = None in homes and not shelf.wanted(launch.attempt, name)
        for rank, away in enumerate(homes):
            yield Begin(
                attempt=launch.attempt,
                trial=launch.trial,
                config=config,
                epochs=spec.epochs,
                start=launch.start,
                goal=launch.goal,
                save_at=launch.save_at,
                seed=seed if isinstance(seed, int) else spec.seed,
                folder=str(shelf.checkpoints) if away is None else away.checkpoints,
                checkpoint=checkpoint,
                digest=digest,
                # A far node looks for itself whether it has it.
                awaits=missing if away is None else checkpoint is not None,
                metric=spec.metric,
                sign=spec.sign,
                best=best,
                patience=SAVE_SHARE,
                width=launch.width,
                rank=rank,
                slot_bytes=devices.slot_bytes(launch.slots[rank]) if spec.pack > 1 else 0,
                device=devices.device,
                threads=devices.threads(launch.width),
                environ=devices.variables(launch.slots, launch.width, rank),
                log=str((away or shelf).log(launch.attempt)),
            )


class Bests:
    """The best loss of each group so far."""

    def __init__(self, spec: StudySpec) -> None:
        self._spec = spec
        # Each trial's group, the group for which each attempt runs, and each group's best.
        self._trials: list[int] = []
        self._attempts: dict[AttemptId, int] = {}
        self._losses: dict[int, float] = {}

    def open(self, group: int) -> None:
        """The next trial is this group's."""
        self._trials.append(group)

    def launch(self, decision: Launch) -> None:
        """An attempt begins for a trial."""
        self._attempts[decision.attempt] = self._trials[decision.trial]

    def gone(self, attempt: AttemptId) -> None:
        """An attempt has ended."""
        self._attempts.pop(attempt, None)

    def beaten(self, report: Reported) -> bool:
        """Take a report and say whether it beats the best of its group."""
        group = self._attempts.get(report.attempt, 0)
        loss = loss_of(report.metrics.get(self._spec.metric), self._spec.sign)
        if loss < self._losses.get(group, math.inf):
            self._losses[group] = loss
            return True
        return False

    def of(self, attempt: AttemptId) -> float | None:
        """Return what an attempt has to beat; None: nobody has reported a number."""
        return self._losses.get(self._attempts.get(attempt, 0))

    def together(self, one: AttemptId, other: AttemptId) -> bool:
        """Say whether two attempts run for the same group."""
        return self._attempts.get(one, 0) == self._attempts.get(other, 0)


Ask: TypeAlias = d.AskForecast | d.AskProposal | d.WakeAt


class Past:
    """A fold of the log: give it steps, read what is open."""

    def __init__(self) -> None:
        # Their processes died with their driver, or were never made.
        self.lost: dict[AttemptId, None] = {}
        # In the order they were asked.
        self.asked: dict[object, Ask] = {}

    def take(self, step: Step) -> None:
        """Take one step of the log."""
        match step.event:
            case e.Ended(attempt=attempt):
                self.lost.pop(attempt, None)
            case e.Forecasted(trial=trial, epoch=epoch):
                self.asked.pop(("forecast", trial, epoch), None)
            case e.Proposed(number=number, group=group):
                self.asked.pop(("proposal", group, number), None)
            case e.Woke(at=at, trial=trial):
                self.asked.pop(("wake", at, trial), None)
        for decision in step.decisions:
            match decision:
                case d.Launch(attempt=attempt):
                    self.lost[attempt] = None
                case d.AskForecast(trial=trial, epoch=epoch):
                    self.asked["forecast", trial, epoch] = decision
                case d.AskProposal(number=number, group=group):
                    self.asked["proposal", group, number] = decision
                case d.WakeAt(at=at, trial=trial):
                    self.asked["wake", at, trial] = decision


_GPU_GONE = "its GPU is gone"


class LocalEngine:
    """Carries decisions out on this machine."""

    # Here they take their time from the training.
    _forecasts_at_once = 1

    def __init__(
        self,
        spec: StudySpec,
        nest: Maker,
        devices: Ground,
        *,
        shelf: Shelf,
        adviser: Adviser | None = None,
        patience: Patience | None = None,
        began: float | None = None,
    ) -> None:
        self._spec = spec
        self._devices = devices
        self._adviser = adviser
        self._patience = patience or Patience()
        self._shelf = shelf
        self._briefing = Briefing(spec, devices, shelf)
        self._clock = Clock(began)
        self._applied = -1
        self._configs: list[Config] = []
        self._staff = Staff(nest, self._clock, self._patience)
        # Of the log that is being resumed.
        self._past = Past()
        # Those who have said that they saved: at their goal they go, unless it is moved on.
        self._parked: list[Life] = []
        self._bests = Bests(spec)
        self._slots = list(devices.first)
        # Slots whose GPUs were there and cannot be found any more.
        self._lost: set[int] = set()
        self._told: deque[e.AnyEvent] = deque()
        self._opened = self._closed = False
        self._beside = Beside({"forecasts": self._forecasts_at_once})
        self._transit = Transit(shelf, self._beside, self._tell, self._clock.strike)
        self._selector = self._staff.selector
        self._selector.register(self._beside.fileno(), selectors.EVENT_READ, self._beside)
        self._staff.prepare(len(self._slots))

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
        elif isinstance(event, e.Adopted):
            for save in event.saves:
                self._shelf.saved((event.attempt, save.epoch), save.digest)
        elif isinstance(event, e.Reported):
            self._bests.beaten(event)
        elif isinstance(event, e.Ended):
            self._bests.gone(event.attempt)
        for decision in step.decisions:
            if isinstance(decision, d.Open):
                self._open_trial(decision)
            elif isinstance(decision, d.Launch):
                self._bests.launch(decision)

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
        self._staff.end_all()
        try:
            while self._staff.lives and not self._staff.orphaned and self.now < until:
                for key, _ in self._selector.select(max(0.0, until - self.now)):
                    self._listen(key.data)
        finally:  # an interrupt ends our patience
            self._staff.close()
            self._beside.close()
            self._told.clear()

    # Facts

    def _open(self) -> None:
        self._opened = True
        self._told.append(self._capacity(self.now))
        past, self._past = self._past, Past()
        for attempt in past.lost:
            note = "its driver was gone"
            self._told.append(e.Ended(at=self.now, attempt=attempt, cause=e.Cause.LOST, note=note))
        for ask in past.asked.values():
            _ACT[type(ask)](self, ask)
        if self._devices.watched:
            self._clock.after(self._patience.look_s, self._keep_looking)
        if self._patience.hang_s is not None:
            self._clock.after(self._patience.hang_s / 4, self._look_for_hanging)

    def _listen(self, source: Member | Beside | None) -> None:
        if isinstance(source, Beside):
            self._take(source.answer())
            return
        self._staff.listen(source, self)
        # By its own word alone: a wire that was revived has nothing to say in this round.
        if source is None and self._staff.orphaned and not self._closed:
            self._staff.revive(self)
            self._staff.prepare(len(self._slots))

    def hear(self, member: Member, message: c.AnyMessage) -> None:
        """A process said something."""
        life = member.life
        at = life.heard_at = self._clock.strike()
        match message:
            case c.Report(epoch=epoch, saved=saved):
                life.epoch = epoch
                self._shelf.read(life.id)
                report = e.Reported(
                    at=at,
                    attempt=life.id,
                    epoch=epoch,
                    metrics=message.metrics,
                    seconds=message.seconds,
                    memory=message.memory,
                    version=message.version,
                )
                if self._bests.beaten(report):
                    self._spread_best(life)
                if isinstance(saved, c.Wrote):
                    self._wrote(life, saved, report)
                else:
                    self._transit.say(life.id, report)
                    if saved is not None:
                        self.hear(member, saved)
            case c.Wrote():
                self._wrote(life, message)
            case c.Skipped(epoch=epoch, note=note):
                self._transit.say(life.id, e.Missed(at=at, attempt=life.id, epoch=epoch, note=note))
            case c.Spoilt(note=note):
                if life.lost(note):
                    self._tell(e.Spoiled(at=at, attempt=life.id, note=note))
            case c.Done():
                member.returned = True
                if not member.rank:
                    life.cause = life.cause or e.Cause.FINISHED
            case c.Bereft(rank=rank):
                life.bereft(rank)
            case c.Failed(note=note, starved=starved):
                life.failed(note, starved=starved)

    def gone(self, life: Life) -> None:
        """All processes of an attempt are gone: tell it, once."""
        if life.cause is e.Cause.FAILED and self._devices.watched:
            self._look_at_gpus()
            if not self._lost.isdisjoint(life.slots):
                life.cause, life.note = e.Cause.LOST, _GPU_GONE
        cause, note = life.ended()
        self._bests.gone(life.id)
        at = self._clock.strike()
        self._transit.end(e.Ended(at=at, attempt=life.id, cause=cause, note=note))

    def _tell(self, event: e.AnyEvent) -> None:
        """A fact is told now: see to what follows from it here."""
        self._told.append(event)
        if isinstance(event, e.Saved | e.Missed):
            life = self._staff.lives.get(event.attempt)
            # One that was on its way for long says nothing about the goal.
            if life is not None and event.epoch >= life.goal:
                self._parked.append(life)
        elif isinstance(event, e.Ended):
            self._transit.clear(event)

    def _wrote(self, life: Life, wrote: c.Wrote, report: e.Reported | None = None) -> None:
        saved = e.Saved(
            at=life.heard_at,
            attempt=life.id,
            epoch=wrote.epoch,
            seconds=wrote.seconds,
            bytes=wrote.bytes,
            digest=wrote.digest,
        )
        asked = wrote.epoch >= life.goal or wrote.epoch in life.save_at
        self._transit.wrote(saved, report, asked=asked)

    def _take(self, answer: object) -> None:
        """What was done beside the loop is done."""
        if isinstance(answer, Published | Brought):
            self._transit.arrived(answer)
            if isinstance(answer, Brought) and answer.attempt in self._staff.lives:
                for member in self._staff.lives[answer.attempt].members:
                    if self._transit.here(member):
                        member.channel.send(c.Fetched(note=answer.note))
        elif isinstance(answer, e.Forecasted | e.Proposed):
            self._told.append(replace(answer, at=self._clock.strike()))

    def _look_at_gpus(self) -> None:
        """Find out which GPUs are gone, or back: their slots, and who trains there, with them."""
        missing = self._devices.missing()
        gone = missing.intersection(self._slots)
        back = self._lost - missing
        self._lost = (self._lost | gone) - back
        self.moved(Moved(came=tuple(back), gone=tuple(gone), why=_GPU_GONE))

    def moved(self, word: Moved) -> None:
        """Slots came or are gone, and who trains there with them."""
        gone = set(word.gone)
        if gone or word.came:
            self._slots = sorted({*self._slots, *word.came} - gone)
            self._tell_slots()
        for life in self._staff.lives.values():
            if life.cause is None and not gone.isdisjoint(life.slots):
                life.cause, life.note = e.Cause.LOST, word.why
                self._staff.end(life)

    def _keep_looking(self) -> None:
        self._look_at_gpus()
        self._clock.after(self._patience.look_s, self._keep_looking)

    def _spread_best(self, source: Life) -> None:
        best = self._bests.of(source.id)
        assert best is not None
        for life in self._staff.lives.values():
            if life is not source and self._bests.together(life.id, source.id):
                life.tell_best(best)

    def _look_for_hanging(self) -> None:
        limit = self._patience.hang_s
        assert limit is not None
        for life in self._staff.lives.values():
            if life.cause is None and self.now - life.heard_at > limit:
                life.cause = e.Cause.FAILED
                life.note = f"it said nothing for {limit:g} s"
                self._staff.end(life)
        self._clock.after(limit / 4, self._look_for_hanging)

    # Decisions

    def _open_trial(self, decision: d.Open) -> None:
        self._configs.append(decision.config)
        self._bests.open(decision.group)

    def _launch(self, decision: d.Launch) -> None:
        self._bests.launch(decision)
        best = self._bests.of(decision.attempt)
        begins = list(self._briefing.of(decision, self._configs[decision.trial], best))
        log = self._shelf.log(decision.attempt)
        life = self._staff.hire(decision, begins, log)
        source = None if decision.source is None else (decision.source, decision.start)
        homes = [self._devices.away(slot) for slot in life.slots]
        self._transit.begin(life, homes, source)
        here = (begin for begin, away in zip(begins, homes, strict=True) if away is None)
        if source is not None and any(begin.awaits for begin in here):
            self._transit.fetch(decision.attempt, source)

    def _amend(self, decision: d.Amend) -> None:
        life = self._staff.lives.get(decision.attempt)
        if life is None or decision.version <= life.version:
            return
        life.version = decision.version
        life.goal = decision.goal
        life.save_at = decision.save_at
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
        life = self._staff.lives.get(decision.attempt)
        if life is not None and life.cause is None:
            life.cause = e.Cause.HALTED
            self._staff.end(life)

    def _wake_at(self, decision: d.WakeAt) -> None:
        woke = e.Woke(at=decision.at, trial=decision.trial)
        self._clock.at(decision.at, lambda: self._told.append(woke))

    def _drop(self, decision: d.Drop) -> None:
        for name in decision.checkpoints:
            self._transit.drop(name)

    def _provide(self, decision: d.Provide) -> None:
        # Whoever still stands on a slot that is given up makes it no free one.
        used = {slot for life in self._staff.lives.values() for slot in life.slots}
        used |= {*self._slots, *self._devices.missing()}
        more = self._devices.more(used, decision.slots)
        self._slots += more
        self._staff.prepare(len(more))
        self._tell_slots()

    def _tell_slots(self) -> None:
        self._told.append(self._capacity(self._clock.strike()))

    def _capacity(self, at: float) -> e.CapacityChanged:
        slots = tuple(self._slots)
        return e.CapacityChanged(at=at, slots=slots, nodes=self._devices.nodes(slots))

    def _retire(self, decision: d.Retire) -> None:
        self._slots = [slot for slot in self._slots if slot not in decision.slots]
        self._devices.less(decision.slots)

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
