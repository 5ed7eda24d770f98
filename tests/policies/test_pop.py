"""POP: every epoch counts, its pools, what it does without a target and with bad forecasts."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from small_studies import SmallStudy, make_table

from paceline.api.simulation import Simulation
from paceline.core.curve_requests import forecast_curves
from paceline.core.decisions import AskForecast, Cut, Go, Launch, Open, Pause, Resize, Stop
from paceline.core.errors import SpecError
from paceline.core.events import Reported
from paceline.core.forecast_quantiles import (
    LEVELS,
    Forecast,
    average_reports,
    choose_horizons,
    compute_published_confidence,
    split_promising,
)
from paceline.core.ports import History
from paceline.core.values import Budget, Part, Status, Target
from paceline.engines.sim.oracle import Oracle
from paceline.engines.sim.trace_workload import TraceWorkload
from paceline.machine.calibration import Calibration
from paceline.policies.fifo import Fifo
from paceline.policies.pop import Pop
from paceline.policies.target_chances import EpochPace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paceline.core.ports import Demands
    from paceline.core.views import StudyView
    from paceline.engines.sim.traces import Trace

GOAL = Budget(target=Target(0.5, 1))


def seer(trace: Trace) -> Oracle:
    return Oracle(TraceWorkload(trace), sign=1.0 if trace.header.mode == "min" else -1.0)


class SameChances:
    """Gives each run a fixed chance to get below 0.5, at every later epoch or from one on."""

    others = 0

    def __init__(self, chances: dict[int, float], since: dict[int, int] | None = None) -> None:
        self._chances = chances
        self._since = since or {}

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        return [self._forecast(history) for history in histories]

    def _forecast(self, history: History) -> Forecast:
        run = int(history.config["run"])
        rows = []
        for epoch in history.horizons:
            p = self._chances[run] if epoch >= self._since.get(run, 0) else 0.0
            rows.append(tuple(0.5 + (level - p) for level in LEVELS))
        return Forecast(tuple(history.horizons), tuple(rows))


def make_flat(runs: int, epochs: int = 8) -> Trace:
    return make_table([[0.9] * epochs for _ in range(runs)])


# P(m) at every epoch


def test_a_target_passed_between_twenty_horizons_is_seen_by_a_perfect_forecaster() -> None:
    noisy = [0.9] * 100
    noisy[46] = 0.4  # at epoch 47 alone
    assert 47 not in choose_horizons(10, 100)
    trace = make_table([[0.9] * 100, noisy, [0.9] * 100])
    played = SmallStudy(trace, Pop(), slots=1, curves=seer(trace), budget=GOAL).run()
    assert played.state.end is not None
    assert played.state.end.cause == "target"
    ask = played.list_entries(AskForecast)[0]
    assert ask.horizons == tuple(range(11, 101))


class Recording:
    """Keeps the epochs it was asked for."""

    others = 0

    def __init__(self, *, every_epoch: bool) -> None:
        self.every_epoch = every_epoch
        self.asked: list[Sequence[int]] = []

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        self.asked += [history.horizons for history in histories]
        return [None for _ in histories]


def test_a_smooth_model_is_asked_for_twenty_of_many_epochs() -> None:
    history = History([1.0] * 10, tuple(range(11, 101)), 100, {})
    smooth, exact = Recording(every_epoch=False), Recording(every_epoch=True)
    for model in (smooth, exact):
        forecast_curves(model, [history])
    assert smooth.asked == [choose_horizons(10, 100)]
    assert exact.asked == [tuple(range(11, 101))]


def test_a_target_over_several_reports_is_forecast_as_their_mean() -> None:
    forecast = Forecast((4, 6), ((1.0,) * 15, (0.0,) * 15))
    mean = average_reports(forecast, [4.0, 3.0], 3)
    assert mean is not None
    # Epoch 3 and 5 are interpolated: losses 4, 3, 2, 1, 0.5, 0.
    assert mean.epochs == (4, 6)
    assert mean.median(4) == pytest.approx(2.0)
    assert mean.median(6) == pytest.approx(0.5)
    assert average_reports(forecast, [4.0, 3.0], 7) is None
    assert average_reports(forecast, [4.0, 3.0], 1) is forecast


def test_one_report_past_the_target_does_not_make_a_trial_promising_for_a_mean_of_five() -> None:
    once, steady = [0.9] * 40, [0.9] * 30 + [0.4] * 10
    once[20] = 0.1
    trace = make_table([once, steady])
    budget = Budget(target=Target(0.5, 5))
    played = SmallStudy(trace, Pop(), slots=2, curves=seer(trace), budget=budget).run()
    sure = {go.trial for go in played.list_entries(Go) if go.label == "promising"}
    assert sure == {1}


# Pools


def count_promising_cuts(quota: bool) -> list[str]:
    says = SameChances(dict.fromkeys(range(8), 0.5))
    pop = Pop(boundary=2, quota=quota, waiting=8)
    played = SmallStudy(make_flat(8), pop, slots=4, curves=says, budget=GOAL).run()
    return [cut.why for cut in played.list_entries(Cut)]


def test_promising_trials_beyond_their_slots_take_turns_only_if_the_quota_is_kept() -> None:
    assert count_promising_cuts(quota=False) == []
    kept = count_promising_cuts(quota=True)
    assert any("does not earn one of 2 slots for promising trials" in why for why in kept)


def test_equal_forecasts_rank_equally_whatever_was_scored_between_them() -> None:
    says = SameChances(dict.fromkeys(range(8), 0.5))
    pop = Pop(boundary=2, waiting=8)
    played = SmallStudy(make_flat(8, 20), pop, slots=4, curves=says, budget=GOAL).run()
    whys = [go.why for go in played.list_entries(Go) if go.label == "promising"]
    figures = [re.search(r"confidence (\S+), .* threshold (\S+),", why) for why in whys]
    pairs = [found.groups() for found in figures if found is not None]
    assert len(pairs) == len(whys) > 8
    # Calibration has changed the chances meanwhile, but of all trials alike.
    assert len({p for p, _ in pairs}) > 1
    assert all(p == threshold for p, threshold in pairs)
    assert not [cut for cut in played.list_entries(Cut) if "below the threshold" in cut.why]


def test_of_equally_sure_trials_the_one_that_takes_less_time_is_promising() -> None:
    says = SameChances(dict.fromkeys(range(3), 0.6), since={0: 19, 1: 5, 2: 19})
    pop = Pop(boundary=2, quota=True, waiting=3)
    played = SmallStudy(make_flat(3, 20), pop, slots=1, curves=says, budget=GOAL).run()
    first = next(go for go in played.list_entries(Go) if go.label == "promising" and go.trial == 1)
    assert "expected in 2" in first.why
    finished = [trial.id for trial in played.state.trials if trial.status is Status.FINISHED]
    assert finished == [0, 1, 2]
    assert 1 not in [cut.trial for cut in played.list_entries(Cut)]


def list_turns(generator: str) -> list[Open | Go]:
    says = SameChances(dict.fromkeys(range(40), 0.2))
    budget = Budget(target=Target(0.5, 1), deadline_s=30.0)
    pop = Pop(boundary=2, waiting=1000)
    study = SmallStudy(make_flat(40), pop, slots=2, curves=says, budget=budget)
    study.spec = replace(study.spec, generator=Part(generator))
    played = study.run()
    turns = [entry for entry in played.entries if isinstance(entry, Open | Go)]
    return [entry for entry in turns if entry.label == "opportunistic"]


def test_opportunistic_trials_take_turns_with_new_ones_that_never_end() -> None:
    turns = list_turns("random")
    resumed = [turn.trial for turn in turns if isinstance(turn, Go)]
    assert abs(2 * len(resumed) - len(turns)) <= 2
    # The longest waiting one first, so that none is left out.
    assert set(resumed) == set(range(max(resumed) + 1))
    assert len(set(resumed)) > 3
    # If there is a last trial, all are in line from the start, and new ones come first.
    assert all(isinstance(turn, Open) for turn in list_turns("queued"))


class OneSlot:
    """Gives every trial one slot."""

    def see(self, entry: object, study: StudyView) -> None: ...

    def place(self, demands: Demands, study: StudyView) -> Mapping[int, float]:
        return {} if demands.asking is None else {demands.asking.trial: 1.0}


def test_each_promising_trial_has_k_slots_and_the_others_what_the_allocator_gives() -> None:
    says = SameChances({0: 0.9, 1: 0.3, 2: 0.3, 3: 0.3, 4: 0.3, 5: 0.3})
    played = SmallStudy(
        make_flat(6, 40),
        Pop(boundary=2, k=2, waiting=6),
        slots=4,
        curves=says,
        budget=GOAL,
        allocator=OneSlot(),
        span=2,
    ).run()
    widths: dict[int, set[float]] = {}
    for launch in played.list_entries(Launch):
        widths.setdefault(launch.trial, set()).add(launch.width)
    assert [resize.width for resize in played.list_entries(Resize)] == [2.0]
    assert widths.pop(0) == {1.0, 2.0}
    assert set().union(*widths.values()) == {1.0}


def test_more_slots_for_a_promising_trial_than_it_may_hold_are_refused() -> None:
    with pytest.raises(SpecError, match="dedicates 2 slots to each promising trial, but span=1"):
        Simulation(source="toy", policy="pop:k=2").check()
    assert Simulation(source="toy", policy="pop:k=2", span=2, allocator="fluid").check()


def test_the_kill_threshold_sees_a_learning_crash() -> None:
    crash = [0.1, 0.5, 0.8, 0.8] + [0.1] * 16
    trace = make_table([crash, [0.2 + 0.04 * k for k in range(20)]], mode="max")
    played = SmallStudy(trace, Pop(kill=0.15), slots=2, curves=seer(trace)).run()
    (stop,) = played.list_entries(Stop)
    assert stop.why == "best loss 0.1 in epochs 5 to 6: not past 0.15"


def test_the_time_of_an_epoch_is_that_at_the_present_width() -> None:
    pace = EpochPace()

    def report(attempt: int, epoch: int, seconds: float) -> None:
        trial = SimpleNamespace(id=3, seconds=[seconds])
        study: Any = SimpleNamespace(delivered=[trial])
        pace.see(Reported(at=0.0, attempt=attempt, epoch=epoch, metrics={}, seconds=seconds), study)

    idle: Any = SimpleNamespace(delivered=[])
    for attempt, width, seconds in ((0, 1.0, 8.0), (1, 4.0, 2.0)):
        launch = Launch(
            attempt=attempt,
            trial=3,
            start=0,
            source=None,
            goal=9,
            save_at=(),
            slots=(0,),
            width=width,
            why="",
        )
        pace.see(launch, idle)
        for epoch in (1, 2):
            report(attempt, epoch, seconds)
        assert pace.get(3) == seconds


# As published


def test_published_confidences_may_fall_again_and_are_not_rounded_up() -> None:
    falling = compute_published_confidence([(11, 0.2), (15, 0.8), (20, 0.5)], 10)
    assert falling.chance == pytest.approx(0.5)
    assert split_promising([0.6, 0.3], 1, 1, published=True) == (0.6, 0)


def test_published_pop_neither_corrects_nor_distrusts_nor_spares() -> None:
    says = SameChances(dict.fromkeys(range(6), 0.04))
    for published, stopped in ((True, 6), (False, 0)):
        pop = Pop(boundary=2, published=published)
        played = SmallStudy(make_flat(6), pop, slots=2, curves=says, budget=GOAL).run()
        assert len(played.list_entries(Stop)) == stopped
        whys = {stop.why for stop in played.list_entries(Stop)}
        assert whys <= {"poor: its confidence 4.0% is below 0.05"}


# Without a target, and with bad forecasts


def test_without_a_target_the_best_trial_trains_to_its_end() -> None:
    trace = make_table([[0.5] * 20, *[[0.9] * 20 for _ in range(5)]])
    played = SmallStudy(
        trace, Pop(), slots=2, curves=seer(trace), budget=Budget(deadline_s=70.0)
    ).run()
    assert played.state.trials[0].status is Status.FINISHED
    touched = [each.trial for each in played.entries if isinstance(each, Cut | Pause | Stop)]
    assert 0 not in touched
    assert sum(trial.status is Status.FINISHED for trial in played.state.trials) == 6


def test_forecasts_that_tell_no_trials_apart_pause_none() -> None:
    curves = [[0.9] * 19 + [0.4 if run == 7 else 0.9] for run in range(12)]
    trace = make_table(curves)
    says = SameChances(dict.fromkeys(range(12), 0.3))
    played = SmallStudy(trace, Pop(), slots=2, curves=says, budget=GOAL).run()
    plain = SmallStudy(trace, Fifo(), slots=2, budget=GOAL).run()
    assert not played.list_entries(Cut)
    assert played.state.now == plain.state.now


def test_forecasts_that_are_wrong_about_every_trial_cost_little() -> None:
    curves = [[0.9 - 0.01 * k for k in range(39)] + [0.4 if run > 20 else 0.9] for run in range(30)]
    trace = make_table(curves)
    never = SameChances(dict.fromkeys(range(30), -9.0))
    played = SmallStudy(trace, Pop(), slots=2, curves=never, budget=GOAL).run()
    plain = SmallStudy(trace, Fifo(), slots=2, budget=GOAL).run()
    assert played.state.end is not None
    assert played.state.end.cause == "target"
    assert played.state.now <= 1.1 * plain.state.now
    assert "forecasts have been wrong" in played.state.calibration.distrust


def test_forecasts_whose_intervals_miss_are_distrusted_after_five() -> None:
    calibration = Calibration()
    row = tuple(level for level in LEVELS)
    for number in range(5):
        assert calibration.distrust == ""
        calibration.add_forecast(number, Forecast((9,), (row,)), 0.3)
        calibration.record_loss(number, 9, 0.5 if number < 2 else 5.0)
    wrong = "forecasts have been wrong: 2 of 5 losses were in the 95 % interval"
    assert calibration.distrust == wrong
    assert calibration.scored == 5
