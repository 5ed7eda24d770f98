"""Bandit with the metric's range: the published rule on normalised values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_studies import SmallStudy, make_table

from paceline.core.decisions import Stop
from paceline.core.values import Mode, Status
from paceline.policies.bandit import Bandit

# Rewards of LunarLander's size; the first is the best from its second epoch on.
REWARDS = [
    [-300.0, 100.0, 200.0, 250.0],
    [-400.0, -90.0, 0.0, 100.0],
    [-400.0, -110.0, -100.0, -100.0],
    [-450.0, -300.0, -200.0, -150.0],
]


def run_bandit(
    rewards: list[list[float]], mode: Mode = "max", within: tuple[float, float] | None = None
) -> SmallStudy:
    table = make_table(rewards, mode=mode)
    study = SmallStudy(table, Bandit(boundary=2), slots=4, range=within)
    study.run()
    return study


def list_stopped(study: SmallStudy) -> list[int]:
    return [trial.id for trial in study.state.trials if trial.status is Status.STOPPED]


def test_a_range_turns_rewards_into_the_papers_normalised_ones() -> None:
    # At epoch 2: 0.75, 0.5125, 0.4875 and 0.25 of the range; times 1.5, the second alone reaches.
    study = run_bandit(REWARDS, within=(-500.0, 300.0))
    assert list_stopped(study) == [2, 3]
    assert list_stopped(run_bandit(REWARDS)) != [2, 3]
    why = study.list_entries(Stop)[0].why
    assert "both measured from -500, the worst of its range" in why


def test_a_range_that_starts_at_zero_changes_nothing_for_accuracies() -> None:
    accuracies = [[0.1, 0.6, 0.7, 0.8], [0.1, 0.41, 0.5, 0.6], [0.1, 0.39, 0.4, 0.4]]
    assert list_stopped(run_bandit(accuracies)) == [2]
    assert list_stopped(run_bandit(accuracies, within=(0.0, 1.0))) == [2]


def test_a_loss_counts_as_its_distance_from_the_worst_of_the_range() -> None:
    losses = [[2.5, 1.0, 0.9, 0.8], [2.5, 1.6, 1.5, 1.4], [2.5, 1.7, 1.6, 1.5]]
    # 2/3, 0.47 and 0.43 of the range (0, 3): times 1.5, the last does not reach 2/3.
    assert list_stopped(run_bandit(losses, mode="min", within=(0.0, 3.0))) == [2]


@given(st.lists(st.lists(st.floats(-500.0, 300.0), min_size=4, max_size=4), min_size=1, max_size=8))
def test_it_is_the_published_rule_on_normalised_values(rewards: list[list[float]]) -> None:
    study = run_bandit(rewards, within=(-500.0, 300.0))
    normal = [[(reward + 500.0) / 800.0 for reward in curve] for curve in rewards]
    best = max(max(curve) for curve in normal)
    for stop in study.list_entries(Stop):
        own = max(normal[stop.trial][:2])
        assert own * 1.5 <= best or math.isclose(own * 1.5, best, rel_tol=1e-9)


@pytest.mark.parametrize("reward", [-600.0, 400.0])
def test_a_reward_outside_the_range_fails_nothing(reward: float) -> None:
    study = run_bandit([[reward] * 4, *REWARDS], within=(-500.0, 300.0))
    assert all(not trial.alive for trial in study.state.trials)
