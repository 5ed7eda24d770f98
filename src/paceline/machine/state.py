"""The study's state: a fold of its log, changed by `apply(entry)` and by nothing else.

Knows everything the log says and nothing more: two states that have taken the same entries are
equal. Brains read it through the views of `core.ports`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.errors import LogError
from paceline.core.values import NO_LOSS, Status, StudySpec, TrialId, loss_of
from paceline.machine.assignment import Rides
from paceline.machine.calibration import Foresight
from paceline.machine.checkpoints import File, Files
from paceline.machine.groups import Groups
from paceline.machine.pending import Questions
from paceline.machine.requirements import beyond, ends_for_width
from paceline.machine.reuse import Adoptions
from paceline.machine.slots import Slots
from paceline.machine.timing import Meter, Paces
from paceline.machine.trial_state import Attempt, Trial
from paceline.plan.settings import stretches
from paceline.plan.tree import Tree, node_of, shared_until

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from paceline.core.decisions import Entry


class StudyState:
    """All that is known of a study. Give it entries; read the rest."""

    spec: StudySpec
    tree: Tree[Trial, Attempt]

    def __init__(self) -> None:
        self.now = 0.0
        # The number of the next entry.
        self.number = 0
        self.trials: list[Trial] = []
        self.live = 0
        self.attempts: dict[int, Attempt] = {}
        self.launches = 0
        self.slots = Slots()
        self.delivered: Sequence[Trial] = ()
        self.departed: Sequence[Trial] = ()
        # The trial that the last forecast, wake or failure was about; None where it came unasked.
        self.subject: Trial | None = None
        # Set by the machine before it asks the policy who is next; no part of the fold.
        self.new = False
        self.questions = Questions()
        self.foresight = Foresight()
        # Configs taken from the generator; forked trials take none.
        self.taken = 0
        self.inbox = 0
        self.best: Trial | None = None
        self.best_loss = NO_LOSS
        self.best_epoch = 0
        self.closed = False
        self.deadline_s: float | None = None
        self.end: d.End | None = None
        # Epochs executed; reports seen by trials (more than that where prefixes are shared);
        # epochs trained again after a crash, and those of them that gave another number;
        # reports that came late, twice or out of order.
        self.epochs_trained = 0
        self.reports = 0
        self.repeats = 0
        self.mismatches = 0
        self.strays = 0
        # Trials opened in a row that needed no training, because all was known.
        self.idle_opens = 0
        # The least width at which every trial whose memory was measured has room.
        self.least = 0.0
        self.meter = Meter()
        self.files = Files()
        self.adopted = Adoptions()
        self.paces = Paces()
        self.rides = Rides(self.paces)
        # Whether trials may have other widths than one slot; what trials on the move go on with.
        self.elastic = False
        self.moving: dict[TrialId, float] = {}
        # What is known of each of several studies driven as one; None where there is one alone.
        self.groups: Groups | None = None
        self._sign, self._metric = 1.0, ""

    @property
    def ready(self) -> Collection[TrialId]:
        return self.rides.ready

    @property
    def running(self) -> int:
        return len(self.attempts)

    @property
    def capacity(self) -> int:
        return self.slots.capacity

    @property
    def free(self) -> float:
        return self.slots.free

    @property
    def slot_seconds(self) -> float:
        """Slot time used so far, running attempts included."""
        return self.meter.used(self.now)

    @property
    def capacity_seconds(self) -> float:
        """Slot time there was so far, used or not."""
        return self.meter.offered(self.slots.capacity, self.now)

    def apply(self, entry: Entry) -> None:
        """Take one entry."""
        self.delivered = self.departed = ()
        _FOLD[type(entry)](self, entry)
        self.number += 1
        if self.groups is not None:
            self.groups.take(entry, self)

    # Events

    def _opened(self, event: e.Opened) -> None:
        if self.number:
            raise LogError("a log was opened twice: its second Opened is not its first entry.")
        self.spec = event.spec
        self.tree = Tree(event.spec.epochs)
        self.deadline_s = event.spec.budget.deadline_s
        self._sign = event.spec.sign
        self._metric = event.spec.metric
        self.elastic = event.spec.span > 1 or event.spec.pack > 1
        self.groups = Groups(self) if event.spec.groups else None

    def _resumed(self, event: e.Resumed) -> None:
        self._tick(event.at)
        if event.deadline_s is not None:
            self.deadline_s = event.deadline_s
        self.files.suspect_all()

    def _tick(self, at: float) -> None:
        if at > self.now:
            self.now = at

    def _reported(self, event: e.Reported) -> None:
        if event.at > self.now:
            self.now = event.at
        attempt = self.attempts.get(event.attempt)
        epoch = event.epoch
        if attempt is None or epoch != attempt.epoch + 1 or self.end is not None:
            self.strays += 1
            return
        leaf = attempt.trial.leaf
        if epoch > leaf.end or (attempt.turns and attempt.strayed(epoch, event.version)):
            self.strays += 1
            return
        attempt.epoch = epoch
        if event.memory and not attempt.trial.needs:
            self.least = max(self.least, attempt.trial.takes(event.memory))
        self.epochs_trained += 1
        if self.elastic:
            self.paces.reported(attempt, event, self.slots.share(attempt.slots, attempt.width))
        node = leaf if epoch > leaf.start else node_of(leaf, epoch)
        loss = loss_of(event.metrics.get(self._metric), self._sign)
        at = epoch - node.start - 1
        if at == len(node.losses):
            node.learn(loss, event.seconds, event.metrics)
            wanted = node.wanted
            if len(wanted) != 1:
                wanted = tuple(t for t in wanted if t.epoch == epoch - 1 and t.goal >= epoch)
            elif wanted[0].epoch != epoch - 1 or wanted[0].goal < epoch:
                wanted = ()
            for trial in wanted:
                self._deliver(trial, epoch, loss)
            self.delivered = wanted
        else:
            self.repeats += 1
            self.mismatches += node.losses[at] != loss
        if self.rides.branched or leaf.parent is not None:
            self.rides.passed(attempt, node, event)

    def _deliver(self, trial: Trial, epoch: int, loss: float) -> None:
        self.reports += 1
        trial.epoch = epoch
        trial.loss = loss
        if trial.forecast is not None:
            self.foresight.reached(trial.id, epoch, loss)
        if loss < trial.best_loss:
            trial.best_loss = loss
            trial.best_epoch = epoch
            if loss < self.best_loss:
                if self.best is not None and self.spec.saves.collect:
                    self.files.suspect(self.best)
                self.best, self.best_loss, self.best_epoch = trial, loss, epoch
        if epoch == trial.leaf.end:
            self._over(trial, Status.FINISHED)
        elif epoch == trial.goal:
            self.rides.forget(trial)

    def _saved(self, event: e.Saved) -> None:
        self._tick(event.at)
        attempt = self.attempts.get(event.attempt)
        if attempt is None or not attempt.start <= event.epoch <= attempt.epoch:
            return
        if self.slots.nodes:
            self.files.homes[attempt.id] = self.slots.nodes.get(attempt.slots[0], "")
        file = File(event.bytes, event.digest, attempt.trial, attempt.width)
        self.files.add((attempt.id, event.epoch), file, collect=self.spec.saves.collect)
        self._settle_save(attempt, event.epoch)
        self.paces.saved(event.seconds)

    def _missed(self, event: e.Missed) -> None:
        self._tick(event.at)
        attempt = self.attempts.get(event.attempt)
        if attempt is not None:
            self._settle_save(attempt, event.epoch)

    def _spoiled(self, event: e.Spoiled) -> None:
        self._tick(event.at)
        attempt = self.attempts.get(event.attempt)
        if attempt is not None and attempt.source is not None:
            self.files.drop((attempt.source, attempt.start), attempt.trial)

    def _settle_save(self, attempt: Attempt, epoch: int) -> None:
        attempt.save_at = tuple(other for other in attempt.save_at if other != epoch)
        if attempt.trial.leaf.parent is not None:
            # It is past the branch now: nobody who leaves there may find it again.
            self.rides.station(attempt)
            self.rides.part(attempt)

    def _attempt_ended(self, event: e.Ended) -> None:
        self._tick(event.at)
        attempt = self.attempts.pop(event.attempt, None)
        self.subject = None
        if attempt is None:
            return
        self.slots.release(attempt.slots, attempt.width)
        self.paces.ended(attempt.id)
        self.meter.end(attempt.width, attempt.launched_at, self.now)
        self.subject = attempt.trial
        if event.cause is e.Cause.FAILED:
            attempt.trial.failures += 1
        elif event.cause is e.Cause.CROWDED:
            attempt.trial.takes(1.0)
        elif event.cause is e.Cause.FINISHED:
            lead = attempt.trial
            for trial in {lead.id: lead, **{other.id: other for other in attempt.members}}.values():
                if trial.alive and shared_until(trial.leaf, lead.leaf) > attempt.epoch:
                    self._over(trial, Status.FINISHED)
        self.rides.release(attempt)
        if event.cause is e.Cause.GOAL and ends_for_width(attempt) and not attempt.trial.attempt:
            self.moving[attempt.trial.id] = 0.0  # as wide as the allocator says
            self.paces.forget(attempt.trial.id)

    def _forecasted(self, event: e.Forecasted) -> None:
        self._tick(event.at)
        trial = self.questions.forecasted(event)
        self.subject = None if trial is None else self.trials[trial]
        if self.subject is not None and event.forecast is not None:
            self.subject.forecast = event.forecast
            self.foresight.given(self.subject.id, event.forecast, self.best_loss)

    def _woke(self, event: e.Woke) -> None:
        self._tick(event.at)
        trial = self.questions.woke(event)
        self.subject = None if trial is None else self.trials[trial]

    def _proposed(self, event: e.Proposed) -> None:
        self._tick(event.at)
        if not self.questions.proposed(event):
            self.closed = True

    def _capacity(self, event: e.CapacityChanged) -> None:
        self._tick(event.at)
        self.meter.offer(self.slots.capacity, self.now)
        self.slots.change(event.slots, event.nodes)

    def _commanded(self, event: e.Commanded) -> None:
        self._tick(event.at)
        self.inbox = max(self.inbox, event.number)

    def _adopted(self, event: e.Adopted) -> None:
        self._tick(event.at)
        if self.spec.share:
            self.adopted.take(event, self.tree, self.files, self.spec)

    # Decisions about trials

    def _open(self, decision: d.Open) -> None:
        if decision.trial != len(self.trials):
            raise LogError(f"trial {decision.trial} was opened out of turn.")
        spec = self.spec
        path = stretches(decision.config, spec.epochs) if spec.share else None
        leaf = self.tree.alone() if path is None else self.tree.insert(path)
        trial = Trial(decision.trial, decision.config, leaf, spec)
        trial.opened_at, trial.goal = self.now, decision.until
        trial.source, trial.needs = decision.source, decision.needs
        trial.group = decision.group
        self.trials.append(trial)
        self.live += 1
        if decision.source is None:
            self.taken += 1
            self.questions.opened(decision.group)
        self.rides.want(trial, decision.branch or 0)
        idle = trial.attempt is None and trial.id not in self.rides.ready
        self.idle_opens = self.idle_opens + 1 if idle or beyond(trial, self.capacity) else 0

    def _go(self, decision: d.Go) -> None:
        trial = self.trials[decision.trial]
        trial.goal = decision.until
        self.rides.want(trial, trial.epoch if decision.save else 0)

    def _cut(self, decision: d.Cut) -> None:
        trial = self.trials[decision.trial]
        self.rides.forget(trial)
        trial.goal = trial.epoch

    def _over(self, trial: Trial, how: Status) -> None:
        self.rides.forget(trial)
        trial.ended = how
        self.live -= 1
        self.departed = (*self.departed, trial)
        self.foresight.forget(trial.id)
        self.paces.forget(trial.id)
        self.moving.pop(trial.id, None)
        if self.spec.saves.collect:
            self.files.suspect(trial)

    def _credit(self, decision: d.Credit) -> None:
        trial = self.trials[decision.trial]
        node = node_of(trial.leaf, decision.epoch)
        self._deliver(trial, decision.epoch, node.losses[decision.epoch - node.start - 1])
        self.delivered = (trial,)

    def _close(self, decision: d.Close) -> None:
        self.closed = True
        self.files.suspect_all()  # nobody comes any more who might have branched there

    # Decisions about attempts

    def _launch(self, decision: d.Launch) -> None:
        if decision.attempt != self.launches:
            raise LogError(f"attempt {decision.attempt} was launched out of turn.")
        self.launches += 1
        self.moving.pop(decision.trial, None)
        attempt = Attempt.launched(decision, self.trials[decision.trial], self.now)
        self.attempts[attempt.id] = attempt
        self.slots.take(decision.slots, decision.width)
        self.meter.start(decision.width, self.now)
        self.rides.board(attempt)

    def _amend(self, decision: d.Amend) -> None:
        attempt = self.attempts[decision.attempt]
        attempt.version = decision.version
        # Leave the old path before following the new one: they part below this point.
        attempt.goal, attempt.save_at = decision.goal, decision.save_at
        trial = self.trials[decision.trial]
        if trial is not attempt.trial:
            self.rides.follow(attempt, trial)
        elif trial.leaf.parent is not None:
            self.rides.station(attempt)
        self.rides.part(attempt)

    def _halt(self, decision: d.Halt) -> None:
        attempt = self.attempts[decision.attempt]
        attempt.halting = True
        self.rides.release(attempt)

    def _retire(self, decision: d.Retire) -> None:
        self.meter.offer(self.slots.capacity, self.now)
        self.slots.retire(decision.slots)
        for attempt in self.attempts.values():
            if not set(attempt.slots).isdisjoint(decision.slots):
                self._yield(attempt)

    def _resize(self, decision: d.Resize) -> None:
        attempt = self.attempts[decision.attempt]
        self.moving[attempt.trial.id] = decision.width
        self._yield(attempt)

    def _yield(self, attempt: Attempt) -> None:
        attempt.yielding = True
        self.rides.touched[attempt.id] = attempt

    # What was asked from outside

    def _ask_forecast(self, decision: d.AskForecast) -> None:
        self.questions.ask_forecast(decision)
        self.trials[decision.trial].asked = decision.epoch

    def _ended(self, decision: d.End) -> None:
        self.end = decision


def _nothing(state: StudyState, decision: d.AnyDecision) -> None:
    """Change nothing."""


_FOLD: dict[type, Callable[[StudyState, Any], None]] = {
    e.Opened: StudyState._opened,
    e.Resumed: StudyState._resumed,
    e.Reported: StudyState._reported,
    e.Saved: StudyState._saved,
    e.Missed: StudyState._missed,
    e.Spoiled: StudyState._spoiled,
    e.Ended: StudyState._attempt_ended,
    e.Forecasted: StudyState._forecasted,
    e.Proposed: StudyState._proposed,
    e.CapacityChanged: StudyState._capacity,
    e.Woke: StudyState._woke,
    e.Commanded: StudyState._commanded,
    e.Submitted: lambda state, event: state._tick(event.at),
    e.Adopted: StudyState._adopted,
    e.Recalled: lambda state, event: state._tick(event.at),  # for the generator alone
    d.Open: StudyState._open,
    d.Go: StudyState._go,
    d.Pause: _nothing,  # the trial stands at its goal, and the log keeps the reason
    d.Cut: StudyState._cut,
    d.Stop: lambda state, stop: state._over(state.trials[stop.trial], Status.STOPPED),
    d.Fail: lambda state, fail: state._over(state.trials[fail.trial], Status.FAILED),
    d.Credit: StudyState._credit,
    d.Close: StudyState._close,
    d.Launch: StudyState._launch,
    d.Amend: StudyState._amend,
    d.Halt: StudyState._halt,
    d.Drop: lambda state, drop: state.files.drop_all(drop.checkpoints),
    d.Resize: StudyState._resize,
    d.Retire: StudyState._retire,
    d.AskForecast: StudyState._ask_forecast,
    d.AskProposal: lambda state, ask: state.questions.ask_proposal(ask),
    d.WakeAt: lambda state, ask: state.questions.ask_wake(ask),
    d.Provide: _nothing,  # CapacityChanged answers
    d.Leave: _nothing,  # the groups' own fold takes it
    d.End: StudyState._ended,
}
