"""The odds of a branch: learned from where trials branched before."""

from __future__ import annotations

from itertools import product

import pytest

from paceline.plan.branch_odds import BranchOdds
from paceline.plan.settings import canonicalize, list_stretches
from paceline.plan.tree import Tree

EPOCHS = 9


def learn(*rates: tuple[float, float, float], epochs: int = EPOCHS) -> BranchOdds:
    """Return the odds after trials with these rates in three stages."""
    odds, tree = BranchOdds(epochs), Tree(epochs)  # type: ignore[var-annotated]
    for one, two, three in rates:
        config = canonicalize({"lr": {"piecewise": [[0, one], [3, two], [6, three]]}})
        path = list_stretches(config, epochs)
        size = tree.size
        leaf = tree.insert(path)
        odds.record(leaf.start if tree.size > size else epochs, path)
    return odds


def test_a_branch_is_possible_where_any_trial_changed_its_settings() -> None:
    # The first trial keeps its rate after epoch 3, the second after epoch 6.
    odds = learn((0.1, 0.1, 0.3), (0.2, 0.3, 0.3))
    assert odds.list_candidates(0, EPOCHS) == [3, 6]
    assert odds.list_candidates(3, EPOCHS) == [6]
    assert odds.estimate(4, None) == 0.0


def test_settings_that_never_change_have_no_branch() -> None:
    assert learn((0.1, 0.1, 0.1), (0.2, 0.2, 0.2)).list_candidates(0, EPOCHS) == []


def test_where_settings_change_in_every_epoch_only_known_branches_count() -> None:
    odds, tree = BranchOdds(4), Tree(4)  # type: ignore[var-annotated]
    for last in (1.0, 2.0):
        config = canonicalize({"lr": {"piecewise": [[0, 0.1], [1, 0.2], [2, 0.3], [3, last]]}})
        path = list_stretches(config, 4)
        odds.record(tree.insert(path).start, path)
    assert odds.list_candidates(0, 4) == [3]


def test_a_branch_is_likely_while_all_trials_come_from_few_places() -> None:
    rates = [0.1, 0.2, 0.3]
    odds = learn(*product(rates, rates, rates))
    assert odds.estimate(3, 20) > 0.7
    assert odds.estimate(6, 20) > 0.7
    assert odds.estimate(6, 1) < odds.estimate(6, 20)


def test_a_branch_is_unlikely_where_no_two_trials_are_alike() -> None:
    odds = learn(*((0.1, 0.001 * n, 0.002 * n + 0.5) for n in range(1, 101)))
    assert odds.estimate(3, None) == pytest.approx(1.0, abs=0.01), "all begin alike"
    assert odds.estimate(6, None) < 0.05


def test_no_branch_is_expected_when_no_trial_comes() -> None:
    assert learn((0.1, 0.2, 0.3), (0.1, 0.2, 0.4)).estimate(6, 0) == 0.0


def test_a_repeated_config_is_no_branch() -> None:
    once, often = learn((0.1, 0.2, 0.3)), learn(*[(0.1, 0.2, 0.3)] * 9)
    assert once.estimate(6, 5) == often.estimate(6, 5)


def test_a_branch_is_rarer_where_few_trials_are_trained_that_far() -> None:
    rates = [0.1, 0.2, 0.3]
    odds = learn(*product(rates, rates, rates))
    before = odds.estimate(6, 10)
    for _ in range(27):
        odds.record_goal(None, 3)
    assert odds.estimate(6, 10) < before / 2
    for _ in range(27):
        odds.record_goal(3, 9)
    assert odds.estimate(6, 10) == pytest.approx(before)
