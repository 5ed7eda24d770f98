"""POP and HyperSched: their arithmetic against brute force, and cases computed by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from small_studies import SmallStudy, make_table

from paceline.analysis.profiles import ProfileRecorder
from paceline.core.decisions import AskForecast, Close, Cut, Go, Open, Stop
from paceline.core.errors import SpecError
from paceline.core.forecast_quantiles import (
    LEVELS,
    Forecast,
    choose_horizons,
    compute_confidence,
    split_promising,
)
from paceline.core.values import Budget, Status, Target
from paceline.engines.sim.oracle import Oracle
from paceline.engines.sim.trace_workload import TraceWorkload
from paceline.policies.hypersched import HyperSched
from paceline.policies.pop import Pop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.ports import History
    from paceline.engines.sim.traces import Trace


@given(st.lists(st.floats(0.0, 1.0), max_size=30), st.integers(1, 30), st.integers(1, 4))
def test_the_slot_split_is_where_desired_and_deserved_slots_meet(
    confidences: list[float], slots: int, k: int
) -> None:
    def effective(p: float) -> float:
        return min(k * sum(each >= p for each in confidences), slots * p)

    best = max(map(effective, confidences), default=0.0)
    threshold, granted = split_promising(sorted(confidences, reverse=True), slots, k)
    whole = int(best + 1e-9) // k * k
    assert granted == whole or (whole == 0 and granted == k <= slots and threshold >= 0.5)
    if best:
        assert effective(threshold) == best
        assert not any(effective(p) == best for p in confidences if p > threshold)


def test_one_certain_trial_takes_no_more_than_its_own_slots() -> None:
    assert split_promising([1.0], 8, 1) == (1.0, 1)
    assert split_promising([0.9, 0.8, 0.1], 4, 1) == (0.8, 2)
    assert split_promising([0.01] * 50, 4, 1) == (0.01, 0)
    assert split_promising([], 4, 1) == (1.0, 0)


def test_a_lone_slot_is_for_a_trial_of_at_least_even_confidence() -> None:
    assert split_promising([0.6, 0.3], 1, 1) == (0.6, 1)
    assert split_promising([0.4, 0.3], 1, 1) == (0.4, 0)
    assert split_promising([0.6], 4, 4) == (0.6, 4)
    assert split_promising([0.9], 2, 4) == (0.9, 0)


def test_confidence_is_the_chance_of_ever_reaching_the_target() -> None:
    # Reached at once in a fifth of cases, between epochs 12 and 15 in another three fifths.
    sure = compute_confidence([(11, 0.2), (15, 0.8), (20, 0.5)], 10)
    assert sure.chance == pytest.approx(0.8)
    assert sure.epochs == pytest.approx((0.2 * 1 + 0.6 * 3.5) / 0.8)
    assert compute_confidence([(11, 0.0)], 10) == (0.0, 0.0)


def test_horizons_spread_over_what_is_left_and_end_with_it() -> None:
    assert choose_horizons(10, 13) == (11, 12, 13)
    assert choose_horizons(10, 10) == ()
    spread = choose_horizons(0, 100)
    assert spread == tuple(range(5, 101, 5))


def seer(trace: Trace) -> Oracle:
    return Oracle(TraceWorkload(trace), sign=1.0 if trace.header.mode == "min" else -1.0)


class FixedChances:
    """Gives each run a fixed chance to get below 0.5."""

    others = 0

    def __init__(self, chances: dict[int, float]) -> None:
        self._chances = chances

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        return [self._row(history) for history in histories]

    def _row(self, history: History) -> Forecast:
        p = self._chances[int(history.config["run"])]
        row = tuple(0.5 + (level - p) for level in LEVELS)
        return Forecast(tuple(history.horizons), (row,) * len(history.horizons))


# Short, so that calibration hardly changes the chances.
FLAT = make_table([[0.9] * 8 for _ in range(6)])
GOAL = Budget(target=Target(0.5, 1))


def test_poor_trials_stop_promising_ones_train_on_and_the_others_take_turns() -> None:
    says = FixedChances({0: 0.9, 1: 0.3, 2: 0.0, 3: 0.3, 4: 0.02, 5: 0.3})
    pop = Pop(boundary=2, published=True)
    played = SmallStudy(FLAT, pop, slots=2, curves=says, budget=GOAL).run()
    trials = played.state.trials
    # The certain trial is never paused; those without a chance stop at their first boundary.
    assert not [cut for cut in played.list_entries(Cut) if cut.trial == 0]
    assert [trial.id for trial in trials if trial.status is Status.STOPPED] == [2, 4]
    assert trials[2].epoch == 2
    assert trials[4].epoch == 2
    # The other three take turns of one boundary, in the order they came.
    turns = [go.trial for go in played.list_entries(Go) if "waited longest" in go.why]
    assert turns[:3] == [1, 3, 5]
    stop, _ = played.list_entries(Stop)
    assert stop.why == "poor: its confidence 0.2% is below 0.05"
    assert stop.label == "poor"
    assert (
        "opportunistic: its confidence 30.0% is below the threshold"
        in played.list_entries(Cut)[0].why
    )


def test_a_promising_trial_gets_a_reason_with_the_numbers() -> None:
    says = FixedChances({0: 0.9, 1: 0.3, 2: 0.3, 3: 0.3, 4: 0.3, 5: 0.3})
    pop = Pop(boundary=2, waiting=6)
    played = SmallStudy(FLAT, pop, slots=2, curves=says, budget=GOAL).run()
    go_on = next(go for go in played.list_entries(Go) if go.why.startswith("promising"))
    # Its goal is raised by one boundary.
    assert (go_on.trial, go_on.until) == (0, 6)
    assert go_on.why == (
        "promising: confidence 90.0%, expected in 1s, threshold 90.0%, 1 slot for such trials"
    )
    assert go_on.label == "promising"


def test_a_profile_reads_the_classes_off_the_labels() -> None:
    says = FixedChances({0: 0.9, 1: 0.3, 2: 0.0, 3: 0.3, 4: 0.02, 5: 0.3})
    pop = Pop(boundary=2, waiting=6)
    played = SmallStudy(FLAT, pop, slots=2, curves=says, budget=GOAL).run()
    reworded = [
        replace(step, decisions=tuple(replace(each, why="reworded") for each in step.decisions))
        for step in played.steps
    ]
    profiles = []
    for steps in (played.steps, reworded):
        recorder = ProfileRecorder()
        recorder.take(steps)
        profiles.append(recorder.profile())
    assert set(profiles[0].held) == {"promising", "opportunistic"}
    assert profiles[0] == profiles[1]


def test_on_a_lone_slot_a_trial_of_at_least_even_confidence_trains_on() -> None:
    says = FixedChances({0: 0.3, 1: 0.7, 2: 0.3, 3: 0.3, 4: 0.3, 5: 0.3})
    pop = Pop(boundary=2, waiting=6)
    played = SmallStudy(FLAT, pop, slots=1, curves=says, budget=GOAL).run()
    assert not [cut for cut in played.list_entries(Cut) if cut.trial == 1]
    assert [cut.trial for cut in played.list_entries(Cut)][:2] == [0, 2]


def test_a_promising_trial_that_was_paused_resumes_before_all_others() -> None:
    # At first no trial is certain; then trial 1 gets a forecast with every chance.
    says = FixedChances({0: 0.6, 1: 0.9, 2: 0.55, 3: 0.4, 4: 0.4, 5: 0.4})
    pop = Pop(boundary=2, waiting=6)
    played = SmallStudy(FLAT, pop, slots=2, curves=says, budget=GOAL).run()
    picks = [go.why for go in played.list_entries(Go) if go.why.startswith("promising")]
    opened = [open_.trial for open_ in played.list_entries(Open)]
    assert opened == [0, 1, 2, 3, 4, 5]
    assert all("threshold" in why and "for such trials" in why for why in picks)
    finished = [trial.id for trial in played.state.trials if trial.status is Status.FINISHED]
    assert finished == [0, 1, 2, 3, 4, 5]


def test_a_trial_below_the_kill_threshold_is_stopped_without_a_forecast() -> None:
    curves = [[0.10] * 20, [0.10 + 0.02 * k for k in range(20)]]
    trace = make_table(curves, mode="max")
    played = SmallStudy(trace, Pop(kill=0.11), slots=2, curves=seer(trace)).run()
    (stop,) = played.list_entries(Stop)
    assert stop.trial == 0
    assert stop.why == "best loss 0.1 in epochs 1 to 2: not past 0.11"
    assert {ask.trial for ask in played.list_entries(AskForecast)} == {1}


def test_a_trial_trains_on_while_its_forecast_is_computed() -> None:
    trace = make_table([[1.0 - 0.03 * k for k in range(20)]] * 2)
    played = SmallStudy(
        trace, Pop(), slots=1, cluster={"forecast_s": 1.5}, curves=seer(trace), budget=GOAL
    ).run()
    assert played.state.end is not None
    assert played.state.end.cause == "target"
    assert not played.list_entries(Cut)
    assert played.state.now == 18.0


def test_a_trial_without_time_for_another_epoch_is_not_resumed() -> None:
    says = FixedChances(dict.fromkeys(range(6), 0.5))
    budget = Budget(deadline_s=2.5, target=Target(0.1, 1))
    played = SmallStudy(FLAT, Pop(boundary=2), slots=1, curves=says, budget=budget).run()
    stops = played.list_entries(Stop)
    assert [stop.why for stop in stops] == ["no further epoch of it ends before the deadline"]


def test_without_a_target_a_trial_that_will_beat_the_best_is_promising() -> None:
    curves = [[0.8 - 0.01 * k for k in range(20)], [1.0 - 0.04 * k for k in range(20)]]
    trace = make_table([*curves, *[[0.9] * 20] * 4])
    played = SmallStudy(
        trace, Pop(), slots=1, curves=seer(trace), budget=Budget(deadline_s=60.0)
    ).run()
    assert played.state.best is not None
    assert played.state.best.id == 1
    # The others are poor and wait until nothing better is left: no time is left unused.
    poor = [cut.trial for cut in played.list_entries(Cut) if cut.label == "poor"]
    assert set(poor) == {2, 3, 4, 5}
    assert played.state.now == 60.0


# HyperSched: four epochs a rung factor, rungs at 1 and 4 of 8 epochs.


def test_hypersched_pauses_in_retrospect_and_resumes_a_trial_that_caught_up() -> None:
    losses = (5.0, 4.0, 1.0, 3.0, 6.0, 6.0, 7.0, 7.0)
    curves = [[loss] * 8 for loss in losses]
    played = SmallStudy(make_table(curves), HyperSched(eta=2, drain=True), slots=2).run()
    first = played.list_entries(Cut)[0]
    # It was the first at its rung, and is judged again when another trial has reached it.
    assert first.trial == 0
    assert first.why == "loss 5 at epoch 1 is worse than 4.5, the best 1/2 of 2"
    caught_up = [go for go in played.list_entries(Go) if "by now among the best 1/2" in go.why]
    assert [go.trial for go in caught_up] == [0]
    assert played.state.best is not None
    assert played.state.best.id == 2
    assert all(trial.status is Status.FINISHED for trial in played.state.trials)


def test_hypersched_admits_no_trial_that_could_not_catch_up() -> None:
    curves = [[5.0 - number / 10] * 8 for number in range(30)]
    played = SmallStudy(
        make_table(curves), HyperSched(), slots=1, budget=Budget(deadline_s=20.0)
    ).run()
    (close,) = played.list_entries(Close)
    # The longest trial has trained to its end, eight seconds; eight epochs of a second each.
    assert close.why == "7 s are left, and a new trial would need 8 s to matter"


def test_hypersched_without_draining_never_resumes_paused_trials() -> None:
    curves = [[1.0] * 8, [2.0] * 8, [3.0] * 8, [4.0] * 8]
    for drain, finished in ((False, 1), (True, 4)):
        played = SmallStudy(make_table(curves), HyperSched(drain=drain), slots=1).run()
        done = [trial for trial in played.state.trials if trial.status is Status.FINISHED]
        assert len(done) == finished


def test_hypersched_closes_when_new_trials_have_no_chance() -> None:
    curves = [[1.0] * 16] + [[2.0 + number / 10] * 16 for number in range(60)]
    trace = make_table(curves)
    played = SmallStudy(
        trace,
        HyperSched(chance=0.05),
        slots=1,
        curves=seer(trace),
        budget=Budget(deadline_s=1000.0),
    ).run()
    (close,) = played.list_entries(Close)
    assert close.why.startswith("a new trial's chance to beat the best by the deadline is ")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Pop(boundary=0),
        lambda: Pop(low=1.0),
        lambda: Pop(k=0),
        lambda: Pop(waiting=-1.0),
        lambda: HyperSched(eta=1),
        lambda: HyperSched(chance=0.0),
    ],
)
def test_invalid_parameters_are_refused(make: object) -> None:
    with pytest.raises(SpecError, match="is invalid"):
        make()  # type: ignore[operator]


class FirstWrong:
    """Makes wrong forecasts at first, and then knows the future."""

    others = 0

    def __init__(self, trace: Trace, wrong: int) -> None:
        self._oracle = seer(trace)
        self._wrong = wrong

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        self._wrong -= len(histories)
        if self._wrong < 0:
            return self._oracle.forecast(histories)
        return [Forecast(tuple(h.horizons), ((0.0,) * 15,) * len(h.horizons)) for h in histories]


def test_pop_trains_on_while_forecasts_mislead_and_trusts_them_again_later() -> None:
    trace = make_table([[1.0 + number / 100] * 40 for number in range(40)])
    target = Budget(target=Target(0.5, 1))
    curves = FirstWrong(trace, wrong=60)
    played = SmallStudy(trace, Pop(boundary=2), slots=2, curves=curves, budget=target).run()
    kept = [go for go in played.list_entries(Go) if "forecasts have been wrong" in go.why]
    assert kept
    assert not played.state.calibration.distrust
    # The oracle's forecasts show that no trial reaches the target.
    assert any(cut.why.startswith("poor") for cut in played.list_entries(Cut))
