"""Run profiles: what the figures of a comparison show of one run, recorded while it is simulated.

A profile holds the best value over time, the slots that trials of each label held, and how long
each trial trained. It keeps numbers, not entries: a comparison may have thousands of runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.values import NO_LOSS, to_loss

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry, Step
    from paceline.core.values import TrialId

# The labels that POP gives its trials.
CLASSES = ("promising", "opportunistic")
# The label of trials without one.
RUNNING = "running"


class RunProfile(Struct, frozen=True):
    """One run over time."""

    # When each value better than all before it was reported, and that value.
    best_changes: list[tuple[float, float]]
    # By label, changes of the slots held: (when, by how much).
    held: dict[str, list[tuple[float, float]]]
    # Seconds of training of each trial that trained at all.
    trained: list[float]
    until: float

    def value_at(self, at: float) -> float | None:
        """Return the best value at a time; None if there was none yet."""
        found = None
        for when, value in self.best_changes:
            if when > at:
                break
            found = value
        return found


class PolicyRuns(Struct, frozen=True, kw_only=True):
    """The runs of one policy over all seeds, on one trace with one number of slots."""

    # The heading of the figures, and what tells these runs from others: policy, curve model,
    # allocator.
    place: str
    parts: tuple[str, ...]
    metric: str
    sign: float
    slots: int
    target: float | None
    # When each run reached the target or ended, and whether it reached it.
    times: list[float]
    reached: list[bool]
    profiles: list[RunProfile]


class ProfileRecorder:
    """Records the profile of a run from its log as it grows."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sign, self._metric = 1.0, ""
        self._best = NO_LOSS
        self._best_changes: list[tuple[float, float]] = []
        self._held: dict[str, list[tuple[float, float]]] = {}
        self._labels: dict[TrialId, str] = {}
        # By attempt: the trial it trains, its width, and the label it is counted under.
        self._attempts: dict[int, tuple[TrialId, float, str]] = {}
        self._trained: dict[TrialId, float] = {}

    def take(self, steps: Sequence[Step]) -> None:
        """Apply the steps just logged."""
        for step in steps:
            for entry in step.entries:
                self._apply(entry)

    def profile(self) -> RunProfile:
        """Return the profile of a run that has ended, with all slots freed."""
        for attempt in list(self._attempts):
            self._free_slots(attempt)
        return RunProfile(self._best_changes, self._held, list(self._trained.values()), self._now)

    def _apply(self, entry: Entry) -> None:
        if isinstance(entry, e.Event):
            self._now = max(self._now, entry.at)
        match entry:
            case e.Opened(spec=spec):
                self._sign, self._metric = spec.sign, spec.metric
            case e.Reported():
                self._report(entry)
            case d.Launch(attempt=attempt, trial=trial, width=width):
                self._hold_slots(attempt, trial, width)
            case d.Amend(attempt=attempt, trial=trial):
                self._hold_slots(attempt, trial, self._free_slots(attempt))
            case e.Ended(attempt=attempt):
                self._free_slots(attempt)
            case d.Open(trial=trial, label=label) | d.Go(trial=trial, label=label):
                self._set_label(trial, label)
            case d.Cut(trial=trial, label=label):
                self._set_label(trial, label)

    def _report(self, report: e.Reported) -> None:
        trial = self._attempts[report.attempt][0]
        self._trained[trial] = self._trained.get(trial, 0.0) + report.seconds
        loss = to_loss(report.metrics.get(self._metric), self._sign)
        if loss < self._best:
            self._best = loss
            self._best_changes.append((report.at, self._sign * loss))

    def _hold_slots(self, attempt: int, trial: TrialId, width: float) -> None:
        label = self._labels.get(trial, RUNNING)
        self._attempts[attempt] = trial, width, label
        self._held.setdefault(label, []).append((self._now, width))

    def _free_slots(self, attempt: int) -> float:
        _, width, label = self._attempts.pop(attempt)
        self._held[label].append((self._now, -width))
        return width

    def _set_label(self, trial: TrialId, label: str) -> None:
        if label not in CLASSES or self._labels.get(trial) == label:
            return
        self._labels[trial] = label
        for attempt, (trained, width, _) in list(self._attempts.items()):
            if trained == trial:
                self._free_slots(attempt)
                self._hold_slots(attempt, trial, width)
