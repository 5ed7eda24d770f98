"""What branching finds and saves: population based training, a generator that branches, orders.

`python -m benchmarks.branching`. Simulated, on a noisy quadratic whose best rate falls as training
goes on, and so the same on every machine.
"""

from __future__ import annotations

import time
from itertools import product
from statistics import mean, median
from typing import TYPE_CHECKING, Any, NamedTuple

import paceline as pl
from benchmarks.page import facts, markdown, provenance, publish
from paceline.api.registry import build
from paceline.api.simulation import Simulation
from paceline.core.decisions import Launch
from paceline.core.events import Saved
from paceline.core.rng import shuffled, stream
from paceline.core.space import Space
from paceline.core.values import Budget, Config, Part
from paceline.engines.sim.cluster import Cluster
from paceline.testing.simulations import Adding, Rehearsal, brains_for, spec_for, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Step
    from paceline.core.ports import Generator

COMMAND = "python -m benchmarks.branching"
SEEDS = range(20)
# Of those that are put in order.
TRIALS = 128

HEAD = """# Branching: population based training, a generator that branches, orders

Simulated over 20 seeds on a noisy quadratic (`quadratic`, docs/parts.md): 60 epochs of 1 s a trial,
best values are losses. A rate that stays the same ends at 0.057 at best; one that falls gets below.
"""
POPULATIONS = """## Population based training at equal epochs

Eight slots, and no more than 8 or 20 minutes of slot time for each, so 480 or 1,200 epochs. `wins`
are the seeds in which the best value is better than `fifo`'s.
"""
GENERATORS = """## A generator that branches

60 trials on four slots under `fifo`, every trial to its end. `share` is the probability to begin
like a trial there is. In `quadratic:stages=3` rates are drawn from a range for each third of
training, so that random draws share nothing; with `rates=9` they are one of nine.
"""
ORDERS = """## Orders that finish subtrees early

All or 128 of the schedules of 30 epochs, of 15 s each, with starts of 5 s, saves of 0.5 s and
restores of 1 s. `rates` are five in each of three stages; `two` are batch sizes that change at
epoch 10 and rates that change at 20. `held` are the checkpoints there are at one time, at most,
where each goes when it has been used for the last time. `listed` was the grid's order before, by
the names of hyperparameters.
"""


class Found(NamedTuple):
    """What one simulation came to."""

    best: float
    epochs: int
    trials: int
    makespan_s: float


def run(source: str, **options: Any) -> list[Found]:  # noqa: ANN401
    """Simulate with every seed."""
    found = []
    for seed in SEEDS:
        told = {"curves": "last", "share": True, **options}
        done = Simulation(source=source, seed=seed, **told).run()
        assert done.best_value is not None
        found.append(
            Found(done.best_value, done.epochs_trained, done.trials_started, done.makespan_s)
        )
    return found


def _spread(found: Sequence[Found]) -> list[str]:
    values = sorted(each.best for each in found)
    quarter = len(values) // 4
    return [f"{median(values):.4f}", f"{values[quarter]:.4f} to {values[-quarter - 1]:.4f}"]


def populations() -> tuple[str, dict[str, list[Found]]]:
    """Compare policies that may train equally many epochs."""
    lines = [["policy", "epochs", "trials", "best, median", "half of the seeds", "wins"]]
    kept = {}
    for minutes in (8, 20):
        epochs = 60 * minutes
        told: dict[str, Any] = {"slots": 8, "slot_seconds": 60.0 * minutes, "trials": 1000}
        population = epochs // 60
        policies = ("fifo", "asha", "median", f"pbt:population={population}")
        runs = {policy: run("quadratic", policy=policy, **told) for policy in policies}
        base = runs["fifo"]
        for policy, found in runs.items():
            wins = sum(one.best < other.best for one, other in zip(found, base, strict=True))
            trained = f"{mean(each.epochs for each in found):.0f}"
            trials = f"{mean(each.trials for each in found):.0f}"
            lines.append([policy, trained, trials, *_spread(found), f"{wins} of {len(base)}"])
            kept[f"{policy} {minutes}"] = found
    return POPULATIONS + "\n" + markdown(lines), kept


def generators() -> tuple[str, dict[str, list[Found]]]:
    """Compare how often a generator branches."""
    lines = [
        ["workload", "share", "epochs a trial", "best, median", "half of the seeds", "makespan"]
    ]
    kept = {}
    for source, share in product(
        ("quadratic:stages=3", "quadratic:stages=3,rates=9"), (0.0, 0.5, 0.9)
    ):
        told: dict[str, Any] = {"policy": "fifo", "slots": 4, "trials": 60}
        found = run(source, generator=f"branching:share={share}", **told)
        each_trial = mean(each.epochs / each.trials for each in found)
        took = f"{mean(each.makespan_s for each in found):.0f} s"
        lines.append([f"`{source}`", f"{share:g}", f"{each_trial:.1f}", *_spread(found), took])
        kept[f"{source} {share}"] = found
    return GENERATORS + "\n" + markdown(lines), kept


RATES = pl.choice([0.3 / 2**n for n in range(5)])
SPACES: dict[str, Config] = {
    "rates": {"lr": pl.piecewise([(0, RATES), (10, RATES), (20, RATES)])},
    "two": {
        "batch": pl.piecewise([(0, pl.choice([64, 128])), (10, pl.choice([128, 256, 512]))]),
        "lr": pl.piecewise([(0, RATES), (20, RATES)]),
    },
}


def _configs(space: Config) -> dict[str, Part]:
    """Return the same configs in their orders."""
    every = Part("grid", {"space": space})
    # Of single values, so that the last in the order of their names turns fastest.
    names = {each.name: each.options or () for each in Space(space).dimensions}
    listed = [Space(space).config(values) for values in product(*names.values())]
    shuffle = shuffled(len(listed), stream(0, "order"))
    return {
        "grid, listed": Part("queued", {"configs": listed}),
        "grid, shuffled": Part("queued", {"configs": [listed[at] for at in shuffle]}),
        "grid, subtrees": every,
        "random, drawn": Part("random", {"space": space}),
        "random, subtrees": Part("random", {"space": space, "order": "subtrees"}),
    }


def rehearsed(generator: Generator, slots: int) -> Rehearsal:
    """Train a generator's configs, with the costs of a small network."""
    trace = table([[0.0]], epochs=30)
    spec = spec_for(trace, share=True, budget=Budget(trials=TRIALS))
    cluster = Cluster(slots=slots, setup_s=5.0, save_s=0.5, restore_s=1.0, save_every_s=10.0)
    return Rehearsal(spec, brains_for(trace, generator=generator), Adding(15.0), cluster).run()


def held(steps: Sequence[Step]) -> int:
    """Return how many checkpoints there are at most that will still be started from."""
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


def orders() -> tuple[str, dict[str, list[float]]]:
    """Compare orders of the same configs."""
    lines = [["schedules", "slots", "order", "trials", "held", "epochs trained", "makespan"]]
    kept = {}
    for (name, space), slots in product(SPACES.items(), (1, 4, 20)):
        for order, part in _configs(space).items():
            study = rehearsed(build("generator", part), slots)
            state = study.state
            figures = [held(study.steps), state.epochs_trained, state.now]
            told = [str(figures[0]), str(figures[1]), f"{figures[2]:.0f} s"]
            lines.append([name, str(slots), order, str(len(state.trials)), *told])
            kept[f"{name} {slots} {order}"] = figures
    return ORDERS + "\n" + markdown(lines), kept


def main() -> None:
    """Write the page."""
    started = time.perf_counter()
    tables = {"populations": populations(), "generators": generators(), "orders": orders()}
    known = facts(COMMAND, time.perf_counter() - started)
    body = "\n\n".join(text for text, _ in tables.values())
    figures = {name: found for name, (_, found) in tables.items()}
    publish("branching", f"{HEAD}\n{body}\n\n{provenance(known)}\n", known, **figures)


if __name__ == "__main__":
    main()
