"""The contract of curve models, as tests to inherit.

Knows the port and what curves can look like. Subclass `CurveModelContract`, set `make`, and run
pytest. `FamilyCurveContract` is for a model that can also draw curves from its own family: on
those, its intervals must cover what they promise.
"""

from __future__ import annotations

import math
from array import array
from itertools import pairwise
from typing import TYPE_CHECKING

from paceline.core.curve_requests import forecast_curves
from paceline.core.forecast_quantiles import LEVELS
from paceline.core.ports import History
from paceline.core.rng import Stream, stream
from paceline.core.values import NO_LOSS
from paceline.testing.simulations import make_falling_curves

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.forecast_quantiles import Forecast
    from paceline.core.ports import CurveModel

# The last epoch of the studies, and the requested epochs.
EPOCHS = 60
HORIZONS = (21, 22, 25, 30, 40, EPOCHS)
_LOW, _HIGH = LEVELS.index(0.1), LEVELS.index(0.9)

# Curves that real training has reported: missing numbers, plateaus, jumps, single points.
NASTY: dict[str, list[float]] = {
    "nothing yet": [],
    "one point": [0.7],
    "one point of zero": [0.0],
    "one point without a number": [NO_LOSS],
    "two points": [0.9, 0.8],
    "no numbers at all": [NO_LOSS] * 20,
    "no number at the end": [0.5] * 19 + [NO_LOSS],
    "a number only at the end": [NO_LOSS] * 19 + [0.5],
    "gaps": [0.9, NO_LOSS, 0.7, NO_LOSS, 0.6] * 4,
    "nothing but NaN": [math.nan] * 20,
    "NaN at the end": [0.5] * 19 + [math.nan],
    "ten thousand points": [1.0 / (1 + k / 100) for k in range(10_000)],
    "huge": [1e300, 1e299, 1e300, -1e300, 1e298],
    "tiny": [1e-300, 1e-301, 1e-302],
    "a jump": [0.5] * 19 + [1e12],
    "all zero": [0.0] * 20,
    "negative": [-0.1 * k for k in range(20)],
    "rising": [0.1 * k for k in range(20)],
}

# Accuracies close to the end of their range, and such that jump between its ends.
BOUNDED: dict[str, list[float]] = {
    "close to the best": [0.999 - 0.5 / (1 + k) for k in range(20)],
    "up and down": [0.9, 0.2, 0.95, 0.3] * 5,
}


class CurveModelContract:
    """The contract of every CurveModel. Subclass it, set `make`, run pytest."""

    make: Callable[[], CurveModel]

    def forecast(self, losses: Sequence[float], horizons: Sequence[int]) -> Forecast | None:
        """Return the model's forecast of one curve."""
        history = History(losses, horizons, max(EPOCHS, *horizons), {"lr": 0.1})
        (forecast,) = self.make().forecast([history])
        return forecast

    def test_forecasts_widen_with_distance(self) -> None:
        for number, curve in enumerate(make_falling_curves(6, 20)):
            forecast = self.forecast(curve, HORIZONS)
            assert forecast is not None, f"no forecast for an ordinary curve: {curve}"
            widths = [row[_HIGH] - row[_LOW] for row in forecast.quantiles]
            # A model that samples may vary a little from one epoch to the next.
            narrower = [later for sooner, later in pairwise(widths) if later < 0.9 * sooner]
            assert not narrower, f"curve {number}: the 80 % interval narrows: {widths}"
            assert widths[-1] >= widths[0], (
                f"curve {number}: the last interval is the narrower one: {widths}"
            )

    def test_a_constant_curve_stays_constant(self) -> None:
        for level in (0.25, 1.0, 40.0):
            forecast = self.forecast([level] * 20, HORIZONS)
            assert forecast is not None, "no forecast for a constant curve"
            for epoch in HORIZONS:
                median = forecast.median(epoch)
                assert abs(median - level) <= 0.02 * level, f"{level} becomes {median} at {epoch}"

    def test_it_forecasts_exactly_the_requested_epochs(self) -> None:
        for horizons in ((21,), (60,), (21, 60), HORIZONS):
            forecast = self.forecast(make_falling_curves(1, 20)[0], horizons)
            assert forecast is not None
            assert forecast.epochs == horizons, f"{horizons} were requested: {forecast.epochs}"

    def test_one_point_is_enough_not_to_crash(self) -> None:
        for point in (0.7, 0.0, -3.0, 1e9, NO_LOSS):
            for horizons in ((2,), (2, 3, 60)):
                self.forecast([point], horizons)

    def test_no_curve_makes_it_fail(self) -> None:
        for name, losses in NASTY.items():
            known = len(losses)
            for horizons in ((known + 1,), (known + 1, known + 2, known + 1000)):
                forecast = self.forecast(losses, horizons)
                assert forecast is None or _is_finite(forecast), (
                    f"{name}: {forecast} cannot be logged"
                )

    def test_a_curve_without_numbers_has_no_forecast(self) -> None:
        forecast = self.forecast([NO_LOSS] * 20, HORIZONS)
        assert forecast is None, f"nothing is known, and yet {forecast}"

    def test_an_empty_batch_has_no_forecasts(self) -> None:
        assert list(self.make().forecast([])) == []

    def test_permuting_the_batch_permutes_the_forecasts(self) -> None:
        batch = _make_batch()
        order = [3, 0, 5, 1, 4, 2]
        forecasts = self.make().forecast(batch)
        permuted = self.make().forecast([batch[at] for at in order])
        for at, forecast in zip(order, permuted, strict=True):
            assert _are_equal(forecast, forecasts[at]), (
                "an forecast depends on its place in the batch"
            )

    def test_a_batch_gives_the_same_forecasts_as_single_curves(self) -> None:
        batch = _make_batch()
        forecasts = list(self.make().forecast(batch))
        assert len(forecasts) == len(batch)
        for history, forecast in zip(batch, forecasts, strict=True):
            (alone,) = self.make().forecast([history])
            assert _are_equal(alone, forecast), "a forecast depends on the rest of the batch"

    def test_the_same_curve_gets_the_same_forecast_again(self) -> None:
        model = self.make()
        for again in (model, self.make()):
            for one, other in zip(
                model.forecast(_make_batch()), again.forecast(_make_batch()), strict=True
            ):
                assert _are_equal(one, other), f"asked again, it forecasts {other} instead of {one}"

    def test_losses_may_come_in_any_kind_of_sequence(self) -> None:
        curve = make_falling_curves(1, 20)[0]
        forecasts = [
            self.forecast(kind, HORIZONS) for kind in (curve, (*curve,), array("d", curve))
        ]
        assert _are_equal(forecasts[0], forecasts[1]), "a tuple gets another forecast than a list"
        assert _are_equal(forecasts[0], forecasts[2]), "an array gets another forecast than a list"

    def test_a_better_curve_gets_a_better_forecast(self) -> None:
        curve = make_falling_curves(1, 20)[0]
        low, high = (self.forecast([x + by for x in curve], HORIZONS) for by in (0.0, 1.0))
        assert low is not None
        assert high is not None
        for epoch in HORIZONS:
            assert low.median(epoch) < high.median(epoch), (
                "the worse curve gets the better forecast"
            )

    def test_forecasts_stay_inside_a_declared_range(self) -> None:
        for name, accuracies in BOUNDED.items():
            losses = [-accuracy for accuracy in accuracies]
            history = History(losses, HORIZONS, EPOCHS, {"lr": 0.1}, bounds=(-1.0, 0.0))
            (forecast,) = forecast_curves(self.make(), [history])
            assert forecast is not None, f"{name}: no forecast where the range is declared"
            for epoch, row in zip(forecast.epochs, forecast.quantiles, strict=True):
                assert row[0] >= -1.0, f"{name}: {row[0]} at epoch {epoch} is below the range"
                assert row[-1] <= 0.0, f"{name}: {row[-1]} at epoch {epoch} is above the range"
                assert forecast.chance(epoch, -1.001) == 0.0, f"{name}: better than the range"
                assert forecast.chance(epoch, 0.0) == 1.0, f"{name}: worse than the range"


class FamilyCurveContract(CurveModelContract):
    """The contract of a CurveModel on curves of its own family, which `sample` draws."""

    def sample(self, rng: Stream) -> Sequence[float]:
        """Return the losses of one whole curve of the model's own family, at least 8 epochs."""
        raise NotImplementedError

    def test_its_intervals_cover_what_they_promise(self) -> None:
        curves = [list(self.sample(stream(0, "family", number))) for number in range(300)]
        for share in (0.5, 0.9):
            held = []
            for curve in curves:
                known = int(len(curve) * share)
                forecast = self.forecast(curve[:known], (len(curve),))
                assert forecast is not None, "no forecast for a curve of its own family"
                (row,) = forecast.quantiles
                held.append(row[_LOW] <= curve[-1] <= row[_HIGH])
            covered = sum(held) / len(held)
            # Three standard errors of 300 draws are 7 %; the rest allows for estimated parameters.
            assert 0.70 <= covered <= 0.90, (
                f"its 80 % intervals cover {covered:.0%} of the true values"
            )


def _make_batch() -> list[History]:
    curves = [*make_falling_curves(4, 20), [NO_LOSS] * 20, [0.5]]
    return [
        History(curve, (len(curve) + 1, EPOCHS), EPOCHS, {"lr": 0.1 * number})
        for number, curve in enumerate(curves)
    ]


def _is_finite(forecast: Forecast) -> bool:
    return all(math.isfinite(loss) for row in forecast.quantiles for loss in row)


def _are_equal(one: Forecast | None, other: Forecast | None) -> bool:
    """Return whether two forecasts are equal up to rounding of vectorised arithmetic."""
    if one is None or other is None:
        return one is other
    return one.epochs == other.epochs and all(
        math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)
        for mine, theirs in zip(one.quantiles, other.quantiles, strict=True)
        for a, b in zip(mine, theirs, strict=True)
    )
