"""A declared range holds for the forecasts of every curve model, however they are requested."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from small_studies import SmallStudy, make_table

from paceline.api.completion import complete_trace
from paceline.api.curve_forecast import KnownCurve, forecast_curve
from paceline.core.base_part import BasePart
from paceline.core.codec import decode_step, encode_step
from paceline.core.curve_requests import forecast_curves
from paceline.core.events import Forecasted
from paceline.core.forecast_quantiles import LEVELS, Forecast
from paceline.core.ports import History
from paceline.curves.last_value import Last
from paceline.engines.sim.traces import Trace
from paceline.policies.early_term import EarlyTerm

if TYPE_CHECKING:
    from collections.abc import Sequence

ACCURACIES = [[0.5, 0.9, 0.6, 0.95, 0.7, 0.97, 0.8, 0.99, 0.9, 0.99] for _ in range(3)]


class Careless(BasePart):
    """A user's model that knows nothing of ranges: a normal around 0.9 with a spread of 3."""

    others = 0

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        row = tuple(-0.9 + 6.0 * (level - 0.5) for level in LEVELS)
        return [Forecast((*each.horizons,), (row,) * len(each.horizons)) for each in histories]


@pytest.mark.parametrize("model", [Last(), Careless()], ids=["last", "of a user"])
def test_a_study_logs_forecasts_inside_the_range(model: Last | Careless) -> None:
    study = SmallStudy(
        make_table(ACCURACIES, mode="max"),
        EarlyTerm(boundary=2),
        curves=model,
        slots=2,
        range=(0.0, 1.0),
    )
    study.run()
    forecasts = [entry.forecast for entry in study.list_entries(Forecasted) if entry.forecast]
    assert forecasts
    for forecast in forecasts:
        for epoch, row in zip(forecast.epochs, forecast.quantiles, strict=True):
            assert -1.0 <= row[0] <= row[-1] <= 0.0
            assert forecast.chance(epoch, -1.01) == 0.0
            assert forecast.chance(epoch, 0.0) == 1.0
            assert 0.0 < forecast.chance(epoch, -1.0) < 1.0
    for step in study.steps:
        assert decode_step(encode_step(step)) == step


def test_a_printed_forecast_stays_inside_the_range() -> None:
    known = KnownCurve(
        source="a test",
        trial=0,
        metric="reward",
        mode="max",
        epochs=20,
        values=[0.5, 0.9, 0.6, 0.95],
        later=[],
        epoch_s=1.0,
        config={},
        target=1.2,
        left_s=None,
    )
    free = forecast_curve(known, "last")
    assert max(row.high_95 for row in free.rows) > 1.0
    bound = forecast_curve(known, "last", within=(0.0, 1.0))
    assert all(0.0 <= row.low_95 <= row.high_95 <= 1.0 for row in bound.rows)
    assert bound.chance == 0.0


def test_a_forecast_without_a_range_has_tails_beyond_its_quantiles() -> None:
    history = History([0.5, 0.4, 0.45], (4, 10), 10, {})
    (free,) = forecast_curves(Last(), [history])
    assert free is not None
    assert free.bounds is None
    assert 0.0 < free.chance(10, free.quantiles[-1][0] - 0.01) < LEVELS[0]
    assert math.isclose(free.chance(10, free.quantiles[-1][-1]), LEVELS[-1])


def test_curves_that_are_completed_by_forecasts_stay_inside_the_range() -> None:
    trace = make_table([[0.5, 0.9, 0.99], [0.6, 0.99, 0.995]], mode="max")
    header = replace(trace.header, max_epochs=12, range=(0.0, 1.0))
    cut = Trace(header, [replace(run, cut=True) for run in trace.runs])
    for draw in range(10):
        for run in complete_trace(cut, draw).runs:
            assert len(run.values) == 12
            assert all(0.0 <= value <= 1.0 for value in run.values)
