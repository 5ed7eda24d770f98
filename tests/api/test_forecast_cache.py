"""Forecasts that simulations ask for again and again are made once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli_kit import tiny

from paceline.api.comparison import Comparison, compare
from paceline.api.forecast_cache import Remembering
from paceline.core.ports import History
from paceline.curves.last_value import Last

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from paceline.core.values import Forecast


class Counting(Last):
    """Counts the curves it is asked about."""

    def __init__(self) -> None:
        self.asked = 0

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        self.asked += len(histories)
        return super().forecast(histories)


def curve(*losses: float) -> History:
    return History(losses=losses, horizons=(9,), epochs=9, config={"lr": 0.1})


def test_the_same_question_is_asked_once_and_answered_alike() -> None:
    model = Counting()
    remembering = Remembering(model, "the same question")
    histories = [curve(1.0, 0.5), curve(0.9, 0.4), curve(1.0, 0.5), curve(1.0, 0.5, 0.4)]
    assert list(remembering.forecast(histories)) == list(Last().forecast(histories))
    assert list(remembering.forecast(histories[::-1])) == list(Last().forecast(histories[::-1]))
    assert model.asked == 3


def test_another_model_is_asked_itself() -> None:
    first, second = Counting(), Counting()
    Remembering(first, "one model").forecast([curve(1.0)])
    Remembering(second, "another model").forecast([curve(1.0)])
    assert (first.asked, second.asked) == (1, 1)


def test_the_seeds_of_a_comparison_ask_once_about_each_epoch_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    forecast = Last.forecast

    def counted(self: Last, histories: Sequence[History]) -> Sequence[Forecast | None]:
        asked.extend(tuple(history.losses) for history in histories)
        return forecast(self, histories)

    monkeypatch.setattr(Last, "forecast", counted)
    trace = tiny(tmp_path / "t.jsonl.gz", runs=7, epochs=9)
    comparison = Comparison(
        sources=(str(trace),), policies=("early_term:boundary=3",), curves=("last",), seeds=5
    )
    compare(comparison, jobs=1)
    assert asked
    assert len(asked) == len(set(asked)) <= 7 * 2
