"""Several studies run as one: what is counted for each, and which entries concern which.

Knows each group's own counters, a fold of the same log, and which group is next for a free slot. A
study that runs alone is its own only group. Asks no part and launches nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, overload

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.values import NO_LOSS, Status
from paceline.machine.calibration import Calibration
from paceline.machine.taken_proposals import TakenProposals
from paceline.machine.timing import SlotTime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.core.decisions import Entry
    from paceline.core.values import AttemptId, StudySpec, TrialId
    from paceline.machine.checkpoints import CheckpointIndex
    from paceline.machine.failures import Failure
    from paceline.machine.pending import PendingRequests
    from paceline.machine.reuse import ReusedPrefixes
    from paceline.machine.trial_state import AttemptState, TrialState


class GroupState:
    """One study as its own policy and generator see it: what is counted for it alone."""

    __slots__ = (
        "__weakref__", "best", "best_epoch", "best_loss", "calibration", "closed", "ending",
        "epochs_trained", "idle_opens", "index", "live", "new", "repeats", "reports", "slot_time",
        "spec", "taken",
    )  # fmt: skip

    spec: StudySpec

    def __init__(self) -> None:
        # Its place among the studies that are run as one.
        self.index = 0
        self.calibration = Calibration()
        self.slot_time = SlotTime()
        self.live = 0
        # Configs taken from the generator; forked trials take none.
        self.taken = TakenProposals()
        # Trials opened in a row that needed no training, because all their epochs were known.
        self.idle_opens = 0
        self.closed = False
        self.best: TrialState | None = None
        self.best_loss = NO_LOSS
        self.best_epoch = 0
        # Set by the scheduler before it asks the policy for a pick; not part of the fold.
        self.new = False
        # The attempt that counts as ended while the scheduler asks what its slots are for next.
        self.ending: AttemptState | None = None
        # Epochs trained by attempts launched for it; those trained again after a crash; reports
        # seen by its trials, which are more than epochs if trials share prefixes.
        self.epochs_trained = 0
        self.repeats = 0
        self.reports = 0

    @property
    def failed(self) -> int:
        """The number of trials that were given up."""
        return sum(trial.ended is Status.FAILED for trial in self.trials)

    @property
    def last_failure(self) -> Failure | None:
        """The failure of the newest failed attempt; None if none has failed."""
        failures = [trial.failure for trial in self.trials if trial.failure is not None]
        return max(failures, key=lambda f: -1 if f.attempt is None else f.attempt, default=None)

    if TYPE_CHECKING:
        # Fields of a study that runs alone, computed properties of one of several.

        @property
        def trials(self) -> Sequence[TrialState]: ...
        @property
        def delivered(self) -> Sequence[TrialState]: ...
        @property
        def departed(self) -> Sequence[TrialState]: ...
        @property
        def ready(self) -> Collection[TrialId]: ...
        @property
        def running(self) -> int: ...
        @property
        def now(self) -> float: ...
        @property
        def end(self) -> d.Leave | d.End | None: ...
        @property
        def slot_seconds(self) -> float: ...
        @property
        def deadline_s(self) -> float | None: ...
        @property
        def return_s(self) -> float | None: ...
        @property
        def reused(self) -> ReusedPrefixes: ...
        @property
        def capacity(self) -> int: ...
        @property
        def capacity_seconds(self) -> float: ...
        @property
        def free(self) -> float: ...
        @property
        def pending(self) -> PendingRequests: ...


class Group(GroupState):
    """One of several studies run as one. What is not its own is read from the whole study."""

    trials: GroupTrials

    def __init__(self, index: int, spec: StudySpec, groups: Groups) -> None:
        super().__init__()
        self.index = index
        self.spec = spec
        self.trials = GroupTrials(groups.whole.trials)
        # A proxy, as `groups.whole` is: a reference cycle would keep ended studies in memory.
        self._whole = groups.whole
        self._attempts = groups.attempts
        self._checkpoints = groups.checkpoints
        self._left: d.Leave | None = None
        self._left_at = 0.0

    # Its own

    @property
    def end(self) -> d.Leave | d.End | None:
        """How it ended: alone, or with the whole study."""
        return self._left or self._whole.end

    @property
    def now(self) -> float:
        """The time; its clock stands still once it has ended."""
        return self._whole.now if self._left is None else self._left_at

    @property
    def slot_seconds(self) -> float:
        """Slot time used by attempts launched for it; a trial that shares an attempt adds none."""
        return self.slot_time.used(self._whole.now)

    @property
    def delivered(self) -> Sequence[TrialState]:
        return [trial for trial in self._whole.delivered if trial.group == self.index]

    @property
    def departed(self) -> Sequence[TrialState]:
        return [trial for trial in self._whole.departed if trial.group == self.index]

    @property
    def ready(self) -> Collection[TrialId]:
        return GroupReady(self._whole.ready, self._whole.trials, self.index)

    @property
    def running(self) -> int:
        """Attempts that hold slots and train for it, alone or together with other studies."""
        return sum(
            any(trial.group == self.index for trial in (attempt.trial, *attempt.members))
            for attempt in self._attempts.values()
            if attempt is not self._whole.ending
        )

    @property
    def is_quiet(self) -> bool:
        """Whether nothing of it runs, waits for a slot or awaits an answer."""
        pending, trials = self._whole.pending, self._whole.trials
        if self.ready or pending.count_awaited(self.index) or self.running:
            return False
        if any(trials[number].group == self.index for number, _ in pending.forecasts):
            return False
        wakes = pending.wakes - {(self._whole.deadline_s, None)}
        return not any(trial is None or trials[trial].group == self.index for _, trial in wakes)

    # The whole study's

    @property
    def deadline_s(self) -> float | None:
        return self._whole.deadline_s

    @property
    def return_s(self) -> float | None:
        return self._whole.return_s

    @property
    def reused(self) -> ReusedPrefixes:
        return self._whole.reused

    @property
    def capacity(self) -> int:
        return self._whole.capacity

    @property
    def capacity_seconds(self) -> float:
        return self._whole.capacity_seconds

    @property
    def free(self) -> float:
        return self._whole.free

    @property
    def pending(self) -> PendingRequests:
        return self._whole.pending

    # The fold

    def add_trial(self, trial: TrialState, decision: d.Open) -> None:
        """Count a trial that was opened."""
        self.trials.ids.append(trial.id)
        self.live += 1
        if decision.source is None:
            self.taken.add(decision.number)
        self.idle_opens = self.idle_opens + 1 if self._whole.idle_opens else 0

    def record_report(self, trial: TrialState) -> None:
        """Count one more epoch that a trial has seen."""
        self.reports += 1
        if trial.forecast is not None:
            self.calibration.record_loss(trial.id, trial.epoch, trial.loss)
        if trial.loss < self.best_loss:
            if self.best is not None and self.spec.saves.collect:
                self._checkpoints.to_recheck[self.best.id] = self.best
            self.best, self.best_loss, self.best_epoch = trial, trial.loss, trial.epoch

    def remove_trial(self, trial: TrialState) -> None:
        """Count a trial that has ended for good."""
        self.live -= 1
        self.calibration.forget(trial.id)

    def leave(self, decision: d.Leave) -> None:
        """End this study; the others go on."""
        self.closed = True
        self._left, self._left_at = decision, self._whole.now

    def readmit(self) -> None:
        """Undo the end: the study was extended."""
        self.closed, self.idle_opens, self._left = False, 0, None


class Groups(Sequence[Group]):
    """All studies that are run as one, in the order they were given."""

    def __init__(
        self,
        whole: GroupState,
        attempts: dict[AttemptId, AttemptState],
        checkpoints: CheckpointIndex,
    ) -> None:
        self.whole: GroupState = weakref.proxy(whole)
        self.attempts = attempts
        self.checkpoints = checkpoints
        self._groups = [Group(index, spec, self) for index, spec in enumerate(whole.spec.studies)]
        # The group that each attempt was launched for, its width, and when.
        self._holders: dict[AttemptId, tuple[Group, float, float]] = {}
        # The whole study's counts before this entry.
        self._trained = self._repeats = 0

    def __len__(self) -> int:
        return len(self._groups)

    @overload
    def __getitem__(self, index: int) -> Group: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Group]: ...
    def __getitem__(self, index: int | slice) -> Group | Sequence[Group]:
        return self._groups[index]

    def order_by_use(self, now: float) -> list[Group]:
        """Return the groups that have not ended, the one with the least slot time used first.

        Of equal ones, the one that holds the least width, then the one given first.
        """
        going = [group for group in self._groups if group.end is None]
        # Rounded: sums of floats differ in their last digits.
        return sorted(
            going, key=lambda g: (round(g.slot_time.used(now), 6), self._count_held(g), g.index)
        )

    def _count_held(self, group: Group) -> float:
        """Return the width that a group holds without the attempt that counts as ended."""
        ending, held = self.whole.ending, group.slot_time.held
        if ending is None or ending.trial.group != group.index:
            return held
        return held - ending.width

    def take(self, entry: Entry, subject: TrialState | None) -> None:
        """Fold in an entry that the whole study has just folded in."""
        groups, whole = self._groups, self.whole
        if isinstance(entry, d.Open):
            groups[entry.group].add_trial(whole.trials[entry.trial], entry)
        for trial in whole.delivered:
            groups[trial.group].record_report(trial)
        for trial in whole.departed:
            groups[trial.group].remove_trial(trial)
        match entry:
            case e.Reported(attempt=attempt) if attempt in self._holders:
                group, _, _ = self._holders[attempt]
                group.epochs_trained += whole.epochs_trained - self._trained
                group.repeats += whole.repeats - self._repeats
                self._trained, self._repeats = whole.epochs_trained, whole.repeats
            case e.Forecasted(forecast=forecast) if forecast is not None and subject:
                group = groups[subject.group]
                group.calibration.add_forecast(subject.id, forecast, group.best_loss)
            case d.Launch(attempt=attempt, trial=number, width=width):
                group = groups[whole.trials[number].group]
                group.slot_time.start(width, whole.now)
                self._holders[attempt] = (group, width, whole.now)
            case e.Ended(attempt=attempt) if attempt in self._holders:
                group, width, since = self._holders.pop(attempt)
                group.slot_time.end(width, since, whole.now)
            case d.Close(group=number):
                groups[number].closed = True
            case e.Proposed(group=number, config=None) if whole.closed:  # else it was not awaited
                groups[number].closed = True
            case d.Leave(group=number):
                groups[number].leave(entry)
            case e.Extended():
                for group in groups:
                    group.readmit()
        whole.closed = all(group.closed for group in groups)

    def find_concerned(self, entry: Entry, subject: TrialState | None) -> list[Group]:
        """Return the groups that an entry concerns: it is about their trials, or about all."""
        whole = self.whole
        concerned = {trial.group for trial in (*whole.delivered, *whole.departed)}
        trial, attempt = getattr(entry, "trial", None), getattr(entry, "attempt", None)
        if isinstance(entry, d.Open | d.Close | d.Leave | d.AskProposal | e.Proposed):
            concerned.add(entry.group)
        elif trial is not None:
            # An answer may be about a trial that does not exist.
            concerned.update(each.group for each in whole.trials[trial : trial + 1])
        elif isinstance(entry, e.Ended):
            concerned.update(each.group for each in (subject,) if each is not None)
        elif attempt is not None and not isinstance(entry, e.Adopted):
            if attempt in self._holders:
                concerned.add(self._holders[attempt][0].index)
        elif not isinstance(entry, e.Reported):
            return [group for group in self._groups if group.end is None]
        return [self._groups[number] for number in sorted(concerned)]


class GroupTrials(Sequence["TrialState"]):
    """A group's trials: iterated, its own; indexed by id, any trial of the whole study."""

    def __init__(self, trials: Sequence[TrialState]) -> None:
        self._all = trials
        self.ids: list[TrialId] = []

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[TrialState]:
        return (self._all[number] for number in self.ids)

    def __reversed__(self) -> Iterator[TrialState]:
        return (self._all[number] for number in reversed(self.ids))

    @overload
    def __getitem__(self, index: int) -> TrialState: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TrialState]: ...
    def __getitem__(self, index: int | slice) -> TrialState | Sequence[TrialState]:
        return list(self)[index] if isinstance(index, slice) else self._all[index]


class GroupReady(Collection["TrialId"]):
    """The ready trials of a group, in the order of the ready queue, read in place."""

    def __init__(
        self, numbers: Collection[TrialId], trials: Sequence[TrialState], group: int
    ) -> None:
        self._numbers, self._trials, self._group = numbers, trials, group

    def __iter__(self) -> Iterator[TrialId]:
        return (each for each in self._numbers if self._trials[each].group == self._group)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def __contains__(self, number: object) -> bool:
        return number in self._numbers and any(each == number for each in self)
