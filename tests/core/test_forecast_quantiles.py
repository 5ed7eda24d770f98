"""Scores of forecasts agree with closed forms, and reward what they should."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

import pytest
from benchmarks.curves.scoring import auc, clip, crps, log_score

from paceline.core.forecast_quantiles import (
    LEVELS,
    blur,
    brier_score,
    compute_chance,
    compute_density,
    is_covered,
)
from paceline.core.rng import stream

if TYPE_CHECKING:
    from collections.abc import Callable


def normal(mean: float = 0.0, sd: float = 1.0) -> tuple[float, ...]:
    return tuple(NormalDist(mean, sd).inv_cdf(level) for level in LEVELS)


UNIFORM = tuple(LEVELS)  # between 0 and 1, but for its tails


def exact_normal_crps(loss: float) -> float:
    z = NormalDist()
    return loss * (2 * z.cdf(loss) - 1) + 2 * z.pdf(loss) - 1 / math.sqrt(math.pi)


def integral(
    function: Callable[[float], float], low: float, high: float, parts: int = 20_000
) -> float:
    step = (high - low) / parts
    return step * sum(function(low + (k + 0.5) * step) for k in range(parts))


@pytest.mark.parametrize("loss", [-2.5, -1.0, 0.0, 0.3, 2.0, 4.0])
def test_the_crps_of_a_normal_forecast_is_the_known_one(loss: float) -> None:
    assert crps(normal(), loss) == pytest.approx(exact_normal_crps(loss), abs=0.01)


@pytest.mark.parametrize("loss", [-0.4, -0.001, 0.0, 0.03, 0.5, 0.77, 0.996, 1.3])
@pytest.mark.parametrize("row", [UNIFORM, normal(0.4, 0.2)])
def test_the_crps_is_the_integral_it_stands_for(row: tuple[float, ...], loss: float) -> None:
    below = integral(lambda x: compute_chance(row, x) ** 2, -3, loss)
    above = integral(lambda x: (1 - compute_chance(row, x)) ** 2, loss, 4)
    assert crps(row, loss) == pytest.approx(below + above, abs=1e-4)


def test_the_crps_of_a_certain_forecast_is_the_distance() -> None:
    assert crps([0.5] * len(LEVELS), 0.8) == pytest.approx(0.3)
    assert crps([0.5] * len(LEVELS), 0.1) == pytest.approx(0.4)


@pytest.mark.parametrize("row", [UNIFORM, normal(3, 2)])
def test_a_density_is_one_in_all_and_the_slope_of_the_chance(row: tuple[float, ...]) -> None:
    width = row[-1] - row[0]
    low, high = row[0] - width, row[-1] + width
    assert integral(lambda x: compute_density(row, x), low, high) == pytest.approx(1, abs=1e-3)
    for loss in (row[0] - 0.01, row[3] + 0.001, row[7] + 0.01, row[-1] + 0.01):
        slope = (compute_chance(row, loss + 1e-6) - compute_chance(row, loss - 1e-6)) / 2e-6
        assert compute_density(row, loss) == pytest.approx(slope, rel=1e-3)


def test_chances_meet_the_levels_and_never_leave_their_bounds() -> None:
    row = normal()
    for level, loss in zip(LEVELS, row, strict=True):
        assert compute_chance(row, loss) == pytest.approx(level)
    assert 0 < compute_chance(row, -6) < LEVELS[0]
    assert LEVELS[-1] < compute_chance(row, 6) < 1


def test_a_miss_costs_no_more_than_doubt_allows() -> None:
    assert log_score(0.0, 0.0, 10.0) == pytest.approx(math.log(0.001))
    assert log_score(2.0, 0.0, 10.0) == pytest.approx(math.log(0.99 * 2 + 0.001))


def test_a_blurred_point_is_a_normal_forecast() -> None:
    assert blur([0.5] * len(LEVELS), 0.1) == pytest.approx(normal(0.5, 0.1))


def test_what_lies_outside_a_range_is_moved_to_its_ends() -> None:
    assert clip([-5.0, 0.5, 1e12], 0.0, 1.0) == (0.0, 0.5, 1.0)


def test_the_truth_scores_best_on_average() -> None:
    rng = stream(0, "truth")
    losses = [rng.gauss(0, 1) for _ in range(3000)]

    def mean_scores(row: tuple[float, ...]) -> tuple[float, float]:
        logs = [log_score(compute_density(row, loss), -5, 5) for loss in losses]
        return sum(logs) / len(logs), sum(crps(row, loss) for loss in losses) / len(losses)

    log, rank = mean_scores(normal())
    for other in (normal(0.3), normal(0, 1.5), normal(0, 0.7)):
        worse_log, worse_rank = mean_scores(other)
        assert log > worse_log
        assert rank < worse_rank


def test_central_intervals_hold_what_lies_between_their_levels() -> None:
    row = normal()
    assert is_covered(row, 1.28, 0.8)
    assert not is_covered(row, 1.29, 0.8)
    assert is_covered(row, -1.95, 0.95)
    assert not is_covered(row, -1.97, 0.95)


def test_the_brier_score_is_the_squared_error() -> None:
    assert brier_score(0.8, True) == pytest.approx(0.04)
    assert brier_score(0.8, False) == pytest.approx(0.64)


def test_the_auc_counts_pairs_in_order_and_ties_by_half() -> None:
    assert auc([0.9, 0.8, 0.1], [True, True, False]) == 1.0
    assert auc([0.5, 0.5], [True, False]) == 0.5
    assert auc([0.1, 0.9, 0.5, 0.5], [True, False, True, False]) == pytest.approx(0.125)
    assert auc([0.3, 0.4], [True, True]) is None
