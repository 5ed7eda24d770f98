"""A simulator of studies at looks only, for training: one slot for each trial, no log.

Drives the same `Ranking` as the policy, many times as fast as the real simulator.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from paceline.policies.planner.candidates import Candidates, CandidateSettings
from paceline.policies.planner.looks import Look
from paceline.policies.planner.ranking import Ranking, RankingSettings
from paceline.policies.planner.record import StudyRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from paceline.core.values import Config
    from paceline.policies.planner.network import Networks

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    # What the policy decided at a look, and what is done instead.
    Explore = Callable[[bool, StudyRecord, int, int], bool]
    # Sees each question to the networks: trials, their looks, and the loss to reach.
    Spy = Callable[[StudyRecord, list[int], list[int], float], None]


class Study(NamedTuple):
    """Curves of a study: losses and seconds as (trials, epochs), losses padded by infinity."""

    losses: Floats
    lengths: Ints
    seconds: Floats
    setup: Floats
    epochs: int
    family: str = ""
    configs: Sequence[Config] | None = None


class OrderedStudy(NamedTuple):
    """A study with its trials in an order: best losses so far, and when each epoch ends."""

    best: Floats
    losses: Floats
    # Seconds from the start of a trial to the end of each epoch.
    ends: Floats
    lengths: Ints
    setup: Floats
    epochs: int
    configs: Sequence[Config]
    # By trial and epoch: the epoch of the best loss so far, and the sum of the changes.
    best_epochs: Ints
    paths: Floats

    def look(self, trial: int, epoch: int) -> Look:
        """Return what a trial has reported up to an epoch."""
        last = float(self.losses[trial, epoch - 1])
        return Look(
            float(self.best[trial, epoch - 1]),
            math.inf if math.isnan(last) else last,
            int(self.best_epochs[trial, epoch - 1]),
            float(self.paths[trial, epoch - 1]),
        )


class Outcome(NamedTuple):
    """When the target was reached, infinite if it was not, and the best loss."""

    time: float
    best: float


def prepare(study: Study, order: Ints) -> OrderedStudy:
    """Return the study with its trials in this order."""
    losses = study.losses[order]
    clean = np.where(np.isnan(losses), np.inf, losses)
    best = np.minimum.accumulate(clean, axis=1)
    is_new = np.ones(best.shape, dtype=bool)
    is_new[:, 1:] = best[:, 1:] < best[:, :-1]
    epochs = np.arange(1, best.shape[1] + 1)
    changes = np.zeros_like(clean)
    with np.errstate(invalid="ignore"):
        changes[:, 1:] = np.abs(np.diff(clean, axis=1))
    changes[~np.isfinite(changes)] = 0.0
    return OrderedStudy(
        best,
        losses,
        np.cumsum(study.seconds[order], axis=1),
        study.lengths[order],
        study.setup[order],
        study.epochs,
        [{} if study.configs is None else study.configs[int(at)] for at in order],
        np.maximum.accumulate(np.where(is_new, epochs, 0), axis=1),
        np.cumsum(changes, axis=1),
    )


_CANDIDATES = CandidateSettings()


class FastSimulation:
    """One simulated study on some slots, to a target or a deadline."""

    def __init__(
        self,
        study: OrderedStudy,
        networks: Networks,
        settings: RankingSettings,
        *,
        target: float | None,
        deadline: float = math.inf,
        opening: Networks | None = None,
        candidates: CandidateSettings = _CANDIDATES,
    ) -> None:
        self._study = study
        self._target = target
        self._deadline = deadline
        self._record = StudyRecord(study.epochs)
        self._ranking = Ranking(self._record, networks, settings, opening)
        self._ranking.set_target(target)
        self._candidates = Candidates(self._record, self._ranking, candidates)
        self._window = candidates.window
        # The runs that are not open yet, and by trial the run that it got.
        self._left = list(range(len(study.lengths)))
        self.runs: list[int] = []
        # (when, trial, look); a look of -1: the target is reached.
        self._heap: list[tuple[float, int, int]] = []

    def run(
        self,
        slots: int,
        *,
        explore: Explore | None = None,
        spy: Spy | None = None,
        limit: float = math.inf,
    ) -> Outcome:
        """Simulate to the target, the deadline or the limit, whichever is first."""
        record = self._record
        if spy is not None:
            self._ranking.spy = lambda *question: spy(record, *question)
        for _ in range(min(slots, len(self._study.lengths))):
            self._open(0.0)
        while self._heap:
            now, trial, level = heappop(self._heap)
            if now > self._deadline or now > limit:
                break
            if level < 0:
                return Outcome(now, record.best_loss)
            self._look(now, trial, level, explore)
        return Outcome(math.inf, record.best_loss)

    def _schedule(self, trial: int, level: int, start: float, began: int) -> None:
        """Schedule the next look of a trial that starts at a time, after some epochs."""
        study, run = self._study, self.runs[trial]
        epoch = min(self._record.looks[level], int(study.lengths[run]))
        before = study.ends[run, began - 1] if began else 0.0
        if self._target is not None:
            hits = np.flatnonzero(study.losses[run, began:epoch] <= self._target)
            if len(hits):
                at = began + int(hits[0])
                heappush(self._heap, (start + study.ends[run, at] - before, trial, -1))
                return
        heappush(self._heap, (start + study.ends[run, epoch - 1] - before, trial, level))

    def _open(self, now: float) -> None:
        study, trial = self._study, len(self.runs)
        next_ = {run: study.configs[run] for run in self._left[: self._window]}
        run = self._candidates.choose(next_)
        self._left.remove(run)
        self.runs.append(run)
        self._record.open(trial, study.configs[run])
        self._ranking.open(trial)
        self._schedule(trial, 0, now + study.setup[run], 0)

    def _fill(self, now: float) -> None:
        """Give a free slot to the paused trial or the new one with the larger index."""
        self._ranking.refresh()
        index, trial = self._ranking.best_paused
        may_open = bool(self._left)
        new = self._ranking.new_index if may_open else -math.inf
        if index > -math.inf and index >= new:
            self._ranking.resume(trial)
            level = self._record.level(trial) + 1
            start = now + self._study.setup[self.runs[trial]]
            self._schedule(trial, level, start, self._record.looks[level - 1])
        elif may_open:
            self._open(now)

    def _look(self, now: float, trial: int, level: int, explore: Explore | None) -> None:
        study, record, ranking = self._study, self._record, self._ranking
        run = self.runs[trial]
        length = int(study.lengths[run])
        epoch = min(record.looks[level], length)
        seen = study.look(run, epoch)
        record.pace[trial] = study.ends[run, epoch - 1] / epoch
        record.note_best(seen.best_epoch, seen.best)
        record.look(trial, seen)
        ranking.guard.score(trial, seen.best)
        if level == 0:
            ranking.note_setup(study.setup[run])
            ranking.note_first_look(trial)
        has_ended = epoch >= length or level == len(record.looks) - 1
        if has_ended:
            record.finish(epoch)
            ranking.end(trial)
        ranking.update(self._deadline - now)
        ranking.refresh()
        if not has_ended:
            own = ranking.rank_running(trial)
            may_open = bool(self._left)
            new = ranking.new_index if may_open else -math.inf
            goes_on = not ranking.should_pause(own, max(new, ranking.best_paused[0]))
            if explore is not None:
                goes_on = explore(goes_on, record, trial, level)
            if goes_on:
                self._schedule(trial, level + 1, now, epoch)
                return
            ranking.pause(trial)
        self._fill(now)
