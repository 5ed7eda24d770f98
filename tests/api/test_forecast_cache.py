"""The cache of forecasts: simulations compute each forecast once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from command_line import write_small_trace

from paceline.api.comparison import Comparison, compare
from paceline.api.forecast_cache import ForecastCache
from paceline.core.ports import History
from paceline.curves.last_value import Last

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from paceline.core.forecast_quantiles import Forecast


class CountingModel(Last):
    """Counts the curves it forecasts."""

    def __init__(self) -> None:
        self.count = 0

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        self.count += len(histories)
        return super().forecast(histories)


def make_history(*losses: float) -> History:
    return History(losses=losses, horizons=(9,), epochs=9, config={"lr": 0.1})


def test_a_forecast_is_computed_once() -> None:
    model = CountingModel()
    cache = ForecastCache(model, "a counting model")
    histories = [
        make_history(1.0, 0.5),
        make_history(0.9, 0.4),
        make_history(1.0, 0.5),
        make_history(1.0, 0.5, 0.4),
    ]
    assert list(cache.forecast(histories)) == list(Last().forecast(histories))
    assert list(cache.forecast(histories[::-1])) == list(Last().forecast(histories[::-1]))
    assert model.count == 3


def test_each_model_has_its_own_entries() -> None:
    first, second = CountingModel(), CountingModel()
    ForecastCache(first, "one model").forecast([make_history(1.0)])
    ForecastCache(second, "another model").forecast([make_history(1.0)])
    assert (first.count, second.count) == (1, 1)


def test_all_seeds_of_a_comparison_share_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forecast_curves: list[object] = []
    forecast = Last.forecast

    def count_and_forecast(self: Last, histories: Sequence[History]) -> Sequence[Forecast | None]:
        forecast_curves.extend(tuple(history.losses) for history in histories)
        return forecast(self, histories)

    monkeypatch.setattr(Last, "forecast", count_and_forecast)
    trace = write_small_trace(tmp_path / "t.jsonl.gz", runs=7, epochs=9)
    comparison = Comparison(
        sources=(str(trace),), policies=("early_term:boundary=3",), curves=("last",), seeds=5
    )
    compare(comparison, jobs=1)
    assert forecast_curves
    assert len(forecast_curves) == len(set(forecast_curves)) <= 7 * 2
