"""The contract of curve models: what every CurveModel must keep, as tests to inherit.

Knows the port and what curves can look like. Subclass `CurveModelContract`, give `make`, and run
pytest. `FamilyCurveContract` is for a model that can also say which curves it believes in: on
those, its intervals must hold what they promise.
"""

from __future__ import annotations

import math
from array import array
from itertools import pairwise
from typing import TYPE_CHECKING

from paceline.core.ports import History
from paceline.core.rng import Stream, stream
from paceline.core.values import LEVELS, NO_LOSS
from paceline.testing.simulations import falling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.ports import CurveModel
    from paceline.core.values import Forecast

# An ordinary study's last epoch, and where its curves are asked about.
EPOCHS = 60
HORIZONS = (21, 22, 25, 30, 40, EPOCHS)
_LOW, _HIGH = LEVELS.index(0.1), LEVELS.index(0.9)

# What training has been seen to report: numbers that are none, plateaus, jumps, single points.
NASTY: dict[str, list[float]] = {
    "nothing yet": [],
    "one point": [0.7],
    "one point of zero": [0.0],
    "one point that is no number": [NO_LOSS],
    "two points": [0.9, 0.8],
    "no numbers at all": [NO_LOSS] * 20,
    "no number at the end": [0.5] * 19 + [NO_LOSS],
    "a number at the end alone": [NO_LOSS] * 19 + [0.5],
    "gaps": [0.9, NO_LOSS, 0.7, NO_LOSS, 0.6] * 4,
    "not a number, said so": [math.nan] * 20,
    "not a number at the end": [0.5] * 19 + [math.nan],
    "ten thousand points": [1.0 / (1 + k / 100) for k in range(10_000)],
    "huge": [1e300, 1e299, 1e300, -1e300, 1e298],
    "tiny": [1e-300, 1e-301, 1e-302],
    "a jump": [0.5] * 19 + [1e12],
    "all zero": [0.0] * 20,
    "negative": [-0.1 * k for k in range(20)],
    "rising": [0.1 * k for k in range(20)],
}


class CurveModelContract:
    """What every CurveModel must satisfy. Subclass it, give `make`, run pytest."""

    make: Callable[[], CurveModel]

    def forecast(self, losses: Sequence[float], horizons: Sequence[int]) -> Forecast | None:
        """Return the model's answer for one curve."""
        history = History(losses, horizons, max(EPOCHS, *horizons), {"lr": 0.1})
        (answer,) = self.make().forecast([history])
        return answer

    def test_forecasts_widen_with_distance(self) -> None:
        for number, curve in enumerate(falling(6, 20)):
            forecast = self.forecast(curve, HORIZONS)
            assert forecast is not None, f"there is no answer for an ordinary curve: {curve}"
            widths = [row[_HIGH] - row[_LOW] for row in forecast.quantiles]
            # A model that samples may be off by a little from one epoch to the next.
            narrower = [later for sooner, later in pairwise(widths) if later < 0.9 * sooner]
            assert not narrower, f"curve {number}: the 80 % interval narrows: {widths}"
            assert widths[-1] >= widths[0], f"curve {number}: later is surer than now: {widths}"

    def test_a_constant_curve_stays_constant(self) -> None:
        for level in (0.25, 1.0, 40.0):
            forecast = self.forecast([level] * 20, HORIZONS)
            assert forecast is not None, "there is no answer for a constant curve"
            for epoch in HORIZONS:
                median = forecast.median(epoch)
                assert abs(median - level) <= 0.02 * level, f"{level} becomes {median} at {epoch}"

    def test_it_answers_for_the_epochs_that_were_asked(self) -> None:
        for horizons in ((21,), (60,), (21, 60), HORIZONS):
            forecast = self.forecast(falling(1, 20)[0], horizons)
            assert forecast is not None
            assert forecast.epochs == horizons, f"{horizons} were asked for: {forecast.epochs}"

    def test_one_point_is_enough_not_to_crash(self) -> None:
        for point in (0.7, 0.0, -3.0, 1e9, NO_LOSS):
            for horizons in ((2,), (2, 3, 60)):
                self.forecast([point], horizons)

    def test_no_curve_is_too_strange(self) -> None:
        for name, losses in NASTY.items():
            known = len(losses)
            for horizons in ((known + 1,), (known + 1, known + 2, known + 1000)):
                answer = self.forecast(losses, horizons)
                assert answer is None or _finite(answer), f"{name}: {answer} cannot be logged"

    def test_a_curve_without_numbers_has_no_forecast(self) -> None:
        answer = self.forecast([NO_LOSS] * 20, HORIZONS)
        assert answer is None, f"nothing is known, and yet {answer}"

    def test_an_empty_batch_has_no_answers(self) -> None:
        assert list(self.make().forecast([])) == []

    def test_permuting_the_batch_permutes_the_answers(self) -> None:
        batch = _batch()
        order = [3, 0, 5, 1, 4, 2]
        answers = self.make().forecast(batch)
        permuted = self.make().forecast([batch[at] for at in order])
        for at, answer in zip(order, permuted, strict=True):
            assert _alike(answer, answers[at]), "an answer depends on its place in the batch"

    def test_a_batch_is_answered_like_its_curves_one_by_one(self) -> None:
        batch = _batch()
        answers = list(self.make().forecast(batch))
        assert len(answers) == len(batch)
        for history, answer in zip(batch, answers, strict=True):
            (alone,) = self.make().forecast([history])
            assert _alike(alone, answer), "an answer depends on the rest of the batch"

    def test_the_same_curve_has_the_same_answer_again(self) -> None:
        model = self.make()
        for again in (model, self.make()):
            for one, other in zip(model.forecast(_batch()), again.forecast(_batch()), strict=True):
                assert _alike(one, other), f"asked again, it answers {other} instead of {one}"

    def test_losses_may_come_in_any_kind_of_sequence(self) -> None:
        curve = falling(1, 20)[0]
        answers = [self.forecast(kind, HORIZONS) for kind in (curve, (*curve,), array("d", curve))]
        assert _alike(answers[0], answers[1]), "a tuple is answered otherwise than a list"
        assert _alike(answers[0], answers[2]), "an array is answered otherwise than a list"

    def test_better_so_far_is_better_later(self) -> None:
        curve = falling(1, 20)[0]
        low, high = (self.forecast([x + by for x in curve], HORIZONS) for by in (0.0, 1.0))
        assert low is not None
        assert high is not None
        for epoch in HORIZONS:
            assert low.median(epoch) < high.median(epoch), "the worse curve is forecast to win"


class FamilyCurveContract(CurveModelContract):
    """What a CurveModel must satisfy on the curves it believes in, which `sample` draws."""

    def sample(self, rng: Stream) -> Sequence[float]:
        """Return the losses of one whole curve of the model's own family, at least 8 epochs."""
        raise NotImplementedError

    def test_its_intervals_hold_what_they_promise(self) -> None:
        curves = [list(self.sample(stream(0, "family", number))) for number in range(300)]
        for share in (0.5, 0.9):
            held = []
            for curve in curves:
                known = int(len(curve) * share)
                forecast = self.forecast(curve[:known], (len(curve),))
                assert forecast is not None, "there is no answer for a curve of its own family"
                (row,) = forecast.quantiles
                held.append(row[_LOW] <= curve[-1] <= row[_HIGH])
            covered = sum(held) / len(held)
            # Three standard errors of 300 draws are 7 %; the rest is for what had to be estimated.
            assert 0.70 <= covered <= 0.90, f"its 80 % intervals hold {covered:.0%} of the truth"


def _batch() -> list[History]:
    curves = [*falling(4, 20), [NO_LOSS] * 20, [0.5]]
    return [
        History(curve, (len(curve) + 1, EPOCHS), EPOCHS, {"lr": 0.1 * number})
        for number, curve in enumerate(curves)
    ]


def _finite(forecast: Forecast) -> bool:
    return all(math.isfinite(loss) for row in forecast.quantiles for loss in row)


def _alike(one: Forecast | None, other: Forecast | None) -> bool:
    """Say whether two answers are one, but for the last digits that vectors may differ in."""
    if one is None or other is None:
        return one is other
    return one.epochs == other.epochs and all(
        math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)
        for mine, theirs in zip(one.quantiles, other.quantiles, strict=True)
        for a, b in zip(mine, theirs, strict=True)
    )
