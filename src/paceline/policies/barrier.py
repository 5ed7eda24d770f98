"""Barrier: all trials train `every` epochs before any of them trains on.

Rule: a cohort of `size` trials; goals are multiples of `every`; a trial at its goal is paused until
no live trial of the cohort is behind it. HyperDrive's barrier: Rasley et al., Middleware 2017.
Combined with a stopping rule, as in `barrier+bandit`, all trials are compared at the same epoch.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from paceline.core.base_part import BasePart
from paceline.core.decisions import Go, Open, Pause
from paceline.core.events import Opened
from paceline.core.ports import Pick
from paceline.policies.quantiles import check_positive, choose_boundary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Verdict
    from paceline.core.values import TrialId
    from paceline.core.views import StudyView, TrialView


class Barrier(BasePart):
    """Trains all trials in rounds of equal length."""

    def __init__(self, *, every: int | None = None, size: int | None = None) -> None:
        check_positive("barrier: every", every)
        check_positive("barrier: size", size)
        self._given = every
        self._every = 1
        self._size = size
        # By trial its completed rounds; by round the number of trials; and the paused trials.
        self._rounds: dict[TrialId, int] = {}
        self._counts: dict[int, int] = {}
        self._paused: set[TrialId] = set()
        self._queue: list[tuple[int, TrialId]] = []

    def see(self, entry: Entry, study: StudyView) -> None:
        if isinstance(entry, Opened):
            self._every = choose_boundary(self._given, entry.spec.epochs)
        elif isinstance(entry, Open):
            self._set_rounds(entry.trial, 0)
        elif isinstance(entry, Pause):
            self._paused.add(entry.trial)
            heappush(self._queue, (self._rounds[entry.trial], entry.trial))
        elif isinstance(entry, Go):
            self._paused.discard(entry.trial)
        for trial in study.delivered:
            self._set_rounds(trial.id, trial.epoch // self._every)
        for trial in study.departed:
            self._set_rounds(trial.id, None)
            self._paused.discard(trial.id)
        while self._queue and self._queue[0][1] not in self._paused:
            heappop(self._queue)

    def _set_rounds(self, trial: TrialId, rounds: int | None) -> None:
        before = self._rounds.pop(trial, None)
        if before is not None:
            self._counts[before] -= 1
            if not self._counts[before]:
                del self._counts[before]
        if rounds is not None:
            self._rounds[trial] = rounds
            self._counts[rounds] = self._counts.get(rounds, 0) + 1

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        if not trial.alive or trial.epoch < trial.goal:
            return ()
        return (Pause(trial=trial.id, why=f"it waits for the others at epoch {trial.epoch}"),)

    def readmit(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        on_its_way = trial.epoch < trial.goal and trial.goal % self._every == 0
        if on_its_way or trial.id in self._paused:
            return ()
        until = min((trial.goal // self._every + 1) * self._every, study.spec.epochs)
        why = f"the study was extended: the barrier after epoch {trial.goal} is at epoch {until}"
        return (Go(trial=trial.id, until=until, why=why),)

    def next(self, study: StudyView) -> Pick | None:
        for ready in study.ready:
            return Pick(ready, 0, "it was interrupted before its barrier")
        if study.new:
            return Pick(None, min(self._every, study.spec.epochs), "the cohort is not complete")
        complete = study.closed or (self._size is not None and study.live >= self._size)
        if not self._queue or not complete or self._queue[0][0] > min(self._counts):
            return None
        rounds, trial = self._queue[0]
        until = min((rounds + 1) * self._every, study.spec.epochs)
        return Pick(trial, until, f"all have come to epoch {rounds * self._every}")

    def count_waiting(self, study: StudyView, new: float) -> float:
        """Return how many more trials would start if slots were free, `new` of them new."""
        complete = study.closed or (self._size is not None and study.live >= self._size)
        behind = min(self._counts, default=0)
        paused = sum(self._rounds[trial] == behind for trial in self._paused)
        return new + (paused if complete else 0)

    def admit(self, study: StudyView) -> int | None:
        return self._size
