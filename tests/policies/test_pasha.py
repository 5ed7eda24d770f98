"""PASHA, against an independent and naive re-implementation, and case by case."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive_asha import NaiveAsha, NaiveReport, random_tables
from small_studies import SmallStudy, make_table

from paceline.core.decisions import Go, Pause
from paceline.core.errors import SpecError
from paceline.core.events import Reported
from paceline.policies.pasha import Pasha


class NaivePasha(NaiveAsha):
    """PASHA that computes everything from all reports at every call."""

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
        losses = [(self.loss(seen.trial, seen.epoch), at) for at, seen in enumerate(self.reports)]
        loss, at = min(losses, default=(math.inf, 0))
        best = max(
            (t for t in self.reports if t.trial == self.reports[at].trial), key=lambda t: t.epoch
        )
        over = best.epoch == len(self.curves[best.trial])
        return None if math.isinf(loss) or over else (best.trial, best.epoch)

    def top(self) -> int:
        """Return the place of the highest rung in use."""
        top, eps, there = min(1, len(self.levels) - 1), 0.0, []
        for report in self.reports:
            curve = [self.loss(report.trial, epoch + 1) for epoch in range(report.epoch)]
            if top == len(self.levels) - 1 or report.epoch != self.levels[top]:
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
    """Return whether one curve was ahead, then the other, then the first again."""
    signs = [(a > b) - (a < b) for a, b in zip(one, other, strict=True)]
    return any(
        a and a == -b and a == c
        for (i, a), (j, b), (k, c) in combinations(enumerate(signs), 3)
        if i < j < k
    )


@given(random_tables(), st.integers(1, 4), st.integers(2, 4))
def test_pasha_agrees_with_a_naive_implementation_at_every_report(
    drawn: tuple[list[list[float]], list[float]], slots: int, eta: int
) -> None:
    curves, seconds = drawn
    played = SmallStudy(
        make_table(curves, seconds=seconds), Pasha(eta=eta, first=1), slots=slots
    ).run()
    leads = {attempt.attempt: attempt.trial for attempt in played.launches}
    reports = [
        NaiveReport(event.at, leads[event.attempt], event.epoch)
        for event in played.list_entries(Reported)
    ]
    naive = NaivePasha(curves, seconds, slots, eta).run()
    assert [(t.trial, t.epoch) for t in reports] == [(n.trial, n.epoch) for n in naive]
    assert [t.at for t in reports] == pytest.approx([n.at for n in naive])


def test_while_the_ranking_is_settled_only_the_best_trains_on() -> None:
    # Rungs 1, 2, 4 and 8. Half of each is promoted; the ranking at 2 is the ranking at 1.
    curves = [[loss] * 8 for loss in (4.0, 3.0, 2.0, 1.0)]
    played = SmallStudy(make_table(curves), Pasha(eta=2, first=1)).run()
    assert [trial.epoch for trial in played.state.trials] == [1, 2, 2, 8]
    assert [pause.why for pause in played.list_entries(Pause) if pause.trial == 2] == [
        "loss 2 at epoch 2: the order of the best 2 is that at epoch 1, give or take 0, so "
        "further training would tell nothing"
    ]
    assert [(go.trial, go.until, go.why) for go in played.list_entries(Go)][3:] == [
        (3, 4, "no new trials come, none is promoted, and it is the best, at epoch 2"),
        (3, 8, "no new trials come, none is promoted, and it is the best, at epoch 4"),
    ]


def test_a_rung_is_added_when_the_ranking_changes_between_the_highest_two() -> None:
    # Trial 1 is behind trial 2 at epoch 1 and ahead of it at epoch 2.
    curves = [[4.0] * 8, [3.0] + [0.5] * 7, [2.0] * 8, [1.0] * 8]
    played = SmallStudy(make_table(curves), Pasha(eta=2, first=1)).run()
    assert [(go.trial, go.until, go.why) for go in played.list_entries(Go)][2:4] == [
        (1, 4, "it is among the best 1 of 2 at epoch 2"),
        (3, 2, "it is among the best 2 of 4 at epoch 1"),
    ]


@pytest.mark.parametrize(("third", "added"), [(1.08, False), (1.15, True)])
def test_a_change_of_ranking_within_the_noise_does_not_count(third: float, added: bool) -> None:
    # Two curves that cross at epochs 2 and 3 end 0.1 apart: eps. The third overtakes both.
    first, second = [1.0, 2.0, *[1.0] * 22], [1.1, 1.9, *[1.1] * 22]
    curves = [first, second, [3.0, 3.0, third, *[0.95] * 21]]
    hopeless = [[10.0] * 24] * 3
    mixed = [curve for pair in zip(hopeless, curves, strict=True) for curve in pair]
    played = SmallStudy(make_table(mixed), Pasha(eta=2, first=3)).run()
    (why,) = [go.why for go in played.list_entries(Go) if go.until == 12]
    assert why.startswith("it is among the best" if added else "no new trials come")


def test_a_study_of_one_epoch_needs_no_rungs() -> None:
    played = SmallStudy(make_table([[2.0], [1.0]]), Pasha()).run()
    assert [trial.epoch for trial in played.state.trials] == [1, 1]


def test_invalid_parameters_are_refused() -> None:
    cases: list[dict[str, Any]] = [{"eta": 1}, {"first": 0}]
    for wrong in cases:
        with pytest.raises(SpecError, match="is invalid"):
            Pasha(**wrong)
