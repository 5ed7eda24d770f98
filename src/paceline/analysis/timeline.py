"""The timeline of a study: what happened when, collected in one pass over its log.

Holds trials with the time of each report, attempts with their slots, the capacity, the best value,
the last decisions and every trial's story. Decides nothing and draws nothing.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.analysis.sharing import Sharing, SharingCounter
from paceline.analysis.story import TrialStory
from paceline.analysis.summary import Best, StudyRow, find_best, make_study_row
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
    from paceline.machine.trial_state import AttemptState, TrialState

# Decisions kept, newest last.
KEPT = 60

# Requests, and orders that follow from other decisions: not shown.
_SILENT = (d.Amend, d.Credit, d.Drop, d.WakeAt, d.AskForecast, d.AskProposal)


class TrialTimeline(Struct, frozen=True, kw_only=True):
    """A trial over time."""

    trial: TrialId
    config: Config
    status: Status
    opened_at: float
    # None while it may still train.
    ended_at: float | None = None
    # The metric of each epoch, NaN if it was not a number, and when it was reported.
    values: Sequence[float] = ()
    times: Sequence[float] = ()
    # The duration of its epochs, including those that other trials trained.
    seconds: float = 0.0
    # None if it never reported a number.
    best: float | None = None
    best_epoch: int = 0
    attempts: int = 0
    failures: int = 0
    story: tuple[str, ...] = ()
    # Its study has ended, so it will not train any more.
    is_over: bool = False

    @property
    def fate(self) -> str:
        """Its status in a word; `unfinished` if the study ended while it trained or was ready."""
        is_open = self.status in (Status.RUNNING, Status.READY)
        return "unfinished" if self.is_over and is_open else self.status.value

    @property
    def epochs(self) -> int:
        """The number of epochs reported."""
        return len(self.values)


class AttemptTimeline(Struct, frozen=True, kw_only=True):
    """An attempt over time."""

    attempt: AttemptId
    # The trials that it trained, one after the other.
    trials: tuple[TrialId, ...]
    slots: tuple[SlotId, ...]
    width: float
    started_at: float
    # Both None while it runs.
    ended_at: float | None = None
    cause: e.Cause | None = None
    note: str = ""
    # Epochs in its checkpoint at the start, and epochs trained at its last report.
    start: int = 0
    epoch: int = 0


class BestChange(Struct, frozen=True):
    """A value better than all before it."""

    at: float
    value: float
    trial: TrialId
    epoch: int


class TimedDecision(Struct, frozen=True):
    """A decision, its number in the log and its time."""

    number: int
    at: float
    decision: d.AnyDecision


class Timeline(Struct, frozen=True, kw_only=True):
    """What happened in a study; all figures and the report are drawn from it."""

    spec: StudySpec
    study: StudyRow
    best: Best | None
    # The study's clock at the end of the log.
    now: float
    trials: tuple[TrialTimeline, ...]
    attempts: tuple[AttemptTimeline, ...]
    # The number of slots from each of these times on.
    capacity: tuple[tuple[float, int], ...]
    capacity_seconds: float
    best_changes: tuple[BestChange, ...]
    decisions: tuple[TimedDecision, ...]
    sharing: Sharing


def build_timeline(steps: Iterable[Step]) -> Timeline:
    """Return the timeline of a log; the study may still run."""
    builder = _TimelineBuilder()
    for step in steps:
        for number, entry in enumerate(step.entries, step.number):
            builder.take(number, entry)
    return builder.build()


class _TimelineBuilder:
    """Folds a log and records the times, which the state does not keep."""

    def __init__(self) -> None:
        self._state = StudyState()
        self._times: list[array[float]] = []
        self._ends: dict[TrialId, float] = {}
        self._writers: list[TrialStory] = []
        self._stories: list[list[str]] = []
        self._attempts: dict[AttemptId, AttemptState] = {}
        self._trained: dict[AttemptId, tuple[TrialId, ...]] = {}
        self._ended: dict[AttemptId, tuple[float, e.Ended]] = {}
        self._capacity = [(0.0, 0)]
        self._bests: list[BestChange] = []
        self._best_loss = NO_LOSS
        self._decisions: deque[TimedDecision] = deque(maxlen=KEPT)
        self._sharing = SharingCounter()

    def take(self, number: int, entry: Entry) -> None:
        """Apply the next entry of the log."""
        state = self._state
        state.apply(entry)
        self._sharing.take(entry, state)
        match entry:
            case d.Open(trial=trial):
                self._times.append(array("d"))
                self._writers.append(TrialStory(trial))
                self._stories.append([])
            case d.Launch(attempt=attempt, trial=trial):
                self._attempts[attempt] = state.attempts[attempt]
                self._trained[attempt] = (trial,)
            case d.Amend(attempt=attempt, trial=trial) if self._trained[attempt][-1] != trial:
                self._trained[attempt] += (trial,)
            case e.Ended(attempt=attempt) if attempt in self._attempts:
                self._ended.setdefault(attempt, (state.now, entry))
        if isinstance(entry, d.Decision) and not isinstance(entry, _SILENT):
            self._decisions.append(TimedDecision(number, state.now, entry))
        self._record()
        for trial in self._find_touched(entry):
            self._stories[trial].extend(self._writers[trial].take(entry, state))

    def _record(self) -> None:
        """Record what the entry just applied has changed."""
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
            self._bests.append(BestChange(state.now, value, state.best.id, state.best_epoch))

    def _find_touched(self, entry: Entry) -> Iterable[TrialId]:
        """Return the trials to whose story this entry may belong."""
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

    def build(self) -> Timeline:
        """Return the timeline."""
        state = self._state
        if not state.number:
            raise LogError("the log is empty: the study has not started.")
        launched = [0] * len(state.trials)
        for trained in self._trained.values():
            for trial in trained:
                launched[trial] += 1
        return Timeline(
            spec=state.spec,
            study=make_study_row(state),
            best=find_best(state),
            now=state.now,
            trials=tuple(self._trial(trial, launched[trial.id]) for trial in state.trials),
            attempts=tuple(map(self._attempt, self._attempts.values())),
            capacity=tuple(self._capacity),
            capacity_seconds=state.capacity_seconds,
            best_changes=tuple(self._bests),
            decisions=tuple(self._decisions),
            sharing=self._sharing.report(state),
        )

    def _trial(self, trial: TrialState, attempts: int) -> TrialTimeline:
        spec = self._state.spec
        values = (math.nan if value is None else value for value in trial.metric(spec.metric))
        story = [*self._stories[trial.id], *self._writers[trial.id].close(self._state)]
        return TrialTimeline(
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
            is_over=self._state.end is not None,
        )

    def _attempt(self, attempt: AttemptState) -> AttemptTimeline:
        ended = self._ended.get(attempt.id)
        return AttemptTimeline(
            attempt=attempt.id,
            trials=self._trained[attempt.id],
            slots=attempt.slots,
            width=attempt.width,
            started_at=attempt.launched_at,
            ended_at=None if ended is None else ended[0],
            cause=None if ended is None else ended[1].cause,
            note="" if ended is None else ended[1].note,
            start=attempt.start,
            epoch=attempt.epoch,
        )
