"""ASHA, against an independent and naive re-implementation, and case by case."""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from build import Played, table
from hypothesis import given
from hypothesis import strategies as st

import paceline as pl
from paceline.core.decisions import Go, Open, Pause
from paceline.core.errors import SpecError
from paceline.core.events import Reported
from paceline.core.values import Status
from paceline.plan.settings import canonical, setting_at
from paceline.policies.asha import Asha
from paceline.policies.rungs import Rung, milestones

if TYPE_CHECKING:
    from paceline.testing.simulations import Rehearsal


class Told(NamedTuple):
    """One report: when, of whom, which epoch."""

    at: float
    trial: int
    epoch: int


class Naive:
    """ASHA by sorting everything again and again: Algorithm 2 of the paper, plus draining."""

    def __init__(
        self, curves: list[list[float]], seconds: list[float], slots: int, eta: int, drain: bool
    ) -> None:
        self.curves, self.seconds, self.eta, self.drain = curves, seconds, eta, drain
        self.levels = milestones(1, eta, max(map(len, curves)))
        self.scores: dict[int, dict[int, float]] = {level: {} for level in self.levels[:-1]}
        self.gone_on: dict[int, set[int]] = {level: set() for level in self.levels[:-1]}
        self.started = 0
        self.idle = slots
        self.heap: list[tuple[float, int, int, int, int]] = []
        self.count = 0
        self.told: list[Told] = []

    def run(self) -> list[Told]:
        self.fill(0.0)
        while self.heap:
            now, _, trial, epoch, goal = heappop(self.heap)
            self.told.append(Told(now, trial, epoch))
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
        return self.told

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
def tables(draw: st.DrawFn) -> tuple[list[list[float]], list[float]]:
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


@given(tables(), st.integers(1, 4), st.integers(2, 4), st.booleans())
def test_asha_agrees_report_by_report_with_a_naive_one(
    drawn: tuple[list[list[float]], list[float]], slots: int, eta: int, drain: bool
) -> None:
    curves, seconds = drawn
    trace = table(curves, seconds=seconds)
    played = Played(trace, Asha(eta=eta, first=1, drain=drain), slots=slots).run()
    leads = {attempt.attempt: attempt.trial for attempt in played.launches}
    told = [Told(event.at, leads[event.attempt], event.epoch) for event in played.of(Reported)]
    naive = Naive(curves, seconds, slots, eta, drain).run()
    assert [(t.trial, t.epoch) for t in told] == [(n.trial, n.epoch) for n in naive]
    assert [t.at for t in told] == pytest.approx([n.at for n in naive])


def test_rungs_are_powers_of_eta_below_the_last_epoch() -> None:
    assert milestones(1, 3, 60) == [1, 3, 9, 27, 60]
    assert milestones(2, 4, 128) == [2, 8, 32, 128]
    assert milestones(5, 3, 4) == [4]


@pytest.mark.parametrize(("first", "eta"), [(0, 3), (-1, 3), (1, 1), (1, 0)])
def test_rungs_that_cannot_be_meant_are_refused(first: int, eta: int) -> None:
    with pytest.raises(SpecError, match="cannot be meant"):
        Asha(first=first, eta=eta)


def test_the_best_third_of_a_rung_is_promoted_best_first() -> None:
    rung = Rung(1, 3)
    for trial, loss in enumerate([5.0, 4.0, 3.0, 2.0, 1.0]):
        rung.record(trial, loss, None)
    assert (rung.quota, rung.best_promotable()) == (1, 4)
    rung.record(5, 6.0, None)
    rung.leave(4)
    assert (rung.quota, rung.best_promotable(), rung.cutoff) == (2, 3, 2.0)
    rung.leave(3)
    assert rung.best_promotable() is None
    assert rung.best_waiting() == (3.0, 2)


def promoted(rung: Rung) -> list[int]:
    """Let everybody go on who may, and return them in order."""
    found = []
    while (trial := rung.best_promotable()) is not None:
        found.append(trial)
        rung.leave(trial)
    return found


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, math.inf]), max_size=40), st.integers(2, 4))
def test_a_rung_keeps_the_same_top_as_sorting_would(losses: list[float], eta: int) -> None:
    rung = Rung(1, eta)
    for trial, loss in enumerate(losses):
        rung.record(trial, loss, None)
    ranked = sorted(range(len(losses)), key=lambda trial: (losses[trial], trial))
    top = [trial for trial in ranked[: len(losses) // eta] if losses[trial] < math.inf]
    assert promoted(rung) == top


def test_trials_that_share_a_rungs_epoch_count_once_and_go_on_together() -> None:
    rung = Rung(1, 2)
    for trial in (0, 1, 2):
        rung.record(trial, 1.0, origin=7)
    assert (rung.count, rung.best_promotable()) == (1, None)
    rung.record(3, 2.0, origin=8)
    assert promoted(rung) == [0, 1, 2]
    rung.record(4, 1.0, origin=7)
    assert (rung.count, rung.best_promotable()) == (2, 4)


def test_the_best_of_too_few_goes_on_once_that_is_granted() -> None:
    rung = Rung(1, 3)
    for trial, origin in ((0, 7), (1, 7), (2, 8)):
        rung.record(trial, float(origin), origin)
    assert (rung.count, rung.trials, rung.quota) == (2, 3, 0)
    rung.grant()
    assert promoted(rung) == [0, 1]
    for trial in (3, 4, 5):
        rung.record(trial, float(trial), origin=trial)
    assert (rung.count, rung.quota) == (5, 1)
    assert promoted(rung) == [3], "it is better than the one that was let go"


def schedules(firsts: int, seconds: int, at: int) -> list[dict[str, Any]]:
    """Return rates that differ from the start, and again after so many epochs."""
    return [
        {"lr": pl.piecewise([(0, first), (at, 10 + second)])}
        for first in range(firsts)
        for second in range(seconds)
    ]


def shared_study(configs: list[dict[str, Any]]) -> Rehearsal:
    """Return a study whose losses are its rates, with trials that wait for promotion left alone."""
    curves = [[float(setting_at(canonical(c), e)["lr"]) for e in range(27)] for c in configs]
    trace = table(curves, configs=configs)
    policy = Asha(eta=3, first=1, drain=False)
    free = {"save_every_s": 0.0}
    return Played(trace, policy, share=True, slots=3, cluster=free).run()


def test_trials_that_agree_up_to_the_next_rung_go_on_as_one() -> None:
    state = shared_study(schedules(firsts=9, seconds=3, at=3)).state
    # Three of nine rates go on to epoch 3, each with its three trials.
    assert [trial.epoch for trial in state.trials[9:]] == [1] * 18
    # These part before epoch 9, so they are nine there, and three of them go on; and so on.
    assert sorted(trial.epoch for trial in state.trials[:9]) == [3] * 6 + [9] * 2 + [27]
    assert state.epochs_trained == 9 + 3 * 2 + 3 * 6 + 18


def test_trials_that_part_late_are_not_left_behind_for_being_few() -> None:
    state = shared_study(schedules(firsts=2, seconds=9, at=9)).state
    # Of two rates the better one goes on alone: two are too few for a promotion, eighteen are not.
    assert [trial.epoch for trial in state.trials[9:]] == [1] * 9
    # Its nine trials have parted before epoch 27: three of them come there.
    assert sorted(trial.epoch for trial in state.trials[:9]) == [9] * 6 + [27] * 3
    assert state.epochs_trained == 2 + 8 + 3 * 18


def test_a_trial_without_a_number_is_never_promoted() -> None:
    curves = [[math.nan] * 9, [math.nan] * 9, [1.0] * 9]
    played = Played(table(curves), Asha(first=1, drain=False)).run()
    assert [trial.epoch for trial in played.state.trials] == [1, 1, 3]


def test_every_promotion_and_every_wait_says_why_in_numbers() -> None:
    curves = [[loss] * 9 for loss in (3.0, 2.0, 1.0, 9.0)]
    played = Played(table(curves), Asha(first=1, drain=False)).run()
    assert [wait.why for wait in played.of(Pause)] == [
        "loss 3 at epoch 1: only 1 of the 3 scores that one promotion needs are in",
        "loss 2 at epoch 1: only 2 of the 3 scores that one promotion needs are in",
        "loss 1 at epoch 3: only 1 of the 3 scores that one promotion needs are in",
        "loss 9 at epoch 1 is worse than 1, the last of the best 1 of 4",
    ]
    assert [(go.trial, go.until, go.why) for go in played.of(Go)] == [
        (2, 3, "it is among the best 1 of 3 at epoch 1")
    ]
    assert {opened.until for opened in played.of(Open)} == {1}


def test_draining_brings_every_trial_to_its_end_when_no_new_ones_come() -> None:
    curves = [[loss] * 9 for loss in (3.0, 2.0, 1.0, 9.0)]
    played = Played(table(curves), Asha(first=1)).run()
    assert {trial.status for trial in played.state.trials} == {Status.FINISHED}


def test_the_first_rung_is_one_percent_of_the_epochs_by_default() -> None:
    played = Played(table([[1.0] * 300]), Asha(drain=False)).run()
    assert played.state.trials[0].epoch == 3
