"""A chronicle: when everything happened in a study, gathered in one pass over its log.

Knows trials with the time of each of their reports, attempts with their slots, the capacity, the
lead, the last decisions and every trial's story. Decides nothing, and does not know how any of it
is drawn.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.analysis.sharing import Meter, Sharing

# Tells one trial; here all are told in the same pass, where `trial_story` makes one for each.
from paceline.analysis.story import _Teller
from paceline.analysis.summary import Best, StudyRow, best_of, row_of
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.errors import LogError
from paceline.core.values import (
    NO_LOSS,
    AttemptId,
    Config,
    SlotId,
    Status,
    StudySpec,
    TrialId,
)
from paceline.machine.state import StudyState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.core.decisions import Entry, Step
    from paceline.machine.trial_state import Attempt, Trial

# How many decisions are kept, newest last.
KEPT = 60

# Answers to questions, and orders that follow from others: true, and no news to a reader.
_SILENT = (d.Amend, d.Credit, d.Drop, d.WakeAt, d.AskForecast, d.AskProposal)


class TrialPast(Struct, frozen=True, kw_only=True):
    """What became of a trial."""

    trial: TrialId
    config: Config
    status: Status
    opened_at: float
    # None: it is alive.
    ended_at: float | None = None
    # The metric of each epoch seen, NaN where it was not a number, and when it was seen.
    values: Sequence[float] = ()
    times: Sequence[float] = ()
    # How long its epochs took, whoever trained them.
    seconds: float = 0.0
    # None: it never reported a number.
    best: float | None = None
    best_epoch: int = 0
    attempts: int = 0
    failures: int = 0
    story: tuple[str, ...] = ()

    @property
    def epochs(self) -> int:
        """Epochs it has seen."""
        return len(self.values)


class AttemptPast(Struct, frozen=True, kw_only=True):
    """What became of an attempt."""

    attempt: AttemptId
    # Whose paths it followed, one after the other.
    trials: tuple[TrialId, ...]
    slots: tuple[SlotId, ...]
    width: float
    began_at: float
    # None, and no cause: it is running.
    ended_at: float | None = None
    cause: e.Cause | None = None
    note: str = ""
    # Epochs in its checkpoint when it began, and when it was last heard of.
    start: int = 0
    epoch: int = 0


class Lead(Struct, frozen=True):
    """A value that beat all before it."""

    at: float
    value: float
    trial: TrialId
    epoch: int


class Decided(Struct, frozen=True):
    """A decision with its number in the log and its time."""

    number: int
    at: float
    decision: d.AnyDecision


class Chronicle(Struct, frozen=True, kw_only=True):
    """A study's past: what every figure and the report read."""

    spec: StudySpec
    study: StudyRow
    best: Best | None
    # The study's clock when the log ends.
    now: float
    trials: tuple[TrialPast, ...]
    attempts: tuple[AttemptPast, ...]
    # From each of these times on there are so many slots.
    capacity: tuple[tuple[float, int], ...]
    capacity_seconds: float
    leads: tuple[Lead, ...]
    decided: tuple[Decided, ...]
    # What trials have in common.
    sharing: Sharing


def chronicle_of(steps: Iterable[Step]) -> Chronicle:
    """Return the past that a log tells, of a study that has ended or not."""
    chronicler = _Chronicler()
    for step in steps:
        for number, entry in enumerate(step.entries, step.number):
            chronicler.take(number, entry)
    return chronicler.chronicle()


class _Chronicler:
    """Folds a log and notes what its state forgets: the times."""

    def __init__(self) -> None:
        self._state = StudyState()
        self._times: list[array[float]] = []
        self._ends: dict[TrialId, float] = {}
        self._tellers: list[_Teller] = []
        self._stories: list[list[str]] = []
        self._attempts: dict[AttemptId, Attempt] = {}
        self._followed: dict[AttemptId, tuple[TrialId, ...]] = {}
        self._ended: dict[AttemptId, tuple[float, e.Ended]] = {}
        self._capacity = [(0.0, 0)]
        self._leads: list[Lead] = []
        self._best_loss = NO_LOSS
        self._decided: deque[Decided] = deque(maxlen=KEPT)
        self._meter = Meter()

    def take(self, number: int, entry: Entry) -> None:
        """Take the next entry of the log."""
        state = self._state
        state.apply(entry)
        self._meter.take(entry, state)
        match entry:
            case d.Open(trial=trial):
                self._times.append(array("d"))
                self._tellers.append(_Teller(trial))
                self._stories.append([])
            case d.Launch(attempt=attempt, trial=trial):
                self._attempts[attempt] = state.attempts[attempt]
                self._followed[attempt] = (trial,)
            case d.Amend(attempt=attempt, trial=trial) if self._followed[attempt][-1] != trial:
                self._followed[attempt] += (trial,)
            case e.Ended(attempt=attempt) if attempt in self._attempts:
                self._ended.setdefault(attempt, (state.now, entry))
        if isinstance(entry, d.Decision) and not isinstance(entry, _SILENT):
            self._decided.append(Decided(number, state.now, entry))
        self._note()
        for trial in self._touched(entry):
            self._stories[trial].extend(self._tellers[trial].hear(entry, state))

    def _note(self) -> None:
        """Note what the entry that was just taken has changed."""
        state = self._state
        for trial in state.delivered:
            self._times[trial.id].append(state.now)
        for trial in state.departed:
            self._ends[trial.id] = state.now
        if state.capacity != self._capacity[-1][1]:
            if self._capacity[-1][0] == state.now:
                self._capacity.pop()
            self._capacity.append((state.now, state.capacity))
        if state.best is not None and state.best_loss < self._best_loss:
            self._best_loss = state.best_loss
            value = state.spec.sign * state.best_loss
            self._leads.append(Lead(state.now, value, state.best.id, state.best_epoch))

    def _touched(self, entry: Entry) -> Iterable[TrialId]:
        """Return the trials whose story this entry may belong to."""
        state = self._state
        if isinstance(entry, d.End):
            return [trial.id for trial in state.trials if trial.alive]
        found = {trial.id for trial in state.delivered}
        trial = getattr(entry, "trial", None)
        if trial is not None and trial < len(state.trials):
            found.add(trial)
        attempt = state.attempts.get(getattr(entry, "attempt", -1))
        if attempt is not None:
            found.add(attempt.trial.id)
        if isinstance(entry, e.Ended) and state.subject is not None:
            found.add(state.subject.id)
        return sorted(found)

    def chronicle(self) -> Chronicle:
        """Return all that was noted."""
        state = self._state
        if not state.number:
            raise LogError("this log is empty: the study has not begun.")
        launched = [0] * len(state.trials)
        for followed in self._followed.values():
            for trial in followed:
                launched[trial] += 1
        return Chronicle(
            spec=state.spec,
            study=row_of(state),
            best=best_of(state),
            now=state.now,
            trials=tuple(self._trial(trial, launched[trial.id]) for trial in state.trials),
            attempts=tuple(map(self._attempt, self._attempts.values())),
            capacity=tuple(self._capacity),
            capacity_seconds=state.capacity_seconds,
            leads=tuple(self._leads),
            decided=tuple(self._decided),
            sharing=self._meter.sharing(state),
        )

    def _trial(self, trial: Trial, attempts: int) -> TrialPast:
        spec = self._state.spec
        values = (math.nan if value is None else value for value in trial.metric(spec.metric))
        story = [*self._stories[trial.id], *self._tellers[trial.id].close(self._state)]
        return TrialPast(
            trial=trial.id,
            config=trial.config,
            status=trial.status,
            opened_at=trial.opened_at,
            ended_at=self._ends.get(trial.id),
            values=array("d", values),
            times=self._times[trial.id],
            seconds=math.fsum(trial.seconds),
            best=None if trial.best_loss == NO_LOSS else spec.sign * trial.best_loss,
            best_epoch=trial.best_epoch,
            attempts=attempts,
            failures=trial.failures,
            story=tuple(story),
        )

    def _attempt(self, attempt: Attempt) -> AttemptPast:
        ended = self._ended.get(attempt.id)
        return AttemptPast(
            attempt=attempt.id,
            trials=self._followed[attempt.id],
            slots=attempt.slots,
            width=attempt.width,
            began_at=attempt.launched_at,
            ended_at=None if ended is None else ended[0],
            cause=None if ended is None else ended[1].cause,
            note="" if ended is None else ended[1].note,
            start=attempt.start,
            epoch=attempt.epoch,
        )
