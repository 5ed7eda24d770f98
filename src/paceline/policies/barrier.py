"""Breadth first: all trials train `every` epochs, and nobody goes on before all are there.

Rule: a cohort of `size` trials; goals are multiples of `every`; a trial at its goal waits until no
living trial of the cohort is behind it. HyperDrive's barrier (Rasley et al., Middleware 2017). With
a stopping rule beside it, `barrier+bandit`, everybody is judged with the same epochs behind them.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from paceline.core.decisions import Go, Open, Pause
from paceline.core.events import Opened
from paceline.core.ports import Pick
from paceline.policies.quantiles import boundary_of, one_or_more

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Verdict
    from paceline.core.values import TrialId
    from paceline.core.views import StudyView, TrialView


class Barrier:
    """March in step."""

    def __init__(self, *, every: int | None = None, size: int | None = None) -> None:
        one_or_more("barrier: every", every)
        one_or_more("barrier: size", size)
        self._given = every
        self._every = 1
        self._size = size
        # Rounds that each living trial has done, how many have done so many, and who waits.
        self._rounds: dict[TrialId, int] = {}
        self._counts: dict[int, int] = {}
        self._waiting: set[TrialId] = set()
        self._queue: list[tuple[int, TrialId]] = []

    def see(self, entry: Entry, study: StudyView) -> None:
        if isinstance(entry, Opened):
            self._every = boundary_of(self._given, entry.spec.epochs)
        elif isinstance(entry, Open):
            self._move(entry.trial, 0)
        elif isinstance(entry, Pause):
            self._waiting.add(entry.trial)
            heappush(self._queue, (self._rounds[entry.trial], entry.trial))
        elif isinstance(entry, Go):
            self._waiting.discard(entry.trial)
        for trial in study.delivered:
            self._move(trial.id, trial.epoch // self._every)
        for trial in study.departed:
            self._move(trial.id, None)
            self._waiting.discard(trial.id)
        while self._queue and self._queue[0][1] not in self._waiting:
            heappop(self._queue)

    def _move(self, trial: TrialId, rounds: int | None) -> None:
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

    def admit(self, study: StudyView) -> int | None:
        return self._size
