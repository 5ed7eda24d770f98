"""A naive implementation of ASHA, and random tables, to compare policies with."""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import NamedTuple

from hypothesis import strategies as st

from paceline.policies.rungs import compute_milestones


class NaiveReport(NamedTuple):
    """One report: its time, trial and epoch."""

    at: float
    trial: int
    epoch: int


class NaiveAsha:
    """ASHA by sorting everything again and again: Algorithm 2 of the paper, plus draining."""

    def __init__(
        self, curves: list[list[float]], seconds: list[float], slots: int, eta: int, drain: bool
    ) -> None:
        self.curves, self.seconds, self.eta, self.drain = curves, seconds, eta, drain
        self.levels = compute_milestones(1, eta, max(map(len, curves)))
        self.scores: dict[int, dict[int, float]] = {level: {} for level in self.levels[:-1]}
        self.gone_on: dict[int, set[int]] = {level: set() for level in self.levels[:-1]}
        self.started = 0
        self.idle = slots
        self.heap: list[tuple[float, int, int, int, int]] = []
        self.count = 0
        self.reports: list[NaiveReport] = []

    def run(self) -> list[NaiveReport]:
        self.fill(0.0)
        while self.heap:
            now, _, trial, epoch, goal = heappop(self.heap)
            self.reports.append(NaiveReport(now, trial, epoch))
            if epoch == len(self.curves[trial]):
                if epoch in self.scores:
                    self.scores[epoch][trial] = self.loss(trial, epoch)
                    self.gone_on[epoch].add(trial)  # it has no further epochs
                self.fill(now)
                self.idle += 1
            elif epoch == goal:
                self.scores[epoch][trial] = self.loss(trial, epoch)
                if self.pick() == (trial, epoch):
                    self.go_on(now, trial, epoch)
                    self.fill(now)
                else:
                    self.fill(now)
                    self.idle += 1
            else:
                self.push(now, trial, epoch + 1, goal)
            self.fill(now)
        return self.reports

    def loss(self, trial: int, epoch: int) -> float:
        loss = self.curves[trial][epoch - 1]
        return loss if math.isfinite(loss) else math.inf

    def pick(self) -> tuple[int, int] | None:
        for level in reversed(self.levels[:-1]):
            ranked = sorted(self.scores[level], key=self.scores[level].__getitem__)  # stable
            for trial in ranked[: len(ranked) // self.eta]:
                finite = self.scores[level][trial] < math.inf
                if finite and trial not in self.gone_on[level]:
                    return trial, level
        if self.drain and self.closed:
            for blind in (False, True):
                for level in reversed(self.levels[:-1]):
                    scores = self.scores[level]
                    for trial in sorted(scores, key=scores.__getitem__):
                        if trial not in self.gone_on[level] and blind == math.isinf(scores[trial]):
                            return trial, level
        return None

    closed = False

    def go_on(self, now: float, trial: int, level: int) -> None:
        self.gone_on[level].add(trial)
        goal = self.levels[self.levels.index(level) + 1]
        self.push(now, trial, level + 1, goal)

    def fill(self, now: float) -> None:
        while self.idle:
            pick = self.pick()
            if pick is not None:
                self.go_on(now, *pick)
            elif self.started < len(self.curves):
                self.push(now, self.started, 1, self.levels[0])
                self.started += 1
            elif not self.closed:
                self.closed = True
                continue
            else:
                return
            self.idle -= 1

    def push(self, now: float, trial: int, epoch: int, goal: int) -> None:
        self.count += 1
        heappush(self.heap, (now + self.seconds[trial], self.count, trial, epoch, goal))


@st.composite
def random_tables(draw: st.DrawFn) -> tuple[list[list[float]], list[float]]:
    epochs = draw(st.integers(1, 12))
    runs = draw(st.integers(1, 14))
    # Few different values, so that ties are common.
    number = st.sampled_from([0.0, 1.0, 2.0, 3.0, 0.5, math.nan])
    curves = [
        draw(st.lists(number, min_size=draw(st.integers(1, epochs)), max_size=epochs))
        for _ in range(runs)
    ]
    # Durations that never add up to each other, so that nothing depends on ties in time.
    seconds = [1.0 + math.sqrt(2 + 3 * run) / 10 for run in range(runs)]
    return curves, seconds
