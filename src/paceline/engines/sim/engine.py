"""The simulator's engine: a cluster in virtual time; the same decisions give the same events.

Knows virtual time and which attempt is due next. The only clock is the heap of due times; events of
one instant are returned in the order in which they became due.
"""

from __future__ import annotations

import math
from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.errors import LogError
from paceline.core.ports import Crash
from paceline.plan.cadence import is_save_due, list_likely_branches
from paceline.plan.settings import is_constant, setting_at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.decisions import Launch, Step
    from paceline.core.ports import Advisor, Workload
    from paceline.core.values import AttemptId, Config, SlotId, TrialId
    from paceline.core.views import EngineView
    from paceline.engines.sim.cluster import Cluster


# The phase of an attempt. Plain numbers: they are compared at every epoch of every attempt.
TRAINING, REPORTED, SAVING, SAVED, ENDED = range(5)


class WorkerKill(NamedTuple):
    """The worker that trains this trial is killed now, if there is one."""

    trial: TrialId


class SimulatedAttempt:
    """One attempt: its phase, and when the phase ends."""

    __slots__ = (
        "began",
        "branches",
        "config",
        "constant",
        "epoch",
        "fails_at",
        "fixed",
        "goal",
        "has_saved",
        "id",
        "is_best",
        "is_nominal",
        "last",
        "outcome",
        "pending",
        "phase",
        "rate",
        "save_at",
        "saved_at",
        "since",
        "slots",
        "state",
        "ticket",
        "trial",
        "version",
        "version_begun",
        "width",
        "work",
    )

    def __init__(self, launch: Launch, config: Config, state: object) -> None:
        self.id = launch.attempt
        self.trial = launch.trial
        self.state = state
        self.epoch = launch.start
        self.goal = launch.goal
        self.save_at = launch.save_at
        self.slots = launch.slots
        self.width = launch.width
        # The version of its order, and the version that its epoch was begun with.
        self.version = self.version_begun = 0
        self.phase = TRAINING
        # The number of its entry in the heap; -1: it has none.
        self.ticket = -1
        # The phase: seconds that no rate changes, then the work in seconds at rate 1; its start,
        # and the rate.
        self.fixed = 0.0
        self.work = 0.0
        self.since = 0.0
        self.rate = 1.0
        # Whether the whole epoch was trained at rate 1.
        self.is_nominal = True
        # Whether its last report is the best of its study.
        self.is_best = False
        # An order that it has not read: it trains on while its report is judged.
        self.pending: tuple[d.Amend, Config] | None = None
        # The start of the epoch, and the time of the last save.
        self.began = 0.0
        self.saved_at = 0.0
        self.has_saved = False
        self.fails_at: float | None = None
        self.outcome: Any = None
        # The training function has returned.
        self.last = False
        self.follow(config)

    def follow(self, config: Config) -> None:
        """Follow the path of this config."""
        self.config = config
        self.constant = is_constant(config)
        self.branches: Sequence[int] | None = None

    @property
    def sent_version(self) -> int:
        """The version of the order that it was sent last."""
        return self.version if self.pending is None else self.pending[0].version

    def is_save_due(self, every: float, now: float) -> bool:
        """Say whether the time since the last save calls for another one."""
        if self.branches is None:
            self.branches = list_likely_branches(self.config, max(self.goal, self.epoch))
        return is_save_due(now - self.saved_at, every, self.epoch, now - self.began, self.branches)


class SimEngine:
    """Carries decisions out in virtual time."""

    def __init__(
        self, workload: Workload, cluster: Cluster, advisor: Advisor | None = None
    ) -> None:
        self._workload = workload
        self._cluster = cluster
        self._live = cluster.live
        self._save_every_s = cluster.save_every_s
        # Whether attempts save where no order says so.
        self._saves_early = cluster.live or cluster.save_every_s is not None
        self._advisor = advisor
        self.now = 0.0
        self._applied = -1
        self._attempts: dict[AttemptId, SimulatedAttempt] = {}
        self._checkpoints: dict[tuple[AttemptId, int], object] = {}
        # The node that each attempt saved on, if starting on another one costs time.
        self._nodes: dict[AttemptId, str] = {}
        self._slots = list(range(cluster.slots))
        self._sharing: dict[SlotId, list[SimulatedAttempt]] = {}
        # (when, number, item): numbers make ties first-in first-out. An item is an attempt, an
        # event, a new number of slots, or a worker to kill.
        self._heap: list[tuple[float, int, Any]] = []
        self._numbers = 0
        # Events of this instant that were not returned yet.
        self._events: deque[e.AnyEvent] = deque([self._capacity()])
        # The attempt that has just reported or saved: it continues at the next `wait`, when the
        # decisions are known.
        self._deciding: SimulatedAttempt | None = None
        # The best loss of each study so far.
        self._best: dict[int, float] = {}
        # Answers in a log that is replayed, by request.
        self._answers: dict[object, e.AnyEvent] = {}
        for at, count in cluster.capacity:
            self._push(at, count)
        for at, trial in cluster.faults.kills:
            self._push(at, WorkerKill(trial))

    # The port

    def wait(self, timeout_s: float | None = None) -> Sequence[e.AnyEvent] | None:
        """Return the next events; None: there are none. Virtual time needs no timeout."""
        attempt = self._deciding
        if attempt is not None:
            self._deciding = None
            self._continue(attempt)
        if self._events:
            return (self._pop_event(),)
        heap = self._heap
        while heap:
            at, number, what = heappop(heap)
            if type(what) is SimulatedAttempt:
                if what.ticket != number:
                    continue
                what.ticket = -1
                self.now = at
                return (self._make_event(what),)
            self.now = at
            if type(what) is int:
                self._change_capacity(what)
                return (self._events.popleft(),)
            if type(what) is WorkerKill:
                killed = self._find_attempt(what.trial)
                if killed is None:
                    continue
                # As in life: on a shared slot the memory may have run out.
                cause = e.Cause.CROWDED if killed.width < 1.0 else e.Cause.FAILED
                return (self._end(killed, cause, "simulated kill"),)
            return (what,)
        return None

    def apply(self, step: Step, study: EngineView) -> None:
        """Carry a step's decisions out, once."""
        number = step.number
        if number <= self._applied:
            return
        self._applied = number
        if self._live and type(step.event) is e.Reported:
            self._note_best(step.event.attempt, study)
        for decision in step.decisions:
            act = _ACT.get(type(decision))
            if act is not None:
                act(self, decision, study)

    def _note_best(self, number: AttemptId, study: EngineView) -> None:
        attempt = self._attempts.get(number)
        if attempt is not None:
            group, best = study.group(attempt.trial), study.best_loss_for(attempt.trial)
            attempt.is_best = best < self._best.get(group, math.inf)
            self._best[group] = best

    def close(self) -> None:
        """Forget all attempts."""
        self._attempts.clear()
        self._heap.clear()
        self._events.clear()
        self._deciding = None

    def expect(self, log: Sequence[Step]) -> None:
        """Take the answers of a log that will be replayed, so that they are not computed again."""
        self._answers = {
            _request_key(step.event): step.event
            for step in log
            if isinstance(step.event, e.Forecasted | e.Proposed)
        }

    def replay(self, step: Step, study: EngineView) -> None:
        """Simulate a step of the log again; raise LogError if the simulation differs."""
        if not isinstance(step.event, _OUTSIDE):
            (event,) = self.wait() or (None,)
            if event != step.event:
                raise LogError(
                    f"entry {step.number} of the log is {step.event}, but the simulation gives "
                    f"{event}: the log was made from another trace, or with other costs."
                )
        self.apply(step, study)

    # Time

    def _make_event(self, attempt: SimulatedAttempt) -> e.AnyEvent:
        """Return the event of an attempt that is due."""
        now = self.now
        if attempt.fails_at is not None and now >= attempt.fails_at:
            return self._end(attempt, e.Cause.FAILED, "simulated failure")
        if attempt.phase == SAVING:
            event = self._saved(attempt)
            self._deciding = attempt
            return event
        outcome = attempt.outcome
        if type(outcome) is Crash:
            cause = e.Cause.FINISHED if outcome.over else e.Cause.FAILED
            return self._end(attempt, cause, outcome.note)
        attempt.epoch = epoch = attempt.epoch + 1
        attempt.state = outcome.state
        attempt.last = outcome.last
        attempt.phase = REPORTED
        self._deciding = attempt
        return e.Reported(
            at=now,
            attempt=attempt.id,
            epoch=epoch,
            metrics=outcome.metrics,
            seconds=outcome.seconds if attempt.is_nominal else now - attempt.began,
            version=None if attempt.version_begun == attempt.version else attempt.version_begun,
        )

    def _continue(self, attempt: SimulatedAttempt) -> None:
        """Continue an attempt after its report or save, now that the decisions are known."""
        phase, epoch = attempt.phase, attempt.epoch
        if phase == ENDED:
            return
        pending = attempt.pending
        if pending is not None and phase == SAVED and epoch >= min(attempt.goal, pending[0].goal):
            self._read_order(attempt)  # it waits at its goal, or is ended where it has saved
        done = attempt.last or epoch >= attempt.goal
        if phase == REPORTED and (
            done or epoch in attempt.save_at or (self._saves_early and self._is_save_due(attempt))
        ):
            if self._cluster.save_s > 0.0:
                attempt.phase = SAVING
                self._schedule(attempt, 0.0, self._cluster.save_s)
            else:
                self._events.append(self._saved(attempt))
            return
        if done:
            cause = e.Cause.FINISHED if attempt.last else e.Cause.GOAL
            self._events.append(self._end(attempt, cause))
        else:
            self._train(attempt, 0.0)

    def _is_save_due(self, attempt: SimulatedAttempt) -> bool:
        every = self._save_every_s
        if self._live and not attempt.has_saved:
            every = 0.0  # a worker saves once to learn what a save costs
        return attempt.is_best or (every is not None and attempt.is_save_due(every, self.now))

    def _train(self, attempt: SimulatedAttempt, delay: float) -> None:
        """Begin the next epoch after a delay."""
        setting = attempt.config
        if not attempt.constant:
            setting = setting_at(setting, attempt.epoch)
        outcome = self._workload.advance(attempt.state, setting)
        attempt.outcome = outcome
        attempt.phase = TRAINING
        attempt.version_begun = attempt.version
        attempt.began = self.now + delay
        attempt.is_nominal = attempt.rate == 1.0
        attempt.is_best = False
        self._schedule(attempt, outcome.seconds, delay)
        if attempt.pending is not None:
            self._read_order(attempt)

    def _schedule(self, attempt: SimulatedAttempt, work: float, fixed: float = 0.0) -> None:
        """Make an attempt due after seconds that no speed changes, and after its training."""
        attempt.work, attempt.fixed = work, fixed
        attempt.since = now = self.now
        rate, fails_at = attempt.rate, attempt.fails_at
        due = now + (work + fixed if rate == 1.0 else work / rate + fixed)
        if fails_at is not None and fails_at < due:
            due = fails_at
        attempt.ticket = number = self._numbers
        self._numbers = number + 1
        heappush(self._heap, (due, number, attempt))

    def _saved(self, attempt: SimulatedAttempt) -> e.Saved | e.Missed:
        attempt.phase = SAVED
        attempt.saved_at = self.now
        attempt.has_saved = True
        if self._cluster.faults.fails_save(attempt.id, attempt.epoch):
            note = "simulated failure"
            return e.Missed(at=self.now, attempt=attempt.id, epoch=attempt.epoch, note=note)
        self._checkpoints[attempt.id, attempt.epoch] = attempt.state
        if self._cluster.fetch_s:
            self._nodes[attempt.id] = self._cluster.find_node(attempt.slots[0])
        return e.Saved(
            at=self.now, attempt=attempt.id, epoch=attempt.epoch, seconds=self._cluster.save_s
        )

    def _end(self, attempt: SimulatedAttempt, cause: e.Cause, note: str = "") -> e.Ended:
        attempt.phase = ENDED
        attempt.ticket = -1
        del self._attempts[attempt.id]
        if attempt.width < 1.0:
            (slot,) = attempt.slots
            self._sharing[slot].remove(attempt)
            self._adjust_speed(slot)
        return e.Ended(at=self.now, attempt=attempt.id, cause=cause, note=note)

    def _find_attempt(self, trial: TrialId) -> SimulatedAttempt | None:
        return next((each for each in self._attempts.values() if each.trial == trial), None)

    def _pop_event(self) -> e.AnyEvent:
        event = self._events.popleft()
        # An attempt that saved, or failed to, continues once the decisions are known.
        if type(event) is e.Saved or type(event) is e.Missed:
            attempt = self._attempts.get(event.attempt)
            if attempt is not None and attempt.phase == SAVED and attempt.epoch == event.epoch:
                self._deciding = attempt
        return event

    def _push(self, at: float, what: object) -> None:
        heappush(self._heap, (at, self._numbers, what))
        self._numbers += 1

    # Decisions

    def _launch(self, decision: d.Launch, study: EngineView) -> None:
        cluster = self._cluster
        config = study.config(decision.trial)
        if decision.source is None:
            state = self._workload.begin(config)
        else:
            state = self._checkpoints[decision.source, decision.start]
        delay = cluster.setup_s
        if delay is None:
            delay = self._workload.setup_s(state) or 0.0
        if decision.source is not None:
            delay += cluster.restore_s
            if self._nodes.get(decision.source, "") != cluster.find_node(decision.slots[0]):
                delay += cluster.fetch_s
        attempt = SimulatedAttempt(decision, config, state)
        attempt.saved_at = self.now + delay  # before that there is nothing to save
        fails_after = cluster.faults.draw_failure(attempt.id)
        attempt.fails_at = None if fails_after is None else self.now + fails_after
        self._attempts[attempt.id] = attempt
        if attempt.width > 1.0:
            attempt.rate = cluster.speed.of(attempt.width)
        elif attempt.width < 1.0:
            (slot,) = attempt.slots
            self._sharing.setdefault(slot, []).append(attempt)
            self._adjust_speed(slot)
        self._train(attempt, delay)

    def _amend(self, decision: d.Amend, study: EngineView) -> None:
        attempt = self._attempts.get(decision.attempt)
        if attempt is None or decision.version <= attempt.sent_version:
            return
        attempt.pending = decision, study.config(decision.trial)
        if attempt.phase == TRAINING or not self._live:
            self._read_order(attempt)

    def _read_order(self, attempt: SimulatedAttempt) -> None:
        """Put the order that an attempt was sent last in force."""
        if attempt.pending is None:
            return
        (decision, config), attempt.pending = attempt.pending, None
        attempt.version = decision.version
        attempt.trial = decision.trial
        attempt.goal = decision.goal
        attempt.save_at = decision.save_at
        if config is attempt.config:
            attempt.branches = None  # they depend on the goal
        else:
            attempt.follow(config)
        for epoch in decision.save_at:
            at_its_end = attempt.epoch == epoch and attempt.phase in (REPORTED, SAVING, SAVED)
            if epoch <= attempt.epoch and not at_its_end:
                self._events.append(e.Missed(at=self.now, attempt=attempt.id, epoch=epoch))

    def _halt(self, decision: d.Halt, study: EngineView) -> None:
        attempt = self._attempts.get(decision.attempt)
        if attempt is not None:
            self._events.append(self._end(attempt, e.Cause.HALTED))

    def _wake_at(self, decision: d.WakeAt, study: EngineView) -> None:
        at = max(decision.at, self.now)
        # The event has the requested time, late or not.
        self._push(at, e.Woke(at=decision.at, trial=decision.trial))

    def _ask_forecast(self, decision: d.AskForecast, study: EngineView) -> None:
        self._ask((decision.trial, decision.epoch), decision, self._cluster.forecast_s)

    def _ask_proposal(self, decision: d.AskProposal, study: EngineView) -> None:
        request = ("proposal", decision.group, decision.number)
        self._ask(request, decision, self._cluster.proposal_s)

    def _ask(self, request: object, ask: d.AskForecast | d.AskProposal, cost: float) -> None:
        at = self.now + cost
        answer = self._answers.get(request)
        if answer is None:
            if self._advisor is None:
                raise LogError("this simulation has no advisor for forecasts and proposals.")
            answer = replace(self._advisor.answer(ask)(), at=at)
        self._push(at, answer)

    def _provide(self, decision: d.Provide, study: EngineView) -> None:
        self._change_capacity(len(self._slots) + decision.slots)

    def _retire(self, decision: d.Retire, study: EngineView) -> None:
        self._slots = [slot for slot in self._slots if slot not in decision.slots]

    # Slots

    def _change_capacity(self, count: int) -> None:
        gone = self._slots[count:]
        fresh = max(self._slots, default=-1) + 1
        more = range(fresh, fresh + count - len(self._slots))
        self._slots = [*self._slots[:count], *more]
        self._events.append(self._capacity())
        for attempt in list(self._attempts.values()):
            if not set(attempt.slots).isdisjoint(gone):
                self._events.append(self._end(attempt, e.Cause.LOST, "its slot is gone"))

    def _capacity(self) -> e.CapacityChanged:
        nodes = tuple(filter(None, map(self._cluster.find_node, self._slots)))
        return e.CapacityChanged(at=self.now, slots=(*self._slots,), nodes=nodes)

    def _adjust_speed(self, slot: SlotId) -> None:
        """Set the speed of the attempts on a shared slot by their number."""
        sharing = self._sharing[slot]
        rate = self._cluster.speed.shared(len(sharing)) if sharing else 1.0
        for attempt in sharing:
            if attempt.rate != rate:
                spent = self.now - attempt.since
                fixed = max(attempt.fixed - spent, 0.0)
                work = attempt.work - max(spent - attempt.fixed, 0.0) * attempt.rate
                attempt.rate = rate
                if attempt.ticket >= 0:
                    attempt.is_nominal = False
                    self._schedule(attempt, work, fixed)


def _request_key(event: e.Forecasted | e.Proposed) -> object:
    if isinstance(event, e.Forecasted):
        return event.trial, event.epoch
    return "proposal", event.group, event.number


# Events that a simulation does not produce: a replay takes them from the log.
_OUTSIDE = (e.Opened, e.Resumed, e.Extended, e.DeadlineChanged, e.Commanded, e.Adopted, e.Recalled)

_ACT: dict[type, Callable[[SimEngine, Any, EngineView], None]] = {
    d.Launch: SimEngine._launch,
    d.Amend: SimEngine._amend,
    d.Halt: SimEngine._halt,
    d.WakeAt: SimEngine._wake_at,
    d.AskForecast: SimEngine._ask_forecast,
    d.AskProposal: SimEngine._ask_proposal,
    d.Provide: SimEngine._provide,
    d.Retire: SimEngine._retire,
}
