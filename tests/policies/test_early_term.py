"""Predictive termination: decisions by forecasts, their calibration, and the oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from small_studies import SmallStudy, make_table

from paceline.core.decisions import AskForecast, Stop
from paceline.core.errors import SpecError
from paceline.core.forecast_quantiles import LEVELS, Forecast
from paceline.core.ports import History
from paceline.core.rng import stream
from paceline.core.values import NO_LOSS, Status
from paceline.engines.sim.oracle import Oracle
from paceline.engines.sim.trace_workload import TraceWorkload
from paceline.machine.calibration import Calibration
from paceline.policies.early_term import EarlyTerm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.engines.sim.traces import Trace


def seer(trace: Trace) -> Oracle:
    return Oracle(TraceWorkload(trace), sign=1.0 if trace.header.mode == "min" else -1.0)


class Optimist:
    """Forecasts that every curve falls to zero, with certainty."""

    others = 0

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        return [Forecast(tuple(h.horizons), ((0.0,) * 15,) * len(h.horizons)) for h in histories]


class Mute:
    """Never has a forecast."""

    others = 0

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        return [None] * len(histories)


# Two that end low, of which one starts slowly, and two that start well and end high.
CROSSING = make_table(
    [
        [1.0 - 0.04 * k for k in range(20)],
        [0.9] * 10 + [0.9 - 0.08 * k for k in range(10)],
        [0.5] * 20,
        [0.6] * 20,
    ]
)


def test_a_trial_that_cannot_win_is_stopped_at_the_first_boundary_and_the_winner_trains_on() -> (
    None
):
    played = SmallStudy(CROSSING, EarlyTerm(), slots=4, curves=seer(CROSSING)).run()
    # Trial 2 has the best loss until trial 0 has passed it: the best trial is never stopped.
    assert [trial.epoch for trial in played.state.trials] == [20, 20, 14, 2]
    first, _ = played.list_entries(Stop)
    assert first.trial == 3
    assert "chance to reach loss 0.5 at epoch 20 is 0.0%, below 5%" in first.why


def test_a_boundary_is_a_tenth_of_the_epochs_unless_it_is_given() -> None:
    for policy, boundaries in (
        (EarlyTerm(), list(range(2, 20, 2))),
        (EarlyTerm(boundary=7), [7, 14]),
    ):
        played = SmallStudy(CROSSING, policy, curves=Mute()).run()
        asked = [ask.epoch for ask in played.list_entries(AskForecast) if ask.trial == 0]
        assert asked == boundaries


def test_without_a_forecast_every_trial_trains_on() -> None:
    played = SmallStudy(CROSSING, EarlyTerm(), slots=2, curves=Mute()).run()
    assert all(trial.status is Status.FINISHED for trial in played.state.trials)


def test_training_goes_on_while_the_forecast_is_computed() -> None:
    cluster = {"forecast_s": 3.5}
    played = SmallStudy(
        CROSSING, EarlyTerm(), slots=4, cluster=cluster, curves=seer(CROSSING)
    ).run()
    # Asked at epoch 2, answered three and a half epochs later.
    assert played.state.trials[3].epoch == 5


def test_wrong_forecasts_are_replaced_by_ranks() -> None:
    curves = [[0.5 + 0.01 * number] * 20 for number in range(30)]
    played = SmallStudy(make_table(curves), EarlyTerm(), slots=2, curves=Optimist()).run()
    ranked = [stop for stop in played.list_entries(Stop) if "by rank" in stop.why]
    assert ranked
    assert "by rank, since forecasts have been wrong: 0 of " in ranked[0].why
    assert all(trial.loss > 0.5 for trial in played.state.trials if not trial.alive and trial.id)


@pytest.mark.parametrize("given", [{"boundary": 0}, {"delta": 0.0}, {"delta": 1.0}])
def test_invalid_parameters_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(SpecError, match="is invalid"):
        EarlyTerm(**given)  # type: ignore[arg-type]


def test_the_oracle_forecasts_the_recorded_values_and_the_last_value_after_an_early_end() -> None:
    trace = make_table([[0.5, 0.4, 0.3], [0.9, float("nan")]], epochs=3)
    oracle = seer(trace)
    first, second = (
        History(losses=[], horizons=(2, 3), epochs=3, config=run.config) for run in trace.runs
    )
    (sure, lost) = oracle.forecast([first, second])
    assert sure is not None
    assert [sure.median(2), sure.median(3)] == [0.4, 0.3]
    assert sure.chance(3, 0.29) == 0.0
    assert sure.chance(3, 0.31) == 1.0
    assert lost is not None
    assert lost.chance(3, 1e9) == 0.0


def spread(middle: float, width: float) -> Forecast:
    """Return a forecast for epoch 9, uniform around the middle."""
    return Forecast((9,), (tuple(middle + width * (level - 0.5) for level in LEVELS),))


def test_chances_of_an_overconfident_model_are_widened() -> None:
    calibration = Calibration()
    narrow = spread(0.5, 0.1)  # while losses are spread over the whole of 0 to 1
    before = calibration.chance(narrow, 9, 0.46)
    for number in range(500):
        calibration.add_forecast(number, narrow, NO_LOSS)
        calibration.record_loss(number, 9, stream(1, number).random())
    assert before == pytest.approx(0.1)
    assert calibration.chance(narrow, 9, 0.46) == pytest.approx(0.44, abs=0.06)
    assert calibration.chance(narrow, 9, 0.5) == pytest.approx(0.5, abs=0.06)
    assert calibration.coverage is not None
    assert calibration.coverage[0] == pytest.approx(0.08, abs=0.04)


def test_chances_of_a_calibrated_model_are_unchanged() -> None:
    calibration = Calibration()
    wide = spread(0.5, 1.0)
    for number in range(500):
        calibration.add_forecast(number, wide, 0.3)
        calibration.record_loss(number, 9, stream(2, number).random())
    for loss in (0.02, 0.1, 0.3, 0.5, 0.8, 0.99):
        assert calibration.chance(wide, 9, loss) == pytest.approx(loss, abs=0.05)
    assert calibration.coverage == pytest.approx((0.8, 0.95), abs=0.05)
    assert calibration.distrust == ""


def test_a_corrected_chance_grows_with_the_loss_and_stays_a_probability() -> None:
    calibration = Calibration()
    row = spread(0.5, 0.2)
    for number in range(60):
        calibration.add_forecast(number, row, 0.4)
        calibration.record_loss(number, 9, stream(3, number).random() ** 2)
    chances = [calibration.chance(row, 9, k / 200) for k in range(-20, 221)]
    assert chances == sorted(chances)
    assert chances[0] >= 0.0
    assert chances[-1] <= 1.0


def test_a_trial_that_ended_leaves_nothing_to_score() -> None:
    calibration = Calibration()
    calibration.add_forecast(1, spread(0.5, 1.0), 0.3)
    calibration.forget(1)
    calibration.record_loss(1, 9, 0.5)
    assert calibration.met == 0
    assert calibration.coverage is None
