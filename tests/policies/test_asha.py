"""ASHA, against an independent and naive re-implementation, and case by case."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive_asha import NaiveAsha, NaiveReport, random_tables
from small_studies import SmallStudy, make_table

import paceline as pl
from paceline.core.decisions import Go, Open, Pause
from paceline.core.errors import SpecError
from paceline.core.events import Reported
from paceline.core.values import OPEN_ENDED, Budget, Status, Target
from paceline.plan.settings import canonicalize, setting_at
from paceline.policies.asha import Asha
from paceline.policies.rungs import Rung, choose_first_rung, compute_milestones

if TYPE_CHECKING:
    from paceline.testing.simulations import SimulatedStudy


@given(random_tables(), st.integers(1, 4), st.integers(2, 4), st.booleans())
def test_asha_agrees_with_a_naive_implementation_at_every_report(
    drawn: tuple[list[list[float]], list[float]], slots: int, eta: int, drain: bool
) -> None:
    curves, seconds = drawn
    trace = make_table(curves, seconds=seconds)
    played = SmallStudy(trace, Asha(eta=eta, first=1, drain=drain), slots=slots).run()
    leads = {attempt.attempt: attempt.trial for attempt in played.launches}
    reports = [
        NaiveReport(event.at, leads[event.attempt], event.epoch)
        for event in played.list_entries(Reported)
    ]
    naive = NaiveAsha(curves, seconds, slots, eta, drain).run()
    assert [(t.trial, t.epoch) for t in reports] == [(n.trial, n.epoch) for n in naive]
    assert [t.at for t in reports] == pytest.approx([n.at for n in naive])


def test_rungs_are_powers_of_eta_below_the_last_epoch() -> None:
    assert compute_milestones(1, 3, 60) == [1, 3, 9, 27, 60]
    assert compute_milestones(2, 4, 128) == [2, 8, 32, 128]
    assert compute_milestones(5, 3, 4) == [4]


def test_the_first_rung_is_the_first_epoch_where_the_last_one_is_not_known() -> None:
    assert choose_first_rung(None, OPEN_ENDED) == 1
    assert choose_first_rung(None, 300) == 3
    assert choose_first_rung(5, 4) == 4


@pytest.mark.parametrize(("first", "eta"), [(0, 3), (-1, 3), (1, 1), (1, 0)])
def test_invalid_rungs_are_refused(first: int, eta: int) -> None:
    with pytest.raises(SpecError, match="is invalid"):
        Asha(first=first, eta=eta)


def test_the_best_third_of_a_rung_is_promoted_best_first() -> None:
    rung = Rung(1, 3)
    for trial, loss in enumerate([5.0, 4.0, 3.0, 2.0, 1.0]):
        rung.record(trial, loss, None)
    assert (rung.quota, rung.best_promotable) == (1, 4)
    rung.record(5, 6.0, None)
    rung.remove(4)
    assert (rung.quota, rung.best_promotable, rung.cutoff) == (2, 3, 2.0)
    rung.remove(3)
    assert rung.best_promotable is None
    assert rung.best_paused == (3.0, 2)


def promoted(rung: Rung) -> list[int]:
    """Promote every promotable trial and return them in order."""
    found = []
    while (trial := rung.best_promotable) is not None:
        found.append(trial)
        rung.remove(trial)
    return found


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, math.inf]), max_size=40), st.integers(2, 4))
def test_a_rung_keeps_the_same_top_as_sorting_would(losses: list[float], eta: int) -> None:
    rung = Rung(1, eta)
    for trial, loss in enumerate(losses):
        rung.record(trial, loss, None)
    ranked = sorted(range(len(losses)), key=lambda trial: (losses[trial], trial))
    top = [trial for trial in ranked[: len(losses) // eta] if losses[trial] < math.inf]
    assert promoted(rung) == top


def test_trials_that_share_a_rungs_epoch_count_once_and_are_promoted_together() -> None:
    rung = Rung(1, 2)
    for trial in (0, 1, 2):
        rung.record(trial, 1.0, origin=7)
    assert (rung.count, rung.best_promotable) == (1, None)
    rung.record(3, 2.0, origin=8)
    assert promoted(rung) == [0, 1, 2]
    rung.record(4, 1.0, origin=7)
    assert (rung.count, rung.best_promotable) == (2, 4)


def test_the_best_of_too_few_is_promoted_when_one_promotion_is_allowed() -> None:
    rung = Rung(1, 3)
    for trial, origin in ((0, 7), (1, 7), (2, 8)):
        rung.record(trial, float(origin), origin)
    assert (rung.count, rung.trials, rung.quota) == (2, 3, 0)
    rung.allow_one()
    assert promoted(rung) == [0, 1]
    for trial in (3, 4, 5):
        rung.record(trial, float(trial), origin=trial)
    assert (rung.count, rung.quota) == (5, 1)
    assert promoted(rung) == [3], "it is better than the one that was let go"


def schedules(firsts: int, seconds: int, at: int) -> list[dict[str, Any]]:
    """Return rates that differ from the start, and again from epoch `at` on."""
    return [
        {"lr": pl.piecewise([(0, first), (at, 10 + second)])}
        for first in range(firsts)
        for second in range(seconds)
    ]


def shared_study(configs: list[dict[str, Any]]) -> SimulatedStudy:
    """Return a study whose losses are its rates, without draining."""
    curves = [[float(setting_at(canonicalize(c), e)["lr"]) for e in range(27)] for c in configs]
    trace = make_table(curves, configs=configs)
    policy = Asha(eta=3, first=1, drain=False)
    free = {"save_every_s": 0.0}
    return SmallStudy(trace, policy, share=True, slots=3, cluster=free).run()


def test_trials_with_equal_settings_up_to_the_next_rung_are_one_candidate() -> None:
    state = shared_study(schedules(firsts=9, seconds=3, at=3)).state
    # Three of nine rates are promoted to epoch 3, each with its three trials.
    assert [trial.epoch for trial in state.trials[9:]] == [1] * 18
    # These differ before epoch 9: nine candidates there, of which three are promoted; and so on.
    assert sorted(trial.epoch for trial in state.trials[:9]) == [3] * 6 + [9] * 2 + [27]
    assert state.epochs_trained == 9 + 3 * 2 + 3 * 6 + 18


def test_trials_that_diverge_late_are_promoted_although_they_are_few_candidates() -> None:
    state = shared_study(schedules(firsts=2, seconds=9, at=9)).state
    # Of two rates the better one is promoted: two candidates are too few, eighteen trials are not.
    assert [trial.epoch for trial in state.trials[9:]] == [1] * 9
    # Its nine trials differ before epoch 27: three of them reach it.
    assert sorted(trial.epoch for trial in state.trials[:9]) == [9] * 6 + [27] * 3
    assert state.epochs_trained == 2 + 8 + 3 * 18


def test_a_trial_without_a_number_is_never_promoted() -> None:
    curves = [[math.nan] * 9, [math.nan] * 9, [1.0] * 9]
    played = SmallStudy(make_table(curves), Asha(first=1, drain=False)).run()
    assert [trial.epoch for trial in played.state.trials] == [1, 1, 3]


def test_every_promotion_and_every_pause_gives_its_numbers() -> None:
    curves = [[loss] * 9 for loss in (3.0, 2.0, 1.0, 9.0)]
    played = SmallStudy(make_table(curves), Asha(first=1, drain=False)).run()
    assert [wait.why for wait in played.list_entries(Pause)] == [
        "loss 3 at epoch 1: only 1 of the 3 scores that one promotion needs are in",
        "loss 2 at epoch 1: only 2 of the 3 scores that one promotion needs are in",
        "loss 1 at epoch 3: only 1 of the 3 scores that one promotion needs are in",
        "loss 9 at epoch 1 is worse than 1, the last of the best 1 of 4",
    ]
    assert [(go.trial, go.until, go.why) for go in played.list_entries(Go)] == [
        (2, 3, "it is among the best 1 of 3 at epoch 1")
    ]
    assert {opened.until for opened in played.list_entries(Open)} == {1}


def test_draining_trains_every_trial_to_the_end_when_no_new_ones_come() -> None:
    curves = [[loss] * 9 for loss in (3.0, 2.0, 1.0, 9.0)]
    played = SmallStudy(make_table(curves), Asha(first=1, drain=True)).run()
    assert {trial.status for trial in played.state.trials} == {Status.FINISHED}


@pytest.mark.parametrize(
    "budget", [Budget(deadline_s=100.0), Budget(target=Target(0.5)), Budget(slot_seconds=100.0)]
)
def test_no_slot_idles_before_a_deadline_a_target_or_the_end_of_the_slot_time(
    budget: Budget,
) -> None:
    curves = [[loss] * 9 for loss in (3.0, 2.0, 1.0, 9.0)]
    played = SmallStudy(make_table(curves), Asha(first=1), budget=budget).run()
    assert {trial.status for trial in played.state.trials} == {Status.FINISHED}


def test_a_study_that_only_its_trials_limit_ends_when_the_rule_is_satisfied() -> None:
    curves = [[float(loss)] * 27 for loss in range(40)]
    played = SmallStudy(make_table(curves), Asha(first=1)).run()
    # 40 reach epoch 1, 13 epoch 3, 4 epoch 9, 1 epoch 27.
    assert played.state.epochs_trained == 40 + 13 * 2 + 4 * 6 + 18
    assert played.state.end is not None
    assert played.state.end.why == (
        "nothing is left that policy given would train: of 40 trials 39 stay paused"
    )


def test_the_best_trial_of_a_few_reaches_the_last_epoch_without_a_pause() -> None:
    curves = [[loss] * 9 for loss in (3.0, 2.0, 1.0, 9.0)]
    played = SmallStudy(make_table(curves), Asha(first=1)).run()
    assert [trial.epoch for trial in played.state.trials] == [1, 1, 9, 1]
    last = played.list_entries(Go)[-1]
    assert (last.trial, last.until) == (2, 9)
    assert last.why == "no trial is promoted and none has finished: it is the best at epoch 3"


def test_a_trial_without_a_number_is_not_trained_to_the_last_epoch() -> None:
    played = SmallStudy(make_table([[math.nan] * 9, [math.nan] * 9]), Asha(first=1)).run()
    assert [trial.epoch for trial in played.state.trials] == [1, 1]


def test_the_first_rung_is_one_percent_of_the_epochs_by_default() -> None:
    played = SmallStudy(make_table([[1.0] * 300]), Asha(drain=False)).run()
    assert played.state.trials[0].epoch == 3
