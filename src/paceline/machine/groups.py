"""Several studies driven as one: what is known of each, and how its brains see the whole.

Knows each group's running facts, a fold of the same log; whose turn a free slot is; and which
entries concern whom. A study that stands alone has none of this. Asks nobody and launches nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol, overload

from msgspec.structs import replace

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.ports import sees_nothing
from paceline.core.values import NO_LOSS
from paceline.machine.calibration import Foresight
from paceline.machine.timing import Meter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.core.decisions import Entry
    from paceline.core.ports import Generator, Policy
    from paceline.core.values import AttemptId, StudySpec, TrialId
    from paceline.machine.checkpoints import Files
    from paceline.machine.pending import Questions
    from paceline.machine.reuse import Adoptions
    from paceline.machine.trial_state import Attempt, Trial


class Whole(Protocol):
    """What a group needs of the study that it is a part of."""

    spec: StudySpec
    now: float
    trials: list[Trial]
    attempts: dict[AttemptId, Attempt]
    delivered: Sequence[Trial]
    departed: Sequence[Trial]
    subject: Trial | None
    questions: Questions
    files: Files
    adopted: Adoptions
    deadline_s: float | None
    end: d.End | None
    epochs_trained: int
    repeats: int
    idle_opens: int
    closed: bool
    groups: Groups | None

    @property
    def ready(self) -> Collection[TrialId]: ...
    @property
    def capacity(self) -> int: ...
    @property
    def capacity_seconds(self) -> float: ...
    @property
    def free(self) -> float: ...


class Group:
    """One of several studies, as its own brains see it: a view of the study.

    What is its own is counted here, as the state counts it for all; the rest is the whole's.
    """

    def __init__(self, number: int, spec: StudySpec, whole: Whole) -> None:
        self.number = number
        self.spec = spec
        # Weak: a cycle would keep studies alive.
        self._whole: Whole = weakref.proxy(whole)
        self.trials = Own(whole.trials)
        self.foresight = Foresight()
        self.meter = Meter()
        self.live = 0
        self.taken = 0
        self.idle_opens = 0
        self.closed = False
        self.best: Trial | None = None
        self.best_loss = NO_LOSS
        self.best_epoch = 0
        # Set by the machine before it asks the policy who is next; no part of the fold.
        self.new = False
        # Epochs trained by attempts that were launched for it, those of them again after a crash,
        # and reports that its trials have seen.
        self.epochs_trained = 0
        self.repeats = 0
        self.reports = 0
        self._left: d.Leave | None = None
        self._left_at = 0.0

    # What is its own

    @property
    def end(self) -> d.Leave | d.End | None:
        """How it ended: alone, or with the whole."""
        return self._left or self._whole.end

    @property
    def now(self) -> float:
        """The time; its clock stands still once it has ended."""
        return self._whole.now if self._left is None else self._left_at

    @property
    def slot_seconds(self) -> float:
        """Slot time that attempts launched for it have used. Who only rides along pays nothing."""
        return self.meter.used(self._whole.now)

    @property
    def delivered(self) -> Sequence[Trial]:
        return [trial for trial in self._whole.delivered if trial.group == self.number]

    @property
    def departed(self) -> Sequence[Trial]:
        return [trial for trial in self._whole.departed if trial.group == self.number]

    @property
    def ready(self) -> Collection[TrialId]:
        return Some(self._whole.ready, self._whole.trials, self.number)

    @property
    def running(self) -> int:
        """Attempts that hold slots and train for it, be it beside others."""
        return sum(
            any(trial.group == self.number for trial in (attempt.trial, *attempt.members))
            for attempt in self._whole.attempts.values()
        )

    @property
    def quiet(self) -> bool:
        """Whether nothing of it runs, waits for a slot, or was asked and not answered yet."""
        questions, trials = self._whole.questions, self._whole.trials
        if self.ready or questions.awaits(self.number) or self.running:
            return False
        if any(trials[number].group == self.number for number, _ in questions.forecasts):
            return False
        wakes = questions.wakes - {(self._whole.deadline_s, None)}
        return not any(whom is None or trials[whom].group == self.number for _, whom in wakes)

    # What is the whole's

    @property
    def deadline_s(self) -> float | None:
        return self._whole.deadline_s

    @property
    def adopted(self) -> Adoptions:
        return self._whole.adopted

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
    def questions(self) -> Questions:
        return self._whole.questions

    # The fold

    def open(self, trial: Trial, decision: d.Open) -> None:
        """Take a trial in."""
        self.trials.ids.append(trial.id)
        self.live += 1
        self.taken += decision.source is None
        self.idle_opens = self.idle_opens + 1 if self._whole.idle_opens else 0

    def deliver(self, trial: Trial) -> None:
        """One of its trials has seen one more epoch."""
        self.reports += 1
        if trial.forecast is not None:
            self.foresight.reached(trial.id, trial.epoch, trial.loss)
        if trial.loss < self.best_loss:
            if self.best is not None and self.spec.saves.collect:
                self._whole.files.suspects[self.best.id] = self.best
            self.best, self.best_loss, self.best_epoch = trial, trial.loss, trial.epoch

    def depart(self, trial: Trial) -> None:
        """One of its trials has ended for good."""
        self.live -= 1
        self.foresight.forget(trial.id)

    def leave(self, decision: d.Leave) -> None:
        """It has ended, and the others go on."""
        self.closed = True
        self._left, self._left_at = decision, self._whole.now


class Groups(Sequence[Group]):
    """All groups of a study, in the order they were given."""

    def __init__(self, whole: Whole) -> None:
        self._trials = whole.trials
        studies = enumerate(whole.spec.studies)
        self._groups = [Group(number, spec, whole) for number, spec in studies]
        # For whom each attempt was launched, how wide, and when.
        self._holders: dict[AttemptId, tuple[Group, float, float]] = {}
        # What the whole had counted before this entry.
        self._trained = self._repeats = 0

    def __len__(self) -> int:
        return len(self._groups)

    @overload
    def __getitem__(self, index: int) -> Group: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Group]: ...
    def __getitem__(self, index: int | slice) -> Group | Sequence[Group]:
        return self._groups[index]

    def of(self, trial: TrialId) -> Group:
        """Return whose trial this is."""
        return self._groups[self._trials[trial].group]

    def turns(self, now: float) -> list[Group]:
        """Return those who have not ended: who has used the least slot time has the first turn.

        Where these are equal, who holds the least, then the order they were given in.
        """
        there = [group for group in self._groups if group.end is None]
        # A millionth of a second is dust from adding up.
        return sorted(there, key=lambda g: (round(g.meter.used(now), 6), g.meter.held, g.number))

    def take(self, entry: Entry, whole: Whole) -> None:
        """Take an entry that the whole has just taken."""
        groups = self._groups
        if isinstance(entry, d.Open):
            groups[entry.group].open(whole.trials[entry.trial], entry)
        for trial in whole.delivered:
            groups[trial.group].deliver(trial)
        for trial in whole.departed:
            groups[trial.group].depart(trial)
        match entry:
            case e.Reported(attempt=attempt) if attempt in self._holders:
                group, _, _ = self._holders[attempt]
                group.epochs_trained += whole.epochs_trained - self._trained
                group.repeats += whole.repeats - self._repeats
                self._trained, self._repeats = whole.epochs_trained, whole.repeats
            case e.Forecasted(forecast=forecast) if forecast is not None and whole.subject:
                group = groups[whole.subject.group]
                group.foresight.given(whole.subject.id, forecast, group.best_loss)
            case d.Launch(attempt=attempt, trial=number, width=width):
                group = self.of(number)
                group.meter.start(width, whole.now)
                self._holders[attempt] = (group, width, whole.now)
            case e.Ended(attempt=attempt) if attempt in self._holders:
                group, width, since = self._holders.pop(attempt)
                group.meter.end(width, since, whole.now)
            case d.Close(group=number):
                groups[number].closed = True
            case e.Proposed(group=number, config=None) if whole.closed:  # else nobody had asked
                groups[number].closed = True
            case d.Leave(group=number):
                groups[number].leave(entry)
        whole.closed = all(group.closed for group in groups)

    def hearers(self, entry: Entry, whole: Whole) -> list[Group]:
        """Return those whom an entry concerns: it is about their trials, or about all."""
        told = {trial.group for trial in (*whole.delivered, *whole.departed)}
        trial, attempt = getattr(entry, "trial", None), getattr(entry, "attempt", None)
        if isinstance(entry, d.Open | d.Close | d.Leave | d.AskProposal | e.Proposed):
            told.add(entry.group)
        elif trial is not None:
            # An answer may be about a trial that there never was.
            told.update(each.group for each in whole.trials[trial : trial + 1])
        elif isinstance(entry, e.Ended):
            told.update(each.group for each in (whole.subject,) if each is not None)
        elif attempt is not None and not isinstance(entry, e.Adopted):
            told.update(each.number for each in self._held(attempt))
        elif not isinstance(entry, e.Reported):
            return [group for group in self._groups if group.end is None]
        return [self._groups[number] for number in sorted(told)]

    def _held(self, attempt: AttemptId) -> Iterator[Group]:
        if attempt in self._holders:
            yield self._holders[attempt][0]


class Own(Sequence["Trial"]):
    """A group's trials: gone through they are its own; by number each of the whole is found."""

    def __init__(self, everybody: list[Trial]) -> None:
        self._everybody = everybody
        self.ids: list[TrialId] = []

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Trial]:
        return (self._everybody[number] for number in self.ids)

    def __reversed__(self) -> Iterator[Trial]:
        return (self._everybody[number] for number in reversed(self.ids))

    @overload
    def __getitem__(self, index: int) -> Trial: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Trial]: ...
    def __getitem__(self, index: int | slice) -> Trial | Sequence[Trial]:
        return list(self)[index] if isinstance(index, slice) else self._everybody[index]


class Some(Collection["TrialId"]):
    """Those of a group among the numbers of trials, in their order, read in place."""

    def __init__(self, numbers: Collection[TrialId], trials: list[Trial], group: int) -> None:
        self._numbers, self._trials, self._group = numbers, trials, group

    def __iter__(self) -> Iterator[TrialId]:
        return (each for each in self._numbers if self._trials[each].group == self._group)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def __contains__(self, number: object) -> bool:
        return number in self._numbers and any(each == number for each in self)


class Audience:
    """Shows the brains of each group what concerns them, and the whole as they may see it."""

    def __init__(self, brains: Sequence[tuple[Policy, Generator]]) -> None:
        self._sees = [
            [brain.see for brain in pair if brain.see is not sees_nothing] for pair in brains
        ]

    def see(self, entry: Entry, whole: Whole) -> None:
        """Pass an entry on. To a group, the study that was opened is its own."""
        assert whole.groups is not None
        for group in whole.groups.hearers(entry, whole):
            shown = replace(entry, spec=group.spec) if isinstance(entry, e.Opened) else entry
            for see in self._sees[group.number]:
                see(shown, group)
