"""A cluster that exists only in arithmetic: the same decisions always meet the same facts.

Knows virtual time and what becomes due for whom. The only clock is the heap of what is due next;
what happens at one instant is told in the order in which it became due.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.errors import LogError
from paceline.core.ports import Crash
from paceline.plan.cadence import due, likely_branches
from paceline.plan.settings import constant, setting_at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.decisions import Launch, Step
    from paceline.core.ports import Adviser, Workload
    from paceline.core.values import AttemptId, Config, SlotId
    from paceline.engines.sim.cluster import Cluster


# What a life is doing. Plain numbers: they are compared at every epoch of every attempt.
TRAINING, REPORTED, SAVING, SAVED, GONE = range(5)


class Life:
    """One attempt: what it does now, and when that is done."""

    __slots__ = (
        "began",
        "branches",
        "config",
        "constant",
        "epoch",
        "fails_at",
        "goal",
        "id",
        "last",
        "outcome",
        "phase",
        "rate",
        "save_at",
        "saved_at",
        "since",
        "slots",
        "state",
        "ticket",
        "version",
        "width",
        "work",
    )

    def __init__(self, launch: Launch, config: Config, state: object) -> None:
        self.id = launch.attempt
        self.state = state
        self.epoch = launch.start
        self.goal = launch.goal
        self.save_at = launch.save_at
        self.slots = launch.slots
        self.width = launch.width
        self.version = 0
        self.phase = TRAINING
        # Which entry of the heap is this life's; -1 while it waits for nothing.
        self.ticket = -1
        # What is being done takes so much work, since then, at this rate.
        self.work = 0.0
        self.since = 0.0
        self.rate = 1.0
        # When the epoch began, and when the last save was.
        self.began = 0.0
        self.saved_at = 0.0
        self.fails_at: float | None = None
        self.outcome: Any = None
        # The training function has returned.
        self.last = False
        self.follow(config)

    def follow(self, config: Config) -> None:
        self.config = config
        self.constant = constant(config)
        self.branches: Sequence[int] | None = None

    def due(self, every: float, now: float) -> bool:
        """Say whether to save for safety's sake."""
        if self.branches is None:
            self.branches = likely_branches(self.config, max(self.goal, self.epoch))
        return due(now - self.saved_at, every, self.epoch, now - self.began, self.branches)


class SimEngine:
    """Carries decisions out in virtual time."""

    def __init__(
        self, workload: Workload, cluster: Cluster, adviser: Adviser | None = None
    ) -> None:
        self._workload = workload
        self._cluster = cluster
        self._adviser = adviser
        self.now = 0.0
        self._applied = -1
        self._configs: list[Config] = []
        self._lives: dict[AttemptId, Life] = {}
        self._checkpoints: dict[tuple[AttemptId, int], object] = {}
        # Where attempts that saved were, if it costs anything to begin elsewhere.
        self._nodes: dict[AttemptId, str] = {}
        self._slots = list(range(cluster.slots))
        self._residents: dict[SlotId, list[Life]] = {}
        # (when, number, what): numbers make ties first-in first-out. What: a life, or an event.
        self._heap: list[tuple[float, int, Any]] = []
        self._numbers = 0
        # What has happened at this instant and is not told yet.
        self._told: deque[e.AnyEvent] = deque([self._capacity()])
        # The life whose report or save was just told: it goes on when the answer is known.
        self._asking: Life | None = None
        # Answers that a replayed log already has.
        self._answers: dict[object, e.AnyEvent] = {}
        for at, count in cluster.capacity:
            self._push(at, count)

    # The port

    def wait(self, patience: float | None = None) -> Sequence[e.AnyEvent] | None:
        """Return what happens next; None, if nothing ever will. Virtual time needs no patience."""
        life = self._asking
        if life is not None:
            self._asking = None
            self._proceed(life)
        if self._told:
            return (self._tell(),)
        heap = self._heap
        while heap:
            at, number, what = heappop(heap)
            if type(what) is Life:
                if what.ticket != number:
                    continue
                what.ticket = -1
                self.now = at
                return (self._fire(what),)
            self.now = at
            if type(what) is int:
                self._change_capacity(what)
                return (self._told.popleft(),)
            return (what,)
        return None

    def apply(self, step: Step) -> None:
        """Carry a step's decisions out, once."""
        if step.number <= self._applied:
            return
        self._applied = step.number
        for decision in step.decisions:
            act = _ACT.get(type(decision))
            if act is not None:
                act(self, decision)

    def close(self) -> None:
        """Forget everything that runs."""
        self._lives.clear()
        self._heap.clear()
        self._told.clear()
        self._asking = None

    def expect(self, log: Sequence[Step]) -> None:
        """Take the answers that a log already has, so that nobody is asked again."""
        self._answers = {
            _question(step.event): step.event
            for step in log
            if isinstance(step.event, e.Forecasted | e.Proposed)
        }

    def replay(self, step: Step) -> None:
        """Live through a step of the log again."""
        if not isinstance(step.event, _FOREIGN):
            (event,) = self.wait() or (None,)
            if event != step.event:
                raise LogError(
                    f"entry {step.number} of the log is {step.event}, and the simulation gives "
                    f"{event}: it was made from another trace, or with other costs."
                )
        self.apply(step)

    # Time passing

    def _fire(self, life: Life) -> e.AnyEvent:
        """Tell what has become due for a life."""
        outcome = life.outcome
        if life.fails_at is not None and self.now >= life.fails_at:
            return self._gone(life, e.Cause.FAILED, "simulated failure")
        if life.phase == SAVING:
            event = self._saved(life)
            self._asking = life
            return event
        if type(outcome) is not Crash:
            life.epoch += 1
            life.state = outcome.state
            life.last = outcome.last
            life.phase = REPORTED
            self._asking = life
            plain = life.rate == 1.0
            return e.Reported(
                at=self.now,
                attempt=life.id,
                epoch=life.epoch,
                metrics=outcome.metrics,
                seconds=outcome.seconds if plain else self.now - life.began,
            )
        cause = e.Cause.FINISHED if outcome.over else e.Cause.FAILED
        return self._gone(life, cause, outcome.note)

    def _proceed(self, life: Life) -> None:
        """Go on after a report or a save, now that its consequences are known."""
        if life.phase == GONE:
            return
        done = life.last or life.epoch >= life.goal
        if life.phase == REPORTED:
            every = self._cluster.save_every_s
            due = every is not None and life.due(every, self.now)
            if done or due or life.epoch in life.save_at:
                if self._cluster.save_s > 0.0:
                    life.phase = SAVING
                    self._schedule(life, self._cluster.save_s)
                else:
                    self._told.append(self._saved(life))
                return
        if done:
            cause = e.Cause.FINISHED if life.last else e.Cause.GOAL
            self._told.append(self._gone(life, cause))
        else:
            self._train(life, 0.0)

    def _train(self, life: Life, delay: float) -> None:
        """Begin the next epoch, after what must come before it."""
        setting = life.config if life.constant else setting_at(life.config, life.epoch)
        outcome = self._workload.advance(life.state, setting)
        life.outcome = outcome
        life.phase = TRAINING
        life.began = self.now + delay
        # Starting is not sped up by more slots.
        self._schedule(life, delay * max(life.rate, 1.0) + outcome.seconds)

    def _schedule(self, life: Life, work: float) -> None:
        life.work = work
        life.since = now = self.now
        due = now + (work if life.rate == 1.0 else work / life.rate)
        if life.fails_at is not None and life.fails_at < due:
            due = life.fails_at
        life.ticket = number = self._numbers
        self._numbers = number + 1
        heappush(self._heap, (due, number, life))

    def _saved(self, life: Life) -> e.Saved:
        life.phase = SAVED
        life.saved_at = self.now
        self._checkpoints[life.id, life.epoch] = life.state
        if self._cluster.fetch_s:
            self._nodes[life.id] = self._cluster.node_of(life.slots[0])
        return e.Saved(at=self.now, attempt=life.id, epoch=life.epoch, seconds=self._cluster.save_s)

    def _gone(self, life: Life, cause: e.Cause, note: str = "") -> e.Ended:
        life.phase = GONE
        life.ticket = -1
        del self._lives[life.id]
        if life.width < 1.0:
            (slot,) = life.slots
            self._residents[slot].remove(life)
            self._repace(slot)
        return e.Ended(at=self.now, attempt=life.id, cause=cause, note=note)

    def _tell(self) -> e.AnyEvent:
        event = self._told.popleft()
        # Whoever has saved goes on once the consequences are known.
        if type(event) is e.Saved:
            self._asking = self._lives.get(event.attempt)
        return event

    def _push(self, at: float, what: object) -> None:
        heappush(self._heap, (at, self._numbers, what))
        self._numbers += 1

    # Decisions

    def _open(self, decision: d.Open) -> None:
        self._configs.append(decision.config)

    def _launch(self, decision: d.Launch) -> None:
        cluster = self._cluster
        config = self._configs[decision.trial]
        if decision.source is None:
            state = self._workload.begin(config)
        else:
            state = self._checkpoints[decision.source, decision.start]
        delay = cluster.setup_s
        if delay is None:
            delay = self._workload.setup_s(state) or 0.0
        if decision.source is not None:
            delay += cluster.restore_s
            if self._nodes.get(decision.source, "") != cluster.node_of(decision.slots[0]):
                delay += cluster.fetch_s
        life = Life(decision, config, state)
        life.saved_at = self.now + delay  # what is not trained yet cannot be lost
        life_s = cluster.faults.life_of(life.id)
        life.fails_at = None if life_s is None else self.now + life_s
        self._lives[life.id] = life
        if life.width > 1.0:
            life.rate = cluster.speed.of(life.width)
        elif life.width < 1.0:
            (slot,) = life.slots
            self._residents.setdefault(slot, []).append(life)
            self._repace(slot)
        self._train(life, delay)

    def _amend(self, decision: d.Amend) -> None:
        life = self._lives.get(decision.attempt)
        if life is None or decision.version <= life.version:
            return
        life.version = decision.version
        life.goal = decision.goal
        life.save_at = decision.save_at
        life.follow(self._configs[decision.trial])
        for epoch in decision.save_at:
            at_its_end = life.epoch == epoch and life.phase in (REPORTED, SAVING, SAVED)
            if epoch <= life.epoch and not at_its_end:
                self._told.append(e.Missed(at=self.now, attempt=life.id, epoch=epoch))

    def _halt(self, decision: d.Halt) -> None:
        life = self._lives.get(decision.attempt)
        if life is not None:
            self._told.append(self._gone(life, e.Cause.HALTED))

    def _wake_at(self, decision: d.WakeAt) -> None:
        at = max(decision.at, self.now)
        # The answer names the time that was asked for, late or not.
        self._push(at, e.Woke(at=decision.at, trial=decision.trial))

    def _ask_forecast(self, decision: d.AskForecast) -> None:
        self._ask((decision.trial, decision.epoch), decision, self._cluster.forecast_s)

    def _ask_proposal(self, decision: d.AskProposal) -> None:
        question = ("proposal", decision.group, decision.number)
        self._ask(question, decision, self._cluster.proposal_s)

    def _ask(self, question: object, ask: d.AskForecast | d.AskProposal, cost: float) -> None:
        at = self.now + cost
        answer = self._answers.get(question)
        if answer is None:
            if self._adviser is None:
                raise LogError("this simulation was asked for advice and has no adviser.")
            answer = replace(self._adviser.answer(ask)(), at=at)
        self._push(at, answer)

    def _provide(self, decision: d.Provide) -> None:
        self._change_capacity(len(self._slots) + decision.slots)

    def _retire(self, decision: d.Retire) -> None:
        self._slots = [slot for slot in self._slots if slot not in decision.slots]

    # Slots

    def _change_capacity(self, count: int) -> None:
        gone = self._slots[count:]
        fresh = max(self._slots, default=-1) + 1
        more = range(fresh, fresh + count - len(self._slots))
        self._slots = [*self._slots[:count], *more]
        self._told.append(self._capacity())
        for life in list(self._lives.values()):
            if not set(life.slots).isdisjoint(gone):
                self._told.append(self._gone(life, e.Cause.LOST, "its slot is gone"))

    def _capacity(self) -> e.CapacityChanged:
        nodes = tuple(filter(None, map(self._cluster.node_of, self._slots)))
        return e.CapacityChanged(at=self.now, slots=(*self._slots,), nodes=nodes)

    def _repace(self, slot: SlotId) -> None:
        """Let those who share a slot go at the speed that their number allows."""
        residents = self._residents[slot]
        rate = self._cluster.speed.shared(len(residents)) if residents else 1.0
        for life in residents:
            if life.rate != rate:
                left = life.work - (self.now - life.since) * life.rate
                life.rate = rate
                if life.ticket >= 0:
                    self._schedule(life, left)


def _question(event: e.Forecasted | e.Proposed) -> object:
    if isinstance(event, e.Forecasted):
        return event.trial, event.epoch
    return "proposal", event.group, event.number


# What the world outside a simulation says: it stands in the log and comes from nowhere else.
_FOREIGN = (e.Opened, e.Resumed, e.Commanded, e.Adopted, e.Recalled)

_ACT: dict[type, Callable[[SimEngine, Any], None]] = {
    d.Open: SimEngine._open,
    d.Launch: SimEngine._launch,
    d.Amend: SimEngine._amend,
    d.Halt: SimEngine._halt,
    d.WakeAt: SimEngine._wake_at,
    d.AskForecast: SimEngine._ask_forecast,
    d.AskProposal: SimEngine._ask_proposal,
    d.Provide: SimEngine._provide,
    d.Retire: SimEngine._retire,
}
