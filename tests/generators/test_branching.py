"""Branching configs off trained trials, and orders that train shared prefixes early."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import pytest

import paceline as pl
from paceline.analysis.sharing import measure_sharing
from paceline.api.registry import build_part
from paceline.api.simulation import Simulation
from paceline.core.decisions import Credit, Open
from paceline.core.errors import SpecError
from paceline.core.events import Opened
from paceline.core.rng import stream
from paceline.core.values import Config, Part
from paceline.generators.branching import Branching
from paceline.machine.machine import Machine
from paceline.machine.state import StudyState
from paceline.plan.settings import canonicalize, setting_at
from paceline.testing.simulations import make_parts, make_spec, make_table

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
    arguments: dict[str, Any] = {
        "policy": "fifo",
        "slots": 4,
        "trials": 30,
        "curves": "last",
        **options,
    }
    simulation = Simulation(source=source, generator=generator, share=True, **arguments)
    simulation.run(remember=steps.extend)
    return steps


def configs_of(steps: Sequence[Step]) -> list[Config]:
    return [each.config for step in steps for each in step.decisions if isinstance(each, Open)]


# Branching


@pytest.mark.parametrize(
    ("seed", "share", "policy"), [(1, 0.4, "fifo"), (2, 1.0, "fifo"), (3, 1.0, "asha:first=20")]
)
def test_it_branches_like_a_naive_implementation(seed: int, share: float, policy: str) -> None:
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
    """Check one config against all others; return whether it branched."""
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
        measure_sharing(simulated(f"branching:share={share}")).epochs_trained
        for share in (0, 0.5, 0.9)
    ]
    assert trained[0] == 30 * 60 > trained[1] > trained[2]


def test_it_equals_random_search_if_it_never_branches() -> None:
    drawn = configs_of(simulated("random"))
    assert configs_of(simulated("branching:share=0")) == drawn
    plain = configs_of(simulated("random", "quadratic"))
    assert configs_of(simulated("branching:share=1", "quadratic")) == plain


def test_a_resumed_study_gets_the_same_configs() -> None:
    arguments: dict[str, Any] = {
        "policy": "asha",
        "generator": "branching",
        "share": True,
        "trials": 30,
    }
    simulation = Simulation(source="quadratic:stages=3", curves="last", **arguments)
    whole: list[Step] = []
    simulation.run(remember=whole.extend)
    later: list[Step] = []
    half = whole[: len(whole) // 2]
    simulation.resume(half, remember=later.extend)
    assert [*half, *later] == whole


def opened(generator: Branching, *trained: tuple[Config, Sequence[float]]) -> StudyView:
    """Return a study in which these configs were trained with these losses."""
    trace = make_table([[0.0]], epochs=8)
    machine = Machine(make_parts(trace, generator=generator))
    machine.take(Opened(at=0.0, spec=make_spec(trace, share=True)))
    for number, (config, losses) in enumerate(trained):
        machine.take(Open(trial=number, config=canonicalize(config), until=8, why="it is a test"))
        trial = machine.state.trials[number]
        for epoch, loss in enumerate(losses, 1):
            trial.leaf.add_report(loss, 1.0, {"loss": loss})
            machine.take(Credit(trial=number, epoch=epoch, why="it is a test"))
    return machine.state


def test_plain_values_and_choices_are_copied_and_later_pieces_drawn_anew() -> None:
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
    config = canonicalize(generator.propose(1, opened(generator, (old, [1.0] * 5))) or {})
    assert {name: config[name] for name in ("opt", "decay")} == canonicalize(
        {name: old[name] for name in ("opt", "decay")}
    )
    (before, after) = config["net"]["drop"]["piecewise"]
    assert before == [0, 0.25]
    assert after[0] == 4
    assert after[1] != 0.75


def test_a_config_with_merged_pieces_can_be_branched_from() -> None:
    space = {"lr": pl.piecewise([(0, RATES), (2, RATES), (4, pl.uniform(1, 2))])}
    generator = Branching(space=space, share=1.0)
    study = opened(generator, ({"lr": pl.piecewise([(0, 0.2), (4, 1.5)])}, [1.0] * 5))
    for number in range(1, 9):
        lr = (generator.propose(number, study) or {})["lr"]
        assert lr["piecewise"][0] == [0, 0.2]
        assert lr["piecewise"][2][1] != 1.5


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_an_invalid_share_is_refused(share: float) -> None:
    with pytest.raises(SpecError, match="from 0 to 1"):
        Branching(space=TWO, share=share)


# Orders


def proposed(name: str, count: int, **params: Any) -> list[Config]:  # noqa: ANN401
    generator = build_part("generator", Part(name, {"space": TWO, **params}))
    study = opened(generator)
    configs = [generator.propose(number, study) for number in range(count)]
    return [config for config in configs if config is not None]


def scattered(configs: Sequence[Config]) -> int:
    """Return how often a prefix comes back after another one."""
    back = 0
    for epochs in range(1, 9):
        ways = [str([setting_at(config, epoch) for epoch in range(epochs)]) for config in configs]
        runs = [way for way, _ in groupby(ways)]
        back += len(runs) - len(set(runs))
    return back


def test_a_grid_finishes_a_shared_prefix_before_the_next_begins() -> None:
    grid = proposed("grid", 100)
    assert len(grid) == len({str(config) for config in grid}) == 2 * 2 * 3 * 3 * 2
    assert scattered(grid) == 0


def test_ordering_random_draws_by_prefix_keeps_the_same_draws() -> None:
    drawn, ordered = proposed("random", 128), proposed("random", 128, order="subtrees")
    assert ordered[0] == drawn[0]
    for start in (0, 64):
        block = slice(start, start + 64)
        assert sorted(map(str, ordered[block])) == sorted(map(str, drawn[block]))
        assert scattered(ordered[block]) == 0 < scattered(drawn[block])


def test_draws_without_shared_prefixes_keep_their_order() -> None:
    space = {"lr": pl.loguniform(0.001, 1.0)}
    assert proposed("random", 70, space=space, order="subtrees") == proposed(
        "random", 70, space=space
    )


def test_initial_configs_stay_first() -> None:
    first = {"width": 16}
    ordered = proposed("random", 20, first=[first], order="subtrees")
    assert ordered[0]["width"] == 16
    drawn = proposed("random", 65, first=[first])
    assert sorted(map(str, proposed("random", 65, first=[first], order="subtrees"))) == sorted(
        map(str, drawn)
    )
