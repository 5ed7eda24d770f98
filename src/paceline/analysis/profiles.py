"""A course: what the figures of a comparison show of one run, gathered while it is simulated.

Knows the lead over time, how many slots trials of each class held, and how long each trial trained.
Keeps numbers, not entries: a comparison may be thousands of runs. Draws nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.values import NO_LOSS, loss_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry, Step
    from paceline.core.values import TrialId

# POP's classes open the whys of the decisions that put a trial into one.
CLASSES = ("promising", "opportunistic")
# The class of whoever no policy ever put into one.
RUNNING = "running"


class Course(Struct, frozen=True):
    """What one run went through."""

    # Each value that beat all before it, and when.
    leads: list[tuple[float, float]]
    # By class, changes of the slots held: (when, by how much).
    held: dict[str, list[tuple[float, float]]]
    # Seconds of training of each trial that trained at all.
    trained: list[float]
    until: float

    def value_at(self, at: float) -> float | None:
        """Return the best value by then; None where there was none yet."""
        found = None
        for when, value in self.leads:
            if when > at:
                break
            found = value
        return found


class Raced(Struct, frozen=True, kw_only=True):
    """A policy on one trace with so many slots: its runs over all seeds."""

    # What the figures are about, and who this is among them: policy, curve model, allocator.
    place: str
    who: tuple[str, ...]
    metric: str
    sign: float
    slots: int
    target: float | None
    # When each run reached the target or ended, and whether it reached it.
    times: list[float]
    reached: list[bool]
    courses: list[Course]


class Follower:
    """Takes a run's log as it grows, and keeps its course."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sign, self._metric = 1.0, ""
        self._best = NO_LOSS
        self._leads: list[tuple[float, float]] = []
        self._held: dict[str, list[tuple[float, float]]] = {}
        self._class: dict[TrialId, str] = {}
        # By attempt: whose path it follows, its width, and the class it is counted in.
        self._attempts: dict[int, tuple[TrialId, float, str]] = {}
        self._trained: dict[TrialId, float] = {}

    def take(self, steps: Sequence[Step]) -> None:
        """Follow what was just remembered."""
        for step in steps:
            for entry in step.entries:
                self._follow(entry)

    def course(self) -> Course:
        """Return the course of a run that is over. Whoever still held slots gives them back."""
        for attempt in list(self._attempts):
            self._free(attempt)
        return Course(self._leads, self._held, list(self._trained.values()), self._now)

    def _follow(self, entry: Entry) -> None:
        if isinstance(entry, e.Event):
            self._now = max(self._now, entry.at)
        match entry:
            case e.Opened(spec=spec):
                self._sign, self._metric = spec.sign, spec.metric
            case e.Reported():
                self._report(entry)
            case d.Launch(attempt=attempt, trial=trial, width=width):
                self._hold(attempt, trial, width)
            case d.Amend(attempt=attempt, trial=trial):
                self._hold(attempt, trial, self._free(attempt))
            case e.Ended(attempt=attempt):
                self._free(attempt)
            case d.Open(trial=trial, why=why) | d.Go(trial=trial, why=why):
                self._label(trial, why)
            case d.Cut(trial=trial, why=why):
                self._label(trial, why)

    def _report(self, report: e.Reported) -> None:
        trial = self._attempts[report.attempt][0]
        self._trained[trial] = self._trained.get(trial, 0.0) + report.seconds
        loss = loss_of(report.metrics.get(self._metric), self._sign)
        if loss < self._best:
            self._best = loss
            self._leads.append((report.at, self._sign * loss))

    def _hold(self, attempt: int, trial: TrialId, width: float) -> None:
        label = self._class.get(trial, RUNNING)
        self._attempts[attempt] = trial, width, label
        self._held.setdefault(label, []).append((self._now, width))

    def _free(self, attempt: int) -> float:
        _, width, label = self._attempts.pop(attempt)
        self._held[label].append((self._now, -width))
        return width

    def _label(self, trial: TrialId, why: str) -> None:
        label = why.partition(":")[0]
        if label not in CLASSES or self._class.get(trial) == label:
            return
        self._class[trial] = label
        for attempt, (whose, width, _) in list(self._attempts.items()):
            if whose == trial:
                self._free(attempt)
                self._hold(attempt, trial, width)
