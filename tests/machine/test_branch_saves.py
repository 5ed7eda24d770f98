"""Saves for trials that may branch: made where they likely save more time than they take."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from machine_bench import MachineBench, ScriptedPolicy
from small_studies import SmallStudy, make_table

import paceline as pl
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.values import Budget, Part, Saves
from paceline.plan.settings import canonicalize

if TYPE_CHECKING:
    from paceline.core.values import Config

RATES = (0.1, 0.2, 0.3)


def schedule(*rates: float) -> Config:
    return canonicalize({"lr": {"piecewise": [[3 * at, rate] for at, rate in enumerate(rates)]}})


def list_launched(bench: MachineBench) -> list[tuple[int, ...]]:
    return [each.save_at for each in bench.first if isinstance(each, d.Launch)]


def open_bench(configs: list[Config], **spec: Any) -> MachineBench:  # noqa: ANN401
    options = {"generator": Part("queued", {"configs": configs}), "share": True, **spec}
    return MachineBench(ScriptedPolicy(), configs, **options)


def test_a_trial_saves_where_others_will_branch_though_its_own_settings_do_not_change() -> None:
    configs = [schedule(*rates) for rates in product(RATES, RATES, RATES)]
    assert configs[0] == {"lr": 0.1}
    assert list_launched(open_bench(configs)) == [(3, 6)]


def test_a_space_shows_where_its_trials_will_branch() -> None:
    rates = pl.choice([0.1, 0.2])
    space = {"lr": pl.piecewise([(0, rates), (3, rates), (6, rates)])}
    part = Part("random", {"space": space})
    assert list_launched(open_bench([schedule(0.1)], generator=part)) == [(3, 6)]
    # The first rate is one of very many: no two trials begin alike.
    space = {"lr": pl.piecewise([(0, pl.uniform(0, 1)), (3, rates), (6, rates)])}
    part = Part("random", {"space": space})
    assert list_launched(open_bench([schedule(0.1, 0.2)], generator=part)) == [()]


def test_no_save_is_ordered_for_trials_that_will_not_come() -> None:
    configs = [schedule(*rates) for rates in product(RATES, RATES, RATES)]
    assert list_launched(open_bench(configs, budget=Budget(trials=1))) == [()]


def test_a_save_that_takes_longer_than_training_again_is_not_ordered() -> None:
    configs = [schedule(*rates) for rates in product(RATES, RATES, RATES)]
    bench = open_bench(configs)
    bench.report(0, 0.5, 0.5, 0.5)
    # Three epochs take 3 s.
    bench.say(e.Saved(at=bench.at, attempt=0, epoch=3, seconds=100.0))
    bench.report(0, *[0.5] * 6)
    (launch,) = (each for each in bench.end(0, e.Cause.GOAL) if isinstance(each, d.Launch))
    assert launch.save_at == ()


def test_a_function_that_keeps_nothing_is_asked_for_one_save() -> None:
    configs = [schedule(*rates) for rates in product(RATES, RATES, RATES)]
    bench = open_bench(configs)
    bench.report(0, 0.5, 0.5, 0.5)
    bench.say(e.Missed(at=bench.at, attempt=0, epoch=3, note="it keeps nothing"))
    bench.report(0, *[0.5] * 6)
    (launch,) = (each for each in bench.end(0, e.Cause.GOAL) if isinstance(each, d.Launch))
    assert launch.save_at == ()


def test_a_trial_that_is_paused_before_its_branch_finds_a_checkpoint_there() -> None:
    policy = ScriptedPolicy(until=2)
    configs = [schedule(0.1, 0.2), schedule(0.1, 0.3)]
    queue = Part("queued", {"configs": configs})
    bench = MachineBench(policy, configs, slots=2, share=True, generator=queue)
    policy.verdicts[0, 2] = (d.Go(trial=0, until=9, why="it may"),)
    decided = bench.report(0, 0.5, 0.4)
    # The second trial is paused at epoch 2 and no further one comes.
    orders = [each for each in decided if isinstance(each, d.Amend)]
    assert bench.state.closed
    assert [(each.goal, each.save_at) for each in orders][-1:] == [(9, (3,))]


@pytest.mark.parametrize("slots", [1, 5])
def test_checkpoints_at_likely_branches_are_kept_and_go_when_no_trial_comes(slots: int) -> None:
    configs = [schedule(*rates) for rates in product(RATES, RATES, RATES)]
    configs = configs[5:] + configs[:5]  # the first one shows all boundaries
    trace = make_table([[1.0] * 9] * len(configs), configs=configs, seconds=1.0)
    costs = {"save_s": 0.1, "save_every_s": 6.0}
    study = SmallStudy(
        trace, share=True, slots=slots, cluster=costs, saves=Saves(6.0, collect=True)
    ).run()
    assert study.state.epochs_trained == 3 * (3 + 9 + 27)
    held: set[tuple[int, int]] = set()
    most = 0
    for entry in (entry for step in study.steps for entry in step.entries):
        if isinstance(entry, e.Saved):
            held.add((entry.attempt, entry.epoch))
        elif isinstance(entry, d.Drop):
            held -= set(entry.checkpoints)
        most = max(most, len([epoch for _, epoch in held if epoch < 9]))
    # One for each branch, and those of the trials that run.
    assert most <= 3 + 9 + slots
    assert all(epoch == 9 for _, epoch in held)
