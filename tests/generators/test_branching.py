"""Configs that begin like a trial there is, and orders in which what they share ends early."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import pytest

import paceline as pl
from paceline.analysis.sharing import sharing_of
from paceline.api.registry import build
from paceline.api.simulation import Simulation
from paceline.core.decisions import Credit, Open
from paceline.core.errors import SpecError
from paceline.core.events import Opened
from paceline.core.rng import stream
from paceline.core.values import Config, Part
from paceline.generators.branching import Branching
from paceline.machine.machine import Machine
from paceline.machine.state import StudyState
from paceline.plan.settings import canonical, setting_at
from paceline.testing.simulations import brains_for, spec_for, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Step
    from paceline.core.views import StudyView

RATES = pl.choice([0.5, 0.2, 0.1])
TWO: Config = {
    "batch": pl.piecewise([(0, pl.choice([16, 32])), (4, pl.choice([16, 64]))]),
    "lr": pl.piecewise([(0, RATES), (2, RATES), (6, 0.01)]),
    "width": pl.choice([8, 16]),
}


def simulated(generator: str, source: str = "quadratic:stages=3", **options: Any) -> list[Step]:  # noqa: ANN401
    steps: list[Step] = []
    told: dict[str, Any] = {"policy": "fifo", "slots": 4, "trials": 30, "curves": "last", **options}
    simulation = Simulation(source=source, generator=generator, share=True, **told)
    simulation.run(remember=steps.extend)
    return steps


def configs_of(steps: Sequence[Step]) -> list[Config]:
    return [each.config for step in steps for each in step.decisions if isinstance(each, Open)]


# Branching


@pytest.mark.parametrize(
    ("seed", "share", "policy"), [(1, 0.4, "fifo"), (2, 1.0, "fifo"), (3, 1.0, "asha:first=20")]
)
def test_it_branches_where_a_naive_one_would(seed: int, share: float, policy: str) -> None:
    state = StudyState()
    branched = 0
    for step in simulated(f"branching:share={share}", seed=seed, policy=policy):
        for entry in step.entries:
            if isinstance(entry, Open):
                configs = {trial.id: trial.config for trial in state.trials}
                curves = {trial.id: list(trial.losses) for trial in state.trials}
                branched += naive(entry, configs, curves, seed, share)
            state.apply(entry)
    assert branched > 5


def naive(
    entry: Open,
    configs: dict[int, Config],
    curves: dict[int, list[float]],
    seed: int,
    share: float,
) -> bool:
    """Check one config against all that is known of the others; say whether it branched."""
    lot = stream(seed, "branch", entry.trial)
    ways: dict[int, dict[str, tuple[float, int]]] = {20: {}, 40: {}}
    for epoch, found in ways.items():
        for trial, curve in curves.items():
            if len(curve) >= epoch:
                way = str([setting_at(configs[trial], at) for at in range(epoch)])
                found.setdefault(way, (curve[epoch - 1], trial))
    reached = [epoch for epoch, found in ways.items() if found]
    if lot.random() >= share or not reached:
        return False
    epoch = reached[int(lot.random() * len(reached))]
    best = sorted(ways[epoch].values())
    best = best[: -(-len(best) // 4)]
    _, trial = best[int(lot.random() * len(best))]
    for at in range(epoch):
        assert setting_at(entry.config, at) == setting_at(configs[trial], at)
    assert setting_at(entry.config, epoch) != setting_at(configs[trial], epoch)
    return True


def test_the_more_it_branches_the_less_is_trained() -> None:
    trained = [
        sharing_of(simulated(f"branching:share={share}")).epochs_trained for share in (0, 0.5, 0.9)
    ]
    assert trained[0] == 30 * 60 > trained[1] > trained[2]


def test_it_is_random_where_it_never_branches_or_nothing_can_branch() -> None:
    drawn = configs_of(simulated("random"))
    assert configs_of(simulated("branching:share=0")) == drawn
    plain = configs_of(simulated("random", "quadratic"))
    assert configs_of(simulated("branching:share=1", "quadratic")) == plain


def test_a_study_that_was_cut_gets_the_same_configs() -> None:
    told: dict[str, Any] = {"policy": "asha", "generator": "branching", "share": True, "trials": 30}
    simulation = Simulation(source="quadratic:stages=3", curves="last", **told)
    whole: list[Step] = []
    simulation.run(remember=whole.extend)
    later: list[Step] = []
    half = whole[: len(whole) // 2]
    simulation.resume(half, remember=later.extend)
    assert [*half, *later] == whole


def opened(generator: Branching, *trained: tuple[Config, Sequence[float]]) -> StudyView:
    """Return a study in which these configs were trained, with these losses."""
    trace = table([[0.0]], epochs=8)
    machine = Machine(brains_for(trace, generator=generator))
    machine.take(Opened(at=0.0, spec=spec_for(trace, share=True)))
    for number, (config, losses) in enumerate(trained):
        machine.take(Open(trial=number, config=canonical(config), until=8, why="it is a test"))
        trial = machine.state.trials[number]
        for epoch, loss in enumerate(losses, 1):
            trial.leaf.learn(loss, 1.0, {"loss": loss})
            machine.take(Credit(trial=number, epoch=epoch, why="it is a test"))
    return machine.state


def test_plain_values_and_choices_are_copied_whole_and_later_pieces_drawn_afresh() -> None:
    space: Config = {
        "net": {"drop": pl.piecewise([(0, pl.uniform(0, 1)), (4, pl.uniform(0, 1))]), "depth": 3},
        "opt": pl.choice([{"momentum": pl.uniform(0, 1)}, {"beta": pl.uniform(0, 1)}]),
        "decay": pl.linear(pl.uniform(0, 1), 0.0, 8),
    }
    old: Config = {
        "net": {"drop": pl.piecewise([(0, 0.25), (4, 0.75)]), "depth": 3},
        "opt": {"beta": 0.5},
        "decay": pl.linear(0.125, 0.0, 8),
    }
    generator = Branching(space=space, share=1.0)
    config = canonical(generator.propose(1, opened(generator, (old, [1.0] * 5))) or {})
    assert {name: config[name] for name in ("opt", "decay")} == canonical(
        {name: old[name] for name in ("opt", "decay")}
    )
    (before, after) = config["net"]["drop"]["piecewise"]
    assert before == [0, 0.25]
    assert after[0] == 4
    assert after[1] != 0.75


def test_a_config_whose_pieces_became_one_is_branched_from_too() -> None:
    space = {"lr": pl.piecewise([(0, RATES), (2, RATES), (4, pl.uniform(1, 2))])}
    generator = Branching(space=space, share=1.0)
    study = opened(generator, ({"lr": pl.piecewise([(0, 0.2), (4, 1.5)])}, [1.0] * 5))
    for number in range(1, 9):
        lr = (generator.propose(number, study) or {})["lr"]
        assert lr["piecewise"][0] == [0, 0.2]
        assert lr["piecewise"][2][1] != 1.5


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_that_cannot_be_meant_is_refused(share: float) -> None:
    with pytest.raises(SpecError, match="from 0 to 1"):
        Branching(space=TWO, share=share)


# Orders


def proposed(name: str, count: int, **params: Any) -> list[Config]:  # noqa: ANN401
    generator = build("generator", Part(name, {"space": TWO, **params}))
    study = opened(generator)
    configs = [generator.propose(number, study) for number in range(count)]
    return [config for config in configs if config is not None]


def scattered(configs: Sequence[Config]) -> int:
    """Return how often a way to begin comes back after others have come between."""
    back = 0
    for epochs in range(1, 9):
        ways = [str([setting_at(config, epoch) for epoch in range(epochs)]) for config in configs]
        runs = [way for way, _ in groupby(ways)]
        back += len(runs) - len(set(runs))
    return back


def test_a_grid_finishes_what_trials_share_before_the_next_begins() -> None:
    grid = proposed("grid", 100)
    assert len(grid) == len({str(config) for config in grid}) == 2 * 2 * 3 * 3 * 2
    assert scattered(grid) == 0


def test_random_draws_can_be_put_in_that_order_and_stay_the_same_draws() -> None:
    drawn, ordered = proposed("random", 128), proposed("random", 128, order="subtrees")
    assert ordered[0] == drawn[0]
    for start in (0, 64):
        block = slice(start, start + 64)
        assert sorted(map(str, ordered[block])) == sorted(map(str, drawn[block]))
        assert scattered(ordered[block]) == 0 < scattered(drawn[block])


def test_draws_that_nobody_shares_stay_in_the_order_they_were_drawn() -> None:
    space = {"lr": pl.loguniform(0.001, 1.0)}
    assert proposed("random", 70, space=space, order="subtrees") == proposed(
        "random", 70, space=space
    )


def test_what_the_user_wants_first_stays_first() -> None:
    first = {"width": 16}
    ordered = proposed("random", 20, first=[first], order="subtrees")
    assert ordered[0]["width"] == 16
    drawn = proposed("random", 65, first=[first])
    assert sorted(map(str, proposed("random", 65, first=[first], order="subtrees"))) == sorted(
        map(str, drawn)
    )
