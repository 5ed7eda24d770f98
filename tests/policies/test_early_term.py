"""Forecasts that are used, scored, corrected and given up: early_term, foresight and the oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from build import Played, table

from paceline.core.decisions import AskForecast, Stop
from paceline.core.errors import SpecError
from paceline.core.ports import History
from paceline.core.rng import stream
from paceline.core.values import LEVELS, NO_LOSS, Forecast, Status
from paceline.engines.sim.oracle import Oracle
from paceline.engines.sim.trace_workload import Recorded
from paceline.machine.calibration import Foresight
from paceline.policies.early_term import EarlyTerm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.engines.sim.traces import Trace


def seer(trace: Trace) -> Oracle:
    return Oracle(Recorded(trace), sign=1.0 if trace.header.mode == "min" else -1.0)


class Optimist:
    """Is sure that every curve falls to zero."""

    others = 0

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        return [Forecast(tuple(h.horizons), ((0.0,) * 15,) * len(h.horizons)) for h in histories]


class Mute:
    """Never has an answer."""

    others = 0

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        return [None] * len(histories)


# Two that end low, of which one starts slowly, and two that start well and end high.
CROSSING = table(
    [
        [1.0 - 0.04 * k for k in range(20)],
        [0.9] * 10 + [0.9 - 0.08 * k for k in range(10)],
        [0.5] * 20,
        [0.6] * 20,
    ]
)


def test_who_cannot_win_is_stopped_at_the_first_boundary_and_who_will_win_goes_on() -> None:
    played = Played(CROSSING, EarlyTerm(), slots=4, curves=seer(CROSSING)).run()
    # Trial 2 holds the best loss until trial 0 has passed it: nobody with the best is stopped.
    assert [trial.epoch for trial in played.state.trials] == [20, 20, 14, 2]
    first, _ = played.of(Stop)
    assert first.trial == 3
    assert "chance to reach loss 0.5 at epoch 20 is 0.0%, below 5%" in first.why


def test_a_boundary_is_a_tenth_of_the_epochs_unless_it_is_given() -> None:
    for policy, boundaries in (
        (EarlyTerm(), list(range(2, 20, 2))),
        (EarlyTerm(boundary=7), [7, 14]),
    ):
        played = Played(CROSSING, policy, curves=Mute()).run()
        asked = [ask.epoch for ask in played.of(AskForecast) if ask.trial == 0]
        assert asked == boundaries


def test_without_an_answer_every_trial_goes_on() -> None:
    played = Played(CROSSING, EarlyTerm(), slots=2, curves=Mute()).run()
    assert all(trial.status is Status.FINISHED for trial in played.state.trials)


def test_training_goes_on_while_the_forecast_is_computed() -> None:
    cluster = {"forecast_s": 3.5}
    played = Played(CROSSING, EarlyTerm(), slots=4, cluster=cluster, curves=seer(CROSSING)).run()
    # Asked at epoch 2, answered three and a half epochs later.
    assert played.state.trials[3].epoch == 5


def test_forecasts_that_are_worse_than_the_base_rate_give_way_to_rank() -> None:
    curves = [[0.5 + 0.01 * number] * 20 for number in range(30)]
    played = Played(table(curves), EarlyTerm(), slots=2, curves=Optimist()).run()
    ranked = [stop for stop in played.of(Stop) if "by rank" in stop.why]
    assert ranked
    assert "forecasts have been worse than the base rate: Brier score 0." in ranked[0].why
    assert all(trial.loss > 0.5 for trial in played.state.trials if not trial.alive and trial.id)


@pytest.mark.parametrize("given", [{"boundary": 0}, {"delta": 0.0}, {"delta": 1.0}])
def test_what_cannot_be_meant_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(SpecError, match="cannot be meant"):
        EarlyTerm(**given)  # type: ignore[arg-type]


def test_the_oracle_says_what_comes_and_how_runs_that_end_early_stay() -> None:
    trace = table([[0.5, 0.4, 0.3], [0.9, float("nan")]], epochs=3)
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
    """Return a forecast for epoch 9: uniform around the middle."""
    return Forecast((9,), (tuple(middle + width * (level - 0.5) for level in LEVELS),))


def test_chances_of_a_model_that_is_too_sure_are_drawn_outwards() -> None:
    foresight = Foresight()
    narrow = spread(0.5, 0.1)  # while losses are spread over the whole of 0 to 1
    before = foresight.chance(narrow, 9, 0.46)
    for number in range(500):
        foresight.given(number, narrow, NO_LOSS)
        foresight.reached(number, 9, stream(1, number).random())
    assert before == pytest.approx(0.1)
    assert foresight.chance(narrow, 9, 0.46) == pytest.approx(0.44, abs=0.06)
    assert foresight.chance(narrow, 9, 0.5) == pytest.approx(0.5, abs=0.06)
    assert foresight.coverage is not None
    assert foresight.coverage[0] == pytest.approx(0.08, abs=0.04)


def test_chances_of_an_honest_model_stay_as_they_are() -> None:
    foresight = Foresight()
    honest = spread(0.5, 1.0)
    for number in range(500):
        foresight.given(number, honest, 0.3)
        foresight.reached(number, 9, stream(2, number).random())
    for loss in (0.02, 0.1, 0.3, 0.5, 0.8, 0.99):
        assert foresight.chance(honest, 9, loss) == pytest.approx(loss, abs=0.05)
    assert foresight.coverage == pytest.approx((0.8, 0.95), abs=0.05)
    assert foresight.distrust == ""


def test_a_corrected_chance_grows_with_the_loss_and_stays_a_probability() -> None:
    foresight = Foresight()
    row = spread(0.5, 0.2)
    for number in range(60):
        foresight.given(number, row, 0.4)
        foresight.reached(number, 9, stream(3, number).random() ** 2)
    chances = [foresight.chance(row, 9, k / 200) for k in range(-20, 221)]
    assert chances == sorted(chances)
    assert chances[0] >= 0.0
    assert chances[-1] <= 1.0


def test_a_trial_that_ended_leaves_nothing_to_score() -> None:
    foresight = Foresight()
    foresight.given(1, spread(0.5, 1.0), 0.3)
    foresight.forget(1)
    foresight.reached(1, 9, 0.5)
    assert foresight.met == 0
    assert foresight.coverage is None
