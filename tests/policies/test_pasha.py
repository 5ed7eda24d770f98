"""PASHA, against an independent and naive re-implementation, and case by case."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from build import Played, table
from hypothesis import given
from hypothesis import strategies as st
from test_asha import Naive, Told, tables

from paceline.core.decisions import Go, Pause
from paceline.core.errors import SpecError
from paceline.core.events import Reported
from paceline.policies.pasha import Pasha


class NaivePasha(Naive):
    """PASHA that works everything out again from all reports whenever it is asked."""

    def __init__(
        self, curves: list[list[float]], seconds: list[float], slots: int, eta: int
    ) -> None:
        super().__init__(curves, seconds, slots, eta, drain=False)
        self.slots = slots

    def pick(self) -> tuple[int, int] | None:
        every, used = self.levels, self.top()
        self.levels = every[: used + 1]
        found = super().pick()
        self.levels = every
        if found is not None or not self.closed or self.idle < self.slots:
            return found
        losses = [(self.loss(told.trial, told.epoch), at) for at, told in enumerate(self.told)]
        loss, at = min(losses, default=(math.inf, 0))
        best = max((t for t in self.told if t.trial == self.told[at].trial), key=lambda t: t.epoch)
        over = best.epoch == len(self.curves[best.trial])
        return None if math.isinf(loss) or over else (best.trial, best.epoch)

    def top(self) -> int:
        """Return the place of the highest rung in use."""
        top, eps, there = min(1, len(self.levels) - 1), 0.0, []
        for told in self.told:
            curve = [self.loss(told.trial, epoch + 1) for epoch in range(told.epoch)]
            if top == len(self.levels) - 1 or told.epoch != self.levels[top]:
                continue
            if math.isinf(curve[-1]):
                continue
            there.append(curve)
            noisy = [abs(a[-1] - b[-1]) for a, b in combinations(there, 2) if back_and_forth(a, b)]
            eps = float(np.quantile(noisy, 0.9)) if noisy else eps
            now = sorted(there, key=lambda curve: curve[-1])
            before = self.levels[top - 1] - 1
            then = sorted(curve[before] for curve in there)
            ranks = [(curve[before], loss) for curve, loss in zip(now, then, strict=True)]
            if any(a != b and abs(a - b) > eps for a, b in ranks):
                top, there = top + 1, []
        return top


def back_and_forth(one: list[float], other: list[float]) -> bool:
    """Say whether one was ahead, then the other, then the first again."""
    signs = [(a > b) - (a < b) for a, b in zip(one, other, strict=True)]
    return any(
        a and a == -b and a == c
        for (i, a), (j, b), (k, c) in combinations(enumerate(signs), 3)
        if i < j < k
    )


@given(tables(), st.integers(1, 4), st.integers(2, 4))
def test_pasha_agrees_report_by_report_with_a_naive_one(
    drawn: tuple[list[list[float]], list[float]], slots: int, eta: int
) -> None:
    curves, seconds = drawn
    played = Played(table(curves, seconds=seconds), Pasha(eta=eta, first=1), slots=slots).run()
    leads = {attempt.attempt: attempt.trial for attempt in played.launches}
    told = [Told(event.at, leads[event.attempt], event.epoch) for event in played.of(Reported)]
    naive = NaivePasha(curves, seconds, slots, eta).run()
    assert [(t.trial, t.epoch) for t in told] == [(n.trial, n.epoch) for n in naive]
    assert [t.at for t in told] == pytest.approx([n.at for n in naive])


def test_while_the_order_is_settled_nobody_but_the_best_trains_on() -> None:
    # Rungs 1, 2, 4 and 8. Half of each may go on; the order at 2 is the order at 1.
    curves = [[loss] * 8 for loss in (4.0, 3.0, 2.0, 1.0)]
    played = Played(table(curves), Pasha(eta=2, first=1)).run()
    assert [trial.epoch for trial in played.state.trials] == [1, 2, 2, 8]
    assert [pause.why for pause in played.of(Pause) if pause.trial == 2] == [
        "loss 2 at epoch 2: the order of the best 2 is that at epoch 1, give or take 0, so "
        "further training would tell nothing"
    ]
    assert [(go.trial, go.until, go.why) for go in played.of(Go)][3:] == [
        (3, 4, "no new trials come, nobody is promoted, and it is the best, at epoch 2"),
        (3, 8, "no new trials come, nobody is promoted, and it is the best, at epoch 4"),
    ]


def test_when_the_order_changes_between_the_highest_two_rungs_one_is_added() -> None:
    # Trial 1 is behind trial 2 at epoch 1 and ahead of it at epoch 2.
    curves = [[4.0] * 8, [3.0] + [0.5] * 7, [2.0] * 8, [1.0] * 8]
    played = Played(table(curves), Pasha(eta=2, first=1)).run()
    assert [(go.trial, go.until, go.why) for go in played.of(Go)][2:4] == [
        (1, 4, "it is among the best 1 of 2 at epoch 2"),
        (3, 2, "it is among the best 2 of 4 at epoch 1"),
    ]


@pytest.mark.parametrize(("third", "added"), [(1.08, False), (1.15, True)])
def test_a_change_of_order_within_the_noise_is_none(third: float, added: bool) -> None:
    # Two curves that cross at epochs 2 and 3 end 0.1 apart: eps. The third overtakes both.
    first, second = [1.0, 2.0, *[1.0] * 22], [1.1, 1.9, *[1.1] * 22]
    curves = [first, second, [3.0, 3.0, third, *[0.95] * 21]]
    hopeless = [[10.0] * 24] * 3
    mixed = [curve for pair in zip(hopeless, curves, strict=True) for curve in pair]
    played = Played(table(mixed), Pasha(eta=2, first=3)).run()
    (why,) = [go.why for go in played.of(Go) if go.until == 12]
    assert why.startswith("it is among the best" if added else "no new trials come")


def test_a_study_of_one_epoch_needs_no_rungs() -> None:
    played = Played(table([[2.0], [1.0]]), Pasha()).run()
    assert [trial.epoch for trial in played.state.trials] == [1, 1]


def test_what_cannot_be_meant_is_refused() -> None:
    for wrong in ({"eta": 1}, {"first": 0}):
        with pytest.raises(SpecError, match="cannot be meant"):
            Pasha(**wrong)
