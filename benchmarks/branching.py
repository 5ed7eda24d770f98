"""Measure branching: population based training, a branching generator, orders of configs.

`python -m benchmarks.branching`. Simulated on a noisy quadratic whose best rate falls during
training, so the figures are the same on every machine.
"""

from __future__ import annotations

import time
from itertools import product
from statistics import mean, median
from typing import TYPE_CHECKING, Any, NamedTuple

import paceline as pl
from benchmarks.page import collect_facts, format_provenance, format_table, publish
from paceline.api.registry import build_part
from paceline.api.simulation import Simulation
from paceline.core.decisions import Launch
from paceline.core.events import Saved
from paceline.core.rng import shuffle_range, stream
from paceline.core.space import Space
from paceline.core.values import Budget, Config, Part
from paceline.engines.sim.cluster import Cluster
from paceline.testing.simulations import (
    AddingWorkload,
    SimulatedStudy,
    make_parts,
    make_spec,
    make_table,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Step
    from paceline.core.ports import Generator

COMMAND = "python -m benchmarks.branching"
SEEDS = range(20)
# Configs per order.
TRIALS = 128

HEAD = """# Branching: population based training, a branching generator, orders of configs

Simulated over 20 seeds on a noisy quadratic (`quadratic`, docs/parts.md): 60 epochs of 1 s a trial,
best values are losses. A constant rate ends at 0.057 at best; a falling rate ends lower.
"""
POPULATIONS = """## Population based training at equal epochs

Eight slots, and at most 8 or 20 minutes of slot time per study: 480 or 1,200 epochs. `wins` counts
the seeds in which the best value is better than `fifo`'s.
"""
GENERATORS = """## A branching generator

60 trials on four slots with `fifo`, every trial to its end. `share` is the probability of starting
like an existing trial. In `quadratic:stages=3` a rate is drawn from a range for each third of
training, so random draws share nothing; with `rates=9` it is one of nine.
"""
ORDERS = """## Orders that finish subtrees early

All, or 128, of the schedules of 30 epochs of 15 s each; a start costs 5 s, a save 0.5 s, a restore
1 s. `rates`: five rates in each of three stages. `two`: batch sizes that change at epoch 10 and
rates that change at 20. `held`: the largest number of checkpoints at one time, if each is deleted
after its last use. `listed`: the former order of the grid, by the names of hyperparameters.
"""


class RunOutcome(NamedTuple):
    """Result of one simulation."""

    best: float
    epochs: int
    trials: int
    makespan_s: float


def run_seeds(source: str, **options: Any) -> list[RunOutcome]:  # noqa: ANN401
    """Simulate a source with every seed."""
    found = []
    for seed in SEEDS:
        settings = {"curves": "last", "share": True, **options}
        done = Simulation(source=source, seed=seed, **settings).run()
        assert done.best_value is not None
        found.append(
            RunOutcome(done.best_value, done.epochs_trained, done.trials_started, done.makespan_s)
        )
    return found


def _format_quartiles(found: Sequence[RunOutcome]) -> list[str]:
    values = sorted(each.best for each in found)
    quarter = len(values) // 4
    return [f"{median(values):.4f}", f"{values[quarter]:.4f} to {values[-quarter - 1]:.4f}"]


def compare_populations() -> tuple[str, dict[str, list[RunOutcome]]]:
    """Compare policies at an equal number of epochs."""
    lines = [["policy", "epochs", "trials", "best, median", "half of the seeds", "wins"]]
    kept = {}
    for minutes in (8, 20):
        epochs = 60 * minutes
        settings: dict[str, Any] = {"slots": 8, "slot_seconds": 60.0 * minutes, "trials": 1000}
        population = epochs // 60
        policies = ("fifo", "asha:drain=true", "median", f"pbt:population={population}")
        runs = {policy: run_seeds("quadratic", policy=policy, **settings) for policy in policies}
        base = runs["fifo"]
        for policy, found in runs.items():
            wins = sum(one.best < other.best for one, other in zip(found, base, strict=True))
            trained = f"{mean(each.epochs for each in found):.0f}"
            trials = f"{mean(each.trials for each in found):.0f}"
            lines.append(
                [policy, trained, trials, *_format_quartiles(found), f"{wins} of {len(base)}"]
            )
            kept[f"{policy} {minutes}"] = found
    return POPULATIONS + "\n" + format_table(lines), kept


def compare_generators() -> tuple[str, dict[str, list[RunOutcome]]]:
    """Compare generators by how often they branch."""
    lines = [
        ["workload", "share", "epochs a trial", "best, median", "half of the seeds", "makespan"]
    ]
    kept = {}
    for source, share in product(
        ("quadratic:stages=3", "quadratic:stages=3,rates=9"), (0.0, 0.5, 0.9)
    ):
        settings: dict[str, Any] = {"policy": "fifo", "slots": 4, "trials": 60}
        found = run_seeds(source, generator=f"branching:share={share}", **settings)
        each_trial = mean(each.epochs / each.trials for each in found)
        took = f"{mean(each.makespan_s for each in found):.0f} s"
        lines.append(
            [f"`{source}`", f"{share:g}", f"{each_trial:.1f}", *_format_quartiles(found), took]
        )
        kept[f"{source} {share}"] = found
    return GENERATORS + "\n" + format_table(lines), kept


RATES = pl.choice([0.3 / 2**n for n in range(5)])
SPACES: dict[str, Config] = {
    "rates": {"lr": pl.piecewise([(0, RATES), (10, RATES), (20, RATES)])},
    "two": {
        "batch": pl.piecewise([(0, pl.choice([64, 128])), (10, pl.choice([128, 256, 512]))]),
        "lr": pl.piecewise([(0, RATES), (20, RATES)]),
    },
}


def _order_configs(space: Config) -> dict[str, Part]:
    """Return the same configs in each order, as generators."""
    every = Part("grid", {"space": space})
    # Of single values, so that the last one by name varies fastest.
    names = {each.name: each.options or () for each in Space(space).dimensions}
    listed = [Space(space).config(values) for values in product(*names.values())]
    shuffle = shuffle_range(len(listed), stream(0, "order"))
    return {
        "grid, listed": Part("queued", {"configs": listed}),
        "grid, shuffled": Part("queued", {"configs": [listed[at] for at in shuffle]}),
        "grid, subtrees": every,
        "random, drawn": Part("random", {"space": space}),
        "random, subtrees": Part("random", {"space": space, "order": "subtrees"}),
    }


def simulate_generator(generator: Generator, slots: int) -> SimulatedStudy:
    """Simulate a generator's configs with the costs of a small network."""
    trace = make_table([[0.0]], epochs=30)
    spec = make_spec(trace, share=True, budget=Budget(trials=TRIALS))
    cluster = Cluster(slots=slots, setup_s=5.0, save_s=0.5, restore_s=1.0, save_every_s=10.0)
    return SimulatedStudy(
        spec, make_parts(trace, generator=generator), AddingWorkload(15.0), cluster
    ).run()


def count_held_checkpoints(steps: Sequence[Step]) -> int:
    """Return the largest number of checkpoints that are still needed at one time."""
    last_use = {
        (each.source, each.start): number
        for number, step in enumerate(steps)
        for each in step.decisions
        if isinstance(each, Launch) and each.source is not None
    }
    there: set[tuple[int, int]] = set()
    most = 0
    for number, step in enumerate(steps):
        if isinstance(step.event, Saved):
            there.add((step.event.attempt, step.event.epoch))
        there = {name for name in there if last_use.get(name, -1) > number}
        most = max(most, len(there))
    return most


def compare_orders() -> tuple[str, dict[str, list[float]]]:
    """Compare orders of the same configs."""
    lines = [["schedules", "slots", "order", "trials", "held", "epochs trained", "makespan"]]
    kept = {}
    for (name, space), slots in product(SPACES.items(), (1, 4, 20)):
        for order, part in _order_configs(space).items():
            study = simulate_generator(build_part("generator", part), slots)
            state = study.state
            figures = [count_held_checkpoints(study.steps), state.epochs_trained, state.now]
            cells = [str(figures[0]), str(figures[1]), f"{figures[2]:.0f} s"]
            lines.append([name, str(slots), order, str(len(state.trials)), *cells])
            kept[f"{name} {slots} {order}"] = figures
    return ORDERS + "\n" + format_table(lines), kept


def main() -> None:
    """Run all comparisons and write the page."""
    started = time.perf_counter()
    tables = {
        "populations": compare_populations(),
        "generators": compare_generators(),
        "orders": compare_orders(),
    }
    known = collect_facts(COMMAND, time.perf_counter() - started)
    body = "\n\n".join(text for text, _ in tables.values())
    figures = {name: found for name, (_, found) in tables.items()}
    publish("branching", f"{HEAD}\n{body}\n\n{format_provenance(known)}\n", known, **figures)


if __name__ == "__main__":
    main()
