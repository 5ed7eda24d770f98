"""Curve models that break one clause each."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from paceline.core.forecast_quantiles import LEVELS, Forecast
from paceline.curves.last_value import Last
from paceline.testing.curves import FamilyCurveContract

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.ports import History
    from paceline.core.rng import Stream

_calls = count()


class Moved(Last):
    """Changes the forecasts of `Last` row by row."""

    def row(self, row: Sequence[float], epoch: int, history: History, at: int) -> list[float]:
        return list(row)

    def one(self, history: History, at: int) -> Forecast | None:
        (forecast,) = super().forecast([history])
        if forecast is None:
            return None
        rows = zip(forecast.epochs, forecast.quantiles, strict=True)
        return Forecast(
            forecast.epochs, tuple((*self.row(row, epoch, history, at),) for epoch, row in rows)
        )

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        return [self.one(history, at) for at, history in enumerate(histories)]


class Narrows(Moved):
    def row(self, row: Sequence[float], epoch: int, history: History, at: int) -> list[float]:
        ahead = epoch - len(history.losses)
        return [row[7] + (loss - row[7]) / ahead for loss in row]


class Optimist(Moved):
    def row(self, row: Sequence[float], epoch: int, history: History, at: int) -> list[float]:
        return [0.9 * loss for loss in row]


class Overconfident(Moved):
    def row(self, row: Sequence[float], epoch: int, history: History, at: int) -> list[float]:
        return [row[7] + (loss - row[7]) / 5 for loss in row]


class MovedByPlace(Moved):
    def row(self, row: Sequence[float], epoch: int, history: History, at: int) -> list[float]:
        return [loss + at for loss in row]


class MovedByCalls(Moved):
    def row(self, row: Sequence[float], epoch: int, history: History, at: int) -> list[float]:
        by = next(_calls)
        return [loss + by for loss in row]


class UpsideDown(Moved):
    def row(self, row: Sequence[float], epoch: int, history: History, at: int) -> list[float]:
        return [-loss for loss in reversed(row)]


class LastEpochAlone(Moved):
    def one(self, history: History, at: int) -> Forecast | None:
        forecast = super().one(history, at)
        return forecast and Forecast(forecast.epochs[-1:], forecast.quantiles[-1:])


class NeedsTwoPoints(Moved):
    def one(self, history: History, at: int) -> Forecast | None:
        return super().one(history, at) if history.losses[-2] else None


class ComparesWithTheFirst(Moved):
    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        leader = histories[0].losses[-1]
        return [self.one(history, int(leader < 1e9)) for history in histories]

    def row(self, row: Sequence[float], epoch: int, history: History, at: int) -> list[float]:
        return [loss + at for loss in row]


class AlwaysKnows(Moved):
    def one(self, history: History, at: int) -> Forecast | None:
        flat = (0.5,) * len(LEVELS)
        return super().one(history, at) or Forecast(
            (*history.horizons,), (flat,) * len(history.horizons)
        )


class NeedsAList(Moved):
    def one(self, history: History, at: int) -> Forecast | None:
        assert isinstance(history.losses, list)
        return super().one(history, at)


class NeedsNoRange(Moved):
    def one(self, history: History, at: int) -> Forecast | None:
        return super().one(history, at) if history.bounds is None else None


class DividesByTheLast(Moved):
    def row(self, row: Sequence[float], epoch: int, history: History, at: int) -> list[float]:
        scale = 1.0 / history.losses[-1]
        return [loss * scale / scale for loss in row]


class BrokenFamily(FamilyCurveContract):
    """Random walks, for models with wrong intervals."""

    def sample(self, rng: Stream) -> Sequence[float]:
        walk = [1.0]
        while len(walk) < 30:
            walk.append(walk[-1] + rng.gauss(0.0, 0.05))
        return walk


BREAKERS: dict[str, tuple[Callable[..., Any], type[Exception]]] = {
    "test_forecasts_widen_with_distance": (Narrows, AssertionError),
    "test_a_constant_curve_stays_constant": (Optimist, AssertionError),
    "test_it_forecasts_exactly_the_requested_epochs": (LastEpochAlone, AssertionError),
    "test_one_point_is_enough_not_to_crash": (NeedsTwoPoints, IndexError),
    "test_no_curve_makes_it_fail": (DividesByTheLast, ZeroDivisionError),
    "test_a_curve_without_numbers_has_no_forecast": (AlwaysKnows, AssertionError),
    "test_an_empty_batch_has_no_forecasts": (ComparesWithTheFirst, IndexError),
    "test_permuting_the_batch_permutes_the_forecasts": (MovedByPlace, AssertionError),
    "test_a_batch_gives_the_same_forecasts_as_single_curves": (MovedByPlace, AssertionError),
    "test_the_same_curve_gets_the_same_forecast_again": (MovedByCalls, AssertionError),
    "test_losses_may_come_in_any_kind_of_sequence": (NeedsAList, AssertionError),
    "test_a_better_curve_gets_a_better_forecast": (UpsideDown, AssertionError),
    "test_forecasts_stay_inside_a_declared_range": (NeedsNoRange, AssertionError),
}

FAMILY_BREAKERS: dict[str, tuple[Callable[..., Any], type[Exception]]] = {
    "test_its_intervals_cover_what_they_promise": (Overconfident, AssertionError)
}
