"""Measure what several studies of one plan save: at once, and one after another.

`python -m benchmarks.several`. The first table is simulated, on the spaces of `benchmarks.stages`;
the others count the epochs of live studies in one store, with a trivial training function.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

import paceline as pl
from benchmarks.page import collect_facts, format_provenance, format_table, publish
from benchmarks.stages import COSTS, SAVED, SLOTS, SPACES, TUNERS, format_savings, make_trace
from paceline.analysis.sharing import measure_sharing
from paceline.api.simulation import Simulation

if TYPE_CHECKING:
    from benchmarks.stages import Space
    from paceline.core.decisions import Step
    from paceline.core.values import Config

COMMAND = "python -m benchmarks.several"
SEEDS = 10


class Case(NamedTuple):
    """Studies that run at once."""

    words: str
    space: Space
    searches: tuple[pl.Search, ...]


def split_space(space: Space, count: int, each: float) -> list[list[Config]]:
    """Return `count` overlapping parts of a space, each of size `each`, evenly shifted."""
    size, configs = round(len(space.configs) * each), space.configs
    step = len(configs) / count
    return [
        [configs[(round(step * at) + place) % len(configs)] for place in range(size)]
        for at in range(count)
    ]


def list_cases() -> list[Case]:
    """Return the combinations of tuners and spaces."""
    found = []
    for space in SPACES:
        halves = tuple(
            pl.Search(policy="fifo", configs=each) for each in split_space(space, 4, 0.5)
        )
        found += [
            Case("4 grids, each half of the space", space, halves),
            Case("grid, sha, hyperband", space, _make_searches("grid", "sha", "hyperband")),
            Case("grid, sha, asha, hyperband", space, _make_searches(*TUNERS)),
        ]
    return found


def _make_searches(*tuners: str) -> tuple[pl.Search, ...]:
    return tuple(pl.Search(policy=TUNERS[tuner]) for tuner in tuners)


def compare(case: Case) -> dict[str, Any]:
    """Return the costs of studies with one plan, with own plans, and without sharing."""
    space, trace = case.space, make_trace(case.space)
    settings = Simulation(
        source=space.name, slots=SLOTS, seed=1, searches=case.searches, share=True, **COSTS
    )
    log: list[Step] = []
    together = settings.run(trace=trace, remember=log.extend)
    found = measure_sharing(log)
    apart = replace(settings, share=False).run(trace=trace)
    alone = [
        _slot_time_alone(replace(settings, searches=()), search, case) for search in case.searches
    ]
    return {
        "space": space.name,
        "studies": case.words,
        "trials": found.trials,
        "epochs_asked": found.epochs_asked,
        "epochs_needed": found.epochs_needed,
        "epochs_asked_apart": apart.epochs_trained,
        "merge_rate": found.merge_rate,
        "slot_h_apart": apart.slot_seconds / 3600,
        "slot_h_own_plans": sum(alone) / 3600,
        "slot_h_together": together.slot_seconds / 3600,
        "hours_apart": apart.makespan_s / 3600,
        "hours_together": together.makespan_s / 3600,
        "above_limit": together.slot_seconds / (found.epochs_needed * space.epoch_s),
    }


def _slot_time_alone(settings: Simulation, search: pl.Search, case: Case) -> float:
    """Return the slot time of a study that shares among its trials only."""
    space = case.space
    if search.configs is not None:
        space = space._replace(configs=search.configs)
    return replace(settings, policy=search.policy).run(trace=make_trace(space)).slot_seconds


# Live, one after another in a store


def train(trial: pl.Trial) -> None:
    """Train one weight by the learning rate of each epoch."""
    weight = trial.keep(weight=[0.0])
    for _ in trial.epochs():
        weight[0] += trial["lr"] * (trial["goal"] - weight[0])
        trial.report(loss=(1.0 - weight[0]) ** 2)


def run_in_turn(folder: Path) -> list[dict[str, Any]]:
    """Run studies with the same function one after another; return what each trained."""
    later = pl.piecewise([(0, pl.grid([0.3, 0.1])), (6, pl.grid([0.1, 0.05, 0.01]))])
    more = pl.piecewise([(0, pl.grid([0.3, 0.1])), (6, pl.grid([0.1, 0.05, 0.01, 0.2]))])
    asked = [
        ("first", "6 schedules of 12 epochs", {"lr": later, "goal": 1.0}, 12),
        ("again", "the same", {"lr": later, "goal": 1.0}, 12),
        ("longer", "the same, 18 epochs", {"lr": later, "goal": 1.0}, 18),
        ("wider", "2 more, which branch after epoch 6", {"lr": more, "goal": 1.0}, 18),
    ]
    rows = []
    for name, words, space, epochs in asked:
        result = pl.tune(
            train,
            space=space,
            metric="loss",
            mode="min",
            epochs=epochs,
            policy="fifo",
            generator="grid",
            slots=2,
            store=str(folder / "studies.db"),
            name=name,
            progress=False,
        )
        found = measure_sharing(result.log)
        rows.append(
            {
                "study": name,
                "words": words,
                "epochs_asked": found.epochs_asked,
                "epochs_trained": found.epochs_trained,
                "best": best.value if (best := result.best_or_none) is not None else None,
            }
        )
    return rows


def count_trials_until_good(folder: Path, seed: int) -> dict[str, int]:
    """Return how many trials a cold and a warm study need to get close to the optimum."""
    settings: dict[str, Any] = {
        "space": {"lr": pl.loguniform(1e-3, 1.0), "goal": pl.uniform(0.0, 2.0)},
        "metric": "loss",
        "mode": "min",
        "epochs": 6,
        "policy": "fifo",
        "generator": "tpe",
        "slots": 1,
        "store": str(folder / f"warm-{seed}.db"),
        "progress": False,
    }
    pl.tune(train, name="before", trials=30, seed=1000 + seed, **settings)
    settings |= {"trials": 60, "target": 1e-3, "seed": seed}
    cold = pl.tune(train, name="cold", **settings)
    warm = pl.tune(train, name="warm", warm_start="before", **settings)
    return {"cold": len(cold.trials), "warm": len(warm.trials)}


def main() -> None:
    """Run all studies, print and write the page."""
    started = time.perf_counter()
    rows = []
    for case in list_cases():
        rows.append(compare(case))
        print(rows[-1], file=sys.stderr)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        turns = run_in_turn(folder)
        warm = [count_trials_until_good(folder, seed) for seed in range(SEEDS)]
    known = collect_facts(COMMAND, time.perf_counter() - started)
    publish(
        "several", _make_page(rows, turns, warm, known), known, rows=rows, in_turn=turns, warm=warm
    )


def _make_page(
    rows: list[dict[str, Any]],
    turns: list[dict[str, Any]],
    warm: list[dict[str, int]],
    known: dict[str, Any],
) -> str:
    lines = [
        [
            "space",
            "studies at once",
            "slot-hours: nothing shared, own plans, one plan",
            *SAVED,
        ]
    ]
    lines += [
        [
            row["space"],
            row["studies"],
            f"{row['slot_h_apart']:.1f}, {row['slot_h_own_plans']:.1f}, "
            f"{row['slot_h_together']:.1f}",
            *format_savings(row),
        ]
        for row in rows
    ]
    turns_table = [["study", "asks for", "epochs asked", "epochs trained"]]
    turns_table += [
        [row["study"], row["words"], str(row["epochs_asked"]), str(row["epochs_trained"])]
        for row in turns
    ]
    cold, hot = (median(each[kind] for each in warm) for kind in ("cold", "warm"))
    return (
        f"# Several studies of one plan\n\n{format_table(lines)}\n\n"
        f"Simulated on {SLOTS} slots with the spaces and costs of `stages.md`; schedules in random "
        "order. *Own plans*: each study shares among its own trials. *One plan*: epochs that any "
        "two trials have in common are trained once. *Limit*: all requested epochs divided by the "
        "distinct ones. A study that stops early requests other epochs with sharing than without, "
        "and `asha` requests more, so there the saving differs from the limit.\n\n"
        "Published, on other spaces and machines: GPU-hours 6.77x less and 3.53x sooner "
        "for several studies (Hippo); 5.73x and 6.6x less, 4.13x sooner (stage-based tuning).\n\n"
        f"## One after another in a store\n\n{format_table(turns_table)}\n\n"
        "Live studies of the same function, run in the order of the table.\n\n"
        "## A generator that starts with another study's results\n\n"
        f"Trials until the loss is 0.001, `tpe`, median of {len(warm)} seeds: {cold:g} cold, "
        f"{hot:g} after 30 trials of another study (`warm_start`); warm was sooner in "
        f"{sum(each['warm'] < each['cold'] for each in warm)}, later in "
        f"{sum(each['warm'] > each['cold'] for each in warm)}.\n\n{format_provenance(known)}\n"
    )


if __name__ == "__main__":
    main()
