"""Speeds measured from epochs at several widths: what is compared, and what is assumed."""

from __future__ import annotations

import pytest

from paceline.analysis.speeds import EpochWidths, measure_speeds


def epochs(settings: str, **seconds: float) -> list[EpochWidths]:
    """Return three epochs of the same settings at each width: w2=1.5 is 1.5 s on two slots."""
    widths = {"half": 0.5, "w1": 1.0, "w2": 2.0, "w3": 3.0, "w4": 4.0}
    return [
        EpochWidths(settings, {widths[name]: took}, is_first=False)
        for name, took in seconds.items()
        for _ in range(3)
    ]


def measured(found: list[EpochWidths]) -> dict[float, tuple[float, int]]:
    return {each.width: (round(each.speed, 2), each.epochs) for each in measure_speeds(found)}


def test_one_trial_at_two_widths_measures_them() -> None:
    assert measured(epochs("a", w1=3.0, w2=2.0)) == {2.0: (1.5, 3)}


def test_trials_that_overlap_in_their_widths_measure_all_of_them() -> None:
    found = [*epochs("a", w1=3.0, w2=2.0), *epochs("b", w2=4.0, w4=3.0), *epochs("c", w4=1.0)]
    assert measured(found) == {2.0: (1.5, 6), 4.0: (2.0, 3)}


def test_a_width_that_no_trial_compares_is_as_far_off_the_prior_as_its_neighbour() -> None:
    # Two slots are 1.5 times as fast and not 1.89: four are assumed to be 0.79 of 3.39.
    found = [*epochs("a", w1=3.0, w2=2.0), *epochs("b", w4=1.0)]
    assert measured(found) == {2.0: (1.5, 3), 4.0: (2.7, 0)}


def test_what_is_compared_with_an_assumed_width_keeps_its_ratio() -> None:
    found = measured(epochs("a", w2=3.0, w4=1.0))
    assert found[2.0] == (1.89, 0)
    assert found[4.0][0] == pytest.approx(3 * 1.89, abs=0.01)


def test_nothing_to_compare_leaves_the_prior() -> None:
    assert measured([*epochs("a", w1=1.0), *epochs("b", w2=9.0)]) == {2.0: (1.89, 0)}
    assert measured(epochs("a", w1=1.0)) == {}


def test_an_epoch_that_changed_its_width_half_way_counts_in_part() -> None:
    # 2 s alone on its slot; 3 s of which two beside another: two thirds of the speed there.
    alone = EpochWidths("a", {1.0: 2.0}, is_first=False)
    mixed = EpochWidths("a", {1.0: 1.0, 0.5: 1.5}, is_first=False)
    assert measured([alone, mixed, mixed]) == {0.5: (0.67, 2)}


def test_a_long_first_epoch_hardly_counts() -> None:
    cold = EpochWidths("a", {2.0: 20.0}, is_first=True)
    (two,) = measure_speeds([*epochs("a", w1=2.0, w2=1.0), cold])
    assert two.speed == pytest.approx(2.0, rel=0.1)


def test_settings_that_differ_are_not_compared() -> None:
    # The second stage takes twice as long on two slots as the first on one: no speed follows.
    found = [*epochs("first stage", w1=1.0), *epochs("second stage", w2=2.0)]
    assert measured(found) == {2.0: (1.89, 0)}
