"""The study's state: a fold of its log, changed by `apply(entry)` only.

Knows everything the log says and nothing more: two states that have folded the same entries are
equal. Parts and engines read it through the views of `core.views`.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.errors import LogError
from paceline.core.values import NO_LOSS, Status, TrialId
from paceline.machine.assignment import Assignment
from paceline.machine.checkpoints import CheckpointIndex, CheckpointRecord
from paceline.machine.failures import DETERMINISTIC, Failure, make_failure
from paceline.machine.groups import Groups, GroupState
from paceline.machine.pending import PendingRequests
from paceline.machine.relaunches import Relaunches
from paceline.machine.requirements import (
    explain_unmet_needs,
    extend_needs,
    find_stage_end,
    is_ending_for_width,
)
from paceline.machine.reuse import ReusedPrefixes
from paceline.machine.sharers import Sharers
from paceline.machine.slots import Slots
from paceline.machine.timing import EpochTimes
from paceline.machine.trial_state import AttemptState, TrialState
from paceline.plan.tree import Tree, find_node, last_shared_epoch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from paceline.core.decisions import Entry
    from paceline.core.values import Config, Value
    from paceline.machine.checkpoints import CheckpointName


class StudyState(GroupState):
    """Everything known of a study. `apply` folds entries in; all else is read.

    A study that runs alone is its own only group; of several run as one this is the sum.
    """

    # Python finds attributes and methods faster in slots than in a dict of more than 30 names.
    __slots__ = (
        "_last_epochs", "_metric", "_sharers", "_sign", "assignment", "attempts", "checkpoints",
        "deadline_s", "delivered", "departed", "elastic", "end", "epoch_times", "errors", "inbox",
        "is_limited", "kept_s", "launches", "least_width", "mismatches", "moving", "now", "number",
        "pending", "ready", "relaunches", "reused", "slots", "strays", "subject", "together",
        "tree", "trials", "wanted_options",
    )  # fmt: skip

    now: float
    trials: list[TrialState]
    delivered: Sequence[TrialState]
    departed: Sequence[TrialState]
    ready: Collection[TrialId]
    pending: PendingRequests
    reused: ReusedPrefixes
    deadline_s: float | None
    end: d.End | None
    tree: Tree[TrialState, AttemptState]

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        # The number of the next entry.
        self.number = 0
        self.trials: list[TrialState] = []
        self.attempts: dict[int, AttemptState] = {}
        self.launches = 0
        self.slots = Slots()
        self.delivered = self.departed = ()
        # The trial that the last answer or ended attempt was about; None if it was not awaited.
        self.subject: TrialState | None = None
        self.pending = PendingRequests()
        self.inbox = 0
        # The options that a command asks to extend the study by; None: it is extended, or none did.
        self.wanted_options: dict[str, Value] | None = None
        self.deadline_s: float | None = None
        # How long before the time the user gave training ends, for the end of the driver.
        self.kept_s = 0.0
        self.end: d.End | None = None
        # Epochs trained again with another loss; reports that came late, twice or out of order.
        self.mismatches = self.strays = 0
        # How often each error that a retry cannot avoid has come, by its class and place.
        self.errors: dict[tuple[str, str], int] = {}
        # The smallest width whose memory suffices for every trial that was measured.
        self.least_width = 0.0
        self.checkpoints = CheckpointIndex()
        self.reused = ReusedPrefixes()
        self.epoch_times = EpochTimes()
        self.assignment = Assignment(self.epoch_times)
        self.ready = self.assignment.ready
        # Whether trials may have other widths than one slot; the next width of trials that move.
        self.elastic = False
        self.moving: dict[TrialId, float] = {}
        # How many attempts are on each shared slot, and since when.
        self._sharers = Sharers()
        # Attempts that ended at our order and were launched again with nothing in between.
        self.relaunches = Relaunches()
        # Whether time or slot time is limited, so that every event must be checked against it.
        self.is_limited = False
        # The studies that are run as one; None: this study runs alone.
        self.together: Groups | None = None
        self._sign, self._metric = 1.0, ""
        # The last epoch of a trial under each spec that the study has had; the first is in force.
        self._last_epochs: list[int] = []

    @property
    def groups(self) -> Sequence[GroupState]:
        """Each study: this one, or those that are run as one."""
        return (self,) if self.together is None else self.together

    def find_group(self, trial: TrialState) -> GroupState:
        """Return the study that a trial belongs to."""
        return self if self.together is None else self.together[trial.group]

    @property
    def running(self) -> int:
        return len(self.attempts) - (self.ending is not None)

    @property
    def capacity(self) -> int:
        return self.slots.capacity

    @property
    def free(self) -> float:
        return self.slots.free

    @property
    def slot_seconds(self) -> float:
        """Slot time used so far, running attempts included."""
        return self.slot_time.used(self.now)

    @property
    def capacity_seconds(self) -> float:
        """Slot time available so far, used or not."""
        return self.slot_time.offered(self.slots.capacity, self.now)

    # The view of engines

    def config(self, trial: TrialId) -> Config:
        return self.trials[trial].config

    def group(self, trial: TrialId) -> int:
        return self.trials[trial].group

    def best_loss_for(self, trial: TrialId) -> float:
        return self.find_group(self.trials[trial]).best_loss

    def checkpoint_digest(self, checkpoint: CheckpointName) -> str | None:
        digest = self.checkpoints.find_digest(checkpoint)
        # Without records a checkpoint that was saved without a digest cannot be told from others.
        return "" if digest is None and not self.spec.saves.collect else digest

    def apply(self, entry: Entry) -> None:
        """Fold one entry in."""
        self.delivered = self.departed = ()
        _FOLD[type(entry)](self, entry)
        self.number += 1
        if self.together is not None:
            self.together.take(entry, self.subject)

    # Events

    def _opened(self, event: e.Opened) -> None:
        if self.number:
            raise LogError("the log contains a second Opened: only its first entry may be one.")
        self.spec, self.tree = event.spec, Tree(event.spec.epochs)
        self._last_epochs = [spec.epochs for spec in (*event.earlier, event.spec)]
        self._sign, self._metric = event.spec.sign, event.spec.metric
        self.elastic = event.spec.span > 1 or event.spec.pack > 1
        self.deadline_s, slot_seconds = event.spec.budget.deadline_s, event.spec.budget.slot_seconds
        self.is_limited = self.deadline_s is not None or slot_seconds is not None
        self.assignment.branch_saves.begin(event.spec)
        if event.spec.groups:
            self.together = Groups(self, self.attempts, self.checkpoints)

    def _resumed(self, event: e.Resumed) -> None:
        self._tick(event.at)
        # A driver before this one may have changed the deadline for its own start and end.
        limit = self.spec.budget.deadline_s if event.deadline_s is None else event.deadline_s
        self._set_deadline(limit)
        self.checkpoints.recheck_all()

    def _extended(self, event: e.Extended) -> None:
        if event.spec != self.spec:
            raise LogError("the log of an extended study must be read with its newest spec.")
        self._tick(event.at)
        self._last_epochs = self._last_epochs[1:] or self._last_epochs
        limit = event.spec.budget.deadline_s
        self._set_deadline(limit if event.deadline_s is None else event.deadline_s)
        self.end = self.wanted_options = None
        self.closed, self.idle_opens = False, 0
        self.pending.forget_limits()
        self.checkpoints.recheck_all()

    def _deadline_changed(self, event: e.DeadlineChanged) -> None:
        self._tick(event.at)
        self._set_deadline(event.deadline_s, event.kept_s)

    def _set_deadline(self, deadline_s: float | None, kept_s: float = 0.0) -> None:
        if deadline_s != self.deadline_s:
            self.pending.forget_wake(self.deadline_s)
        self.deadline_s, self.kept_s = deadline_s, kept_s

    @property
    def return_s(self) -> float | None:
        """When the study has to be over, as the user has said, on its clock; None: any time."""
        deadline, kept = self.deadline_s, self.kept_s
        return deadline if deadline is None or not kept else deadline + kept

    def _tick(self, at: float, attempt: AttemptState | None = None) -> None:
        """Advance the time to that of an event, which may be about one attempt alone."""
        if at > self.now:
            self.now = at
        self.relaunches.record_event(attempt)

    def _reported(self, event: e.Reported) -> None:
        if event.at > self.now:
            self.now = event.at
        attempt = self.attempts.get(event.attempt)
        epoch = event.epoch
        if attempt is None or epoch != attempt.epoch + 1:
            self.strays += 1
            return
        lead = attempt.trial
        leaf = lead.leaf
        strayed = attempt.path_changes and attempt.has_strayed(epoch, event.version)
        if strayed or epoch > leaf.end or self.end is not None:
            self.strays += 1
            attempt.has_ignored_epochs = True
            return
        attempt.epoch = epoch
        self.relaunches.changes += 1
        attempt.own_events += 1
        if event.memory and not lead.needs:
            self.least_width = max(self.least_width, lead.record_memory(event.memory))
        self.epochs_trained += 1
        if self.elastic:
            self._record_epoch_time(attempt, event)
        node = leaf if epoch > leaf.start else find_node(leaf, epoch)
        value = event.metrics.get(self._metric)
        # As `to_loss`, in place, for speed.
        loss = self._sign * value if value is not None and isfinite(value) else NO_LOSS
        at = epoch - node.start - 1
        if at == len(node.losses):
            node.add_report(loss, event.seconds, event.metrics)
            wanted = node.wanted_by
            if wanted == (lead,) and lead.epoch == epoch - 1 and lead.goal >= epoch:
                self._deliver(lead, epoch, loss)  # by far the most common
            else:
                wanted = tuple(t for t in wanted if t.epoch == epoch - 1 and t.goal >= epoch)
                for trial in wanted:
                    self._deliver(trial, epoch, loss)
                self.relaunches.record_delivery(wanted, lead)
            self.delivered = wanted
        else:
            self.repeats += 1
            self.mismatches += node.losses[at] != loss
        if self.assignment.has_branches or leaf.parent is not None:
            self.assignment.record_epoch(attempt, node, event)
        if event.last:
            attempt.goal = epoch  # it ends by itself now
            self._finish_members(attempt)
        if epoch >= attempt.goal or attempt.ordered_at is not None:
            self.relaunches.record_order(attempt)

    def _record_epoch_time(self, attempt: AttemptState, event: e.Reported) -> None:
        mixed = attempt.width < 1.0 and self._sharers.have_changed(attempt.slots[0], event)
        width = self.slots.share(attempt.slots, attempt.width)
        self.epoch_times.record_epoch(attempt, event, width, mixed=mixed)

    def _suggested(self, event: e.Suggested) -> None:
        self._tick(event.at, self.attempts.get(event.attempt))
        if event.attempt in self.attempts:
            trial = self.trials[event.trial]
            trial.config, trial.domains = event.params, event.domains

    def _annotated(self, event: e.Annotated) -> None:
        self._tick(event.at, self.attempts.get(event.attempt))
        if event.attempt in self.attempts:
            trial = self.trials[event.trial]
            trial.attrs = {**trial.attrs, **event.attrs}

    def _deliver(self, trial: TrialState, epoch: int, loss: float) -> None:
        self.reports += 1
        trial.epoch = epoch
        trial.loss = loss
        if trial.forecast is not None:
            self.calibration.record_loss(trial.id, epoch, loss)
        if loss < trial.best_loss:
            trial.best_loss = loss
            trial.best_epoch = epoch
            if loss < self.best_loss:
                if self.best is not None and self.spec.saves.collect:
                    self.checkpoints.recheck(self.best)
                self.best, self.best_loss, self.best_epoch = trial, loss, epoch
        if epoch == trial.leaf.end:
            self._end_trial(trial, Status.FINISHED)
        elif epoch == trial.goal:
            self.assignment.withdraw(trial)

    def _saved(self, event: e.Saved) -> None:
        attempt = self.attempts.get(event.attempt)
        self._tick(event.at, attempt)
        if attempt is None or not attempt.start <= event.epoch <= attempt.epoch:
            return
        if self.slots.nodes:
            self.checkpoints.nodes[attempt.id] = self.slots.nodes.get(attempt.slots[0], "")
        record = CheckpointRecord(event.bytes, event.digest, attempt.trial, attempt.width)
        self.checkpoints.add((attempt.id, event.epoch), record, collect=self.spec.saves.collect)
        self._settle_save(attempt, event.epoch)
        self.epoch_times.record_save(event.seconds)
        self.assignment.branch_saves.record_save(missed=False)

    def _missed(self, event: e.Missed) -> None:
        self._tick(event.at)
        attempt = self.attempts.get(event.attempt)
        if attempt is not None:
            self._settle_save(attempt, event.epoch)
            self.assignment.branch_saves.record_save(missed=True)

    def _spoiled(self, event: e.Spoiled) -> None:
        attempt = self.attempts.get(event.attempt)
        self._tick(event.at, attempt)
        if attempt is not None and attempt.source is not None:
            self.checkpoints.drop((attempt.source, attempt.start), attempt.trial)

    def _settle_save(self, attempt: AttemptState, epoch: int) -> None:
        if attempt.save_at:
            attempt.save_at = tuple(other for other in attempt.save_at if other != epoch)
        if attempt.trial.leaf.parent is not None:
            # It is past the branch now: trials that branch there must not find it again.
            self.assignment.locate(attempt)
            self.assignment.detach_diverged(attempt)

    def _attempt_ended(self, event: e.Ended) -> None:
        attempt = self.attempts.pop(event.attempt, None)
        self._tick(event.at, attempt)
        self.subject = None
        if attempt is None:
            return
        self.slots.release(attempt.slots, attempt.width)
        if attempt.width < 1.0:
            self._sharers.change(attempt.slots[0], -1, self.now)
        self.epoch_times.forget_attempt(attempt.id)
        self.slot_time.end(attempt.width, attempt.launched_at, self.now)
        self.subject = attempt.trial
        reached_goal = event.cause is e.Cause.GOAL  # by far the most common cause
        if reached_goal:
            pass
        elif event.cause is e.Cause.FAILED:
            self._record_failure(attempt.trial, event)
        elif event.cause is e.Cause.CROWDED:
            attempt.trial.record_memory(1.0)
        elif event.cause is e.Cause.FINISHED and attempt.may_have_returned_early:
            self._finish_members(attempt)
        self.relaunches.record_end(attempt, reached_goal=reached_goal)
        self.assignment.release(attempt)
        if reached_goal and is_ending_for_width(attempt) and not attempt.trial.attempt:
            self.moving[attempt.trial.id] = 0.0  # as wide as the allocator says
            self.epoch_times.forget_trial(attempt.trial.id)

    def _record_failure(self, trial: TrialState, event: e.Ended) -> None:
        trial.failures += 1
        trial.failure = make_failure(trial.id, event)
        if event.error in DETERMINISTIC and event.place:
            kind = trial.failure.kind
            self.errors[kind] = self.errors.get(kind, 0) + 1

    def _finish_members(self, attempt: AttemptState) -> None:
        """End the trials whose next epoch this attempt would have trained: there is none."""
        lead = attempt.trial
        for trial in {lead.id: lead, **{other.id: other for other in attempt.members}}.values():
            if trial.alive and last_shared_epoch(trial.leaf, lead.leaf) > attempt.epoch:
                self._end_trial(trial, Status.FINISHED)

    def _forecasted(self, event: e.Forecasted) -> None:
        self._tick(event.at)
        trial = self.pending.forecasted(event)
        self.subject = None if trial is None else self.trials[trial]
        if self.subject is not None and event.forecast is not None:
            self.subject.forecast = event.forecast
            self.calibration.add_forecast(self.subject.id, event.forecast, self.best_loss)

    def _woke(self, event: e.Woke) -> None:
        self._tick(event.at)
        trial = self.pending.woke(event)
        self.subject = None if trial is None else self.trials[trial]

    def _proposed(self, event: e.Proposed) -> None:
        self._tick(event.at)
        if not self.pending.proposed(event):
            self.closed = True

    def _capacity(self, event: e.CapacityChanged) -> None:
        self._tick(event.at)
        self.slot_time.settle_capacity(self.slots.capacity, self.now)
        self.slots.set_slots(event.slots, event.nodes)

    def _commanded(self, event: e.Commanded) -> None:
        self._tick(event.at)
        if event.number > self.inbox and isinstance(event.command, e.ExtendStudy):
            self.wanted_options = {**(self.wanted_options or {}), **event.command.options}
        self.inbox = max(self.inbox, event.number)

    def _adopted(self, event: e.Adopted) -> None:
        self._tick(event.at)
        if self.spec.share:
            self.reused.take(event, self.tree, self.checkpoints, self.spec)

    # Decisions about trials

    def _open(self, decision: d.Open) -> None:
        if decision.trial != len(self.trials):
            raise LogError(f"trial {decision.trial} was opened out of order.")
        leaf = self.assignment.branch_saves.insert(decision, self.tree)
        trial = TrialState(decision.trial, decision.config, leaf, self.spec)
        trial.opened_at, trial.goal = self.now, decision.until
        trial.source, trial.needs = decision.source, extend_needs(decision.needs, self.spec.epochs)
        trial.group = decision.group
        self.trials.append(trial)
        self.live += 1
        self.relaunches.record_decision()
        if decision.source is None:
            self.taken.add(None if self.together else decision.number)  # each study has its own
            self.pending.take_offer(decision.group)
        self.assignment.request(trial, decision.branch or 0)
        idle = trial.attempt is None and trial.id not in self.assignment.ready
        if trial.needs:
            idle = idle or explain_unmet_needs(trial, self.capacity) is not None
        self.idle_opens = self.idle_opens + 1 if idle else 0

    def _go(self, decision: d.Go) -> None:
        trial = self.trials[decision.trial]
        self.relaunches.record_decision(trial.id)
        self.assignment.branch_saves.record_goal(trial.goal, decision.until)
        trial.goal, trial.dedicated = decision.until, decision.width
        self.assignment.request(trial, trial.epoch if decision.save else 0)

    def _cut(self, decision: d.Cut) -> None:
        trial = self.trials[decision.trial]
        self.assignment.withdraw(trial)
        self.assignment.branch_saves.record_goal(trial.goal, trial.epoch)
        trial.goal = trial.epoch

    def _fail(self, decision: d.Fail) -> None:
        trial = self.trials[decision.trial]
        if trial.failure is None:
            trial.failure = Failure(trial.id, None, "", "", decision.why)
        self._end_trial(trial, Status.FAILED)

    def _end_trial(self, trial: TrialState, how: Status) -> None:
        self.assignment.withdraw(trial)
        trial.end(how)
        self.relaunches.record_decision()
        self.live -= 1
        self.assignment.branch_saves.remove(trial)
        self.departed = (*self.departed, trial)
        self.calibration.forget(trial.id)
        self.epoch_times.forget_trial(trial.id)
        self.moving.pop(trial.id, None)
        if self.spec.saves.collect:
            self.checkpoints.recheck(trial)

    def _credit(self, decision: d.Credit) -> None:
        trial = self.trials[decision.trial]
        self.relaunches.record_decision(trial.id)
        node = find_node(trial.leaf, decision.epoch)
        self._deliver(trial, decision.epoch, node.losses[decision.epoch - node.start - 1])
        self.delivered = (trial,)

    def _close(self, decision: d.Close) -> None:
        self.closed = True
        self.relaunches.record_decision()
        self.checkpoints.recheck_all()  # no trial will branch there any more

    # Decisions about attempts

    def _launch(self, decision: d.Launch) -> None:
        if decision.attempt != self.launches:
            raise LogError(f"attempt {decision.attempt} was launched out of order.")
        self.launches += 1
        self.relaunches.record_launch(decision, self.slots)
        self.moving.pop(decision.trial, None)
        attempt = AttemptState(decision, self.trials[decision.trial], self.now)
        attempt.last_epoch = self._last_epochs[0]
        self.attempts[attempt.id] = attempt
        attempt.trial.last_attempt = attempt.id
        self.slots.take(decision.slots, decision.width)
        if decision.width < 1.0:
            self._sharers.change(decision.slots[0], 1, self.now)
        self.slot_time.start(decision.width, self.now)
        self.assignment.start(attempt)

    def _amend(self, decision: d.Amend) -> None:
        attempt = self.attempts[decision.attempt]
        attempt.version = decision.version
        # First, since `switch_path` reads them.
        attempt.goal, attempt.save_at = decision.goal, decision.save_at
        trial = self.trials[decision.trial]
        if trial is not attempt.trial:
            self.assignment.switch_path(attempt, trial)
        elif trial.leaf.parent is not None:
            self.assignment.locate(attempt)
        self.assignment.detach_diverged(attempt)
        self.relaunches.record_order(attempt)
        stage_end = find_stage_end(trial, attempt.stage_start)
        if decision.goal > stage_end:
            attempt.stage_start = stage_end
            self.epoch_times.forget_trial(trial.id)  # under another setting

    def _halt(self, decision: d.Halt) -> None:
        attempt = self.attempts[decision.attempt]
        attempt.is_halting = True
        self.assignment.release(attempt)

    def _retire(self, decision: d.Retire) -> None:
        self.slot_time.settle_capacity(self.slots.capacity, self.now)
        self.slots.retire(decision.slots)
        for attempt in self.attempts.values():
            if not set(attempt.slots).isdisjoint(decision.slots):
                attempt.must_yield = True
                self.assignment.changed[attempt.id] = attempt

    def _resize(self, decision: d.Resize) -> None:
        attempt = self.attempts[decision.attempt]
        attempt.must_yield = decision.width != attempt.width
        if attempt.must_yield:
            self.moving[attempt.trial.id] = decision.width
        else:
            self.moving.pop(attempt.trial.id, None)
        self.assignment.changed[attempt.id] = attempt

    # Requests, and the end

    def _ask_forecast(self, decision: d.AskForecast) -> None:
        self.pending.ask_forecast(decision)
        self.trials[decision.trial].forecast_epoch = decision.epoch

    def _ask_proposal(self, decision: d.AskProposal) -> None:
        self.pending.ask_proposal(decision)
        self.relaunches.record_decision()  # the slot was meant for a new trial

    def _ended(self, decision: d.End) -> None:
        self.end = decision


def _nothing(state: StudyState, decision: d.AnyDecision) -> None:
    """Change nothing."""


_FOLD: dict[type, Callable[[StudyState, Any], None]] = {
    e.Opened: StudyState._opened,
    e.Resumed: StudyState._resumed,
    e.Extended: StudyState._extended,
    e.DeadlineChanged: StudyState._deadline_changed,
    e.Reported: StudyState._reported,
    e.Suggested: StudyState._suggested,
    e.Annotated: StudyState._annotated,
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
    e.Recalled: lambda state, event: state._tick(event.at),  # only the generator uses it
    d.Open: StudyState._open,
    d.Go: StudyState._go,
    d.Pause: _nothing,  # the trial is at its goal; the log keeps the reason
    d.Cut: StudyState._cut,
    d.Stop: lambda state, stop: state._end_trial(state.trials[stop.trial], Status.STOPPED),
    d.Fail: StudyState._fail,
    d.Credit: StudyState._credit,
    d.Close: StudyState._close,
    d.Launch: StudyState._launch,
    d.Amend: StudyState._amend,
    d.Halt: StudyState._halt,
    d.Drop: lambda state, drop: state.checkpoints.drop_all(drop.checkpoints),
    d.Resize: StudyState._resize,
    d.Retire: StudyState._retire,
    d.AskForecast: StudyState._ask_forecast,
    d.AskProposal: StudyState._ask_proposal,
    d.WakeAt: lambda state, ask: state.pending.ask_wake(ask),
    d.Provide: _nothing,  # CapacityChanged answers
    d.Leave: _nothing,  # the groups' own fold takes it
    d.End: StudyState._ended,
}
