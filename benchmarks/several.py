"""What several studies of one plan save: at once on the same slots, and one after another.

`python -m benchmarks.several`. The first table is simulated, on the spaces of `benchmarks.stages`;
the others are live studies with next to nothing to train, in one store: they count epochs.
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
from benchmarks.page import facts, markdown, provenance, publish
from benchmarks.stages import COSTS, SAVED, SLOTS, SPACES, TUNERS, saved, traced
from paceline.analysis.sharing import sharing_of
from paceline.api.simulation import Simulation

if TYPE_CHECKING:
    from benchmarks.stages import Space
    from paceline.core.decisions import Step
    from paceline.core.values import Config

COMMAND = "python -m benchmarks.several"
SEEDS = 10


class Case(NamedTuple):
    """Studies that are driven at once."""

    words: str
    space: Space
    searches: tuple[pl.Search, ...]


def parts(space: Space, count: int, each: float) -> list[list[Config]]:
    """Return overlapping parts of a space: `each` a share of it, begun a step further each time."""
    size, configs = round(len(space.configs) * each), space.configs
    step = len(configs) / count
    return [
        [configs[(round(step * at) + place) % len(configs)] for place in range(size)]
        for at in range(count)
    ]


def cases() -> list[Case]:
    """Return who tunes what beside whom."""
    found = []
    for space in SPACES:
        halves = tuple(pl.Search(policy="fifo", configs=each) for each in parts(space, 4, 0.5))
        found += [
            Case("4 grids, each half of the space", space, halves),
            Case("grid, sha, hyperband", space, _by("grid", "sha", "hyperband")),
            Case("grid, sha, asha, hyperband", space, _by(*TUNERS)),
        ]
    return found


def _by(*tuners: str) -> tuple[pl.Search, ...]:
    return tuple(pl.Search(policy=TUNERS[tuner]) for tuner in tuners)


def compared(case: Case) -> dict[str, Any]:
    """Return what studies take together: with one plan, each with its own, and nothing shared."""
    space, trace = case.space, traced(case.space)
    told = Simulation(
        source=space.name, slots=SLOTS, seed=1, searches=case.searches, share=True, **COSTS
    )
    log: list[Step] = []
    together = told.run(trace=trace, remember=log.extend)
    found = sharing_of(log)
    apart = replace(told, share=False).run(trace=trace)
    alone = [_alone(replace(told, searches=()), search, case) for search in case.searches]
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


def _alone(told: Simulation, search: pl.Search, case: Case) -> float:
    """Return the slot time of a study whose trials share, and that shares with no other."""
    space = case.space
    if search.configs is not None:
        space = space._replace(configs=search.configs)
    return replace(told, policy=search.policy).run(trace=traced(space)).slot_seconds


# Live, one after another in a store


def counts(trial: pl.Trial) -> None:
    """Train next to nothing: a weight that goes its way at the rate in force."""
    weight = trial.keep(weight=[0.0])
    for _ in trial.epochs():
        weight[0] += trial["lr"] * (trial["goal"] - weight[0])
        trial.report(loss=(1.0 - weight[0]) ** 2)


def in_turn(folder: Path) -> list[dict[str, Any]]:
    """Return what studies with the same function trained, each after those above it."""
    later = pl.piecewise([(0, pl.grid([0.3, 0.1])), (6, pl.grid([0.1, 0.05, 0.01]))])
    more = pl.piecewise([(0, pl.grid([0.3, 0.1])), (6, pl.grid([0.1, 0.05, 0.01, 0.2]))])
    asked = [
        ("first", "6 schedules of 12 epochs", {"lr": later, "goal": 1.0}, 12),
        ("again", "the same", {"lr": later, "goal": 1.0}, 12),
        ("longer", "the same, 18 epochs", {"lr": later, "goal": 1.0}, 18),
        ("wider", "2 more, which part after epoch 6", {"lr": more, "goal": 1.0}, 18),
    ]
    rows = []
    for name, words, space, epochs in asked:
        result = pl.tune(
            counts,
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
        found = sharing_of(result.log)
        rows.append(
            {
                "study": name,
                "words": words,
                "epochs_asked": found.epochs_asked,
                "epochs_trained": found.epochs_trained,
                "best": result.best.value if result.best is not None else None,
            }
        )
    return rows


def until_good(folder: Path, seed: int) -> dict[str, int]:
    """Return how many trials a cold and a warm study need to come near the best."""
    told: dict[str, Any] = {
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
    pl.tune(counts, name="before", trials=30, seed=1000 + seed, **told)
    told |= {"trials": 60, "target": 1e-3, "seed": seed}
    cold = pl.tune(counts, name="cold", **told)
    warm = pl.tune(counts, name="warm", warm_start="before", **told)
    return {"cold": len(cold.trials), "warm": len(warm.trials)}


def main() -> None:
    """Run, print and write."""
    started = time.perf_counter()
    rows = []
    for case in cases():
        rows.append(compared(case))
        print(rows[-1], file=sys.stderr)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        turns = in_turn(folder)
        warm = [until_good(folder, seed) for seed in range(SEEDS)]
    known = facts(COMMAND, time.perf_counter() - started)
    publish("several", _page(rows, turns, warm, known), known, rows=rows, in_turn=turns, warm=warm)


def _page(
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
            *saved(row),
        ]
        for row in rows
    ]
    told = [["study", "asks for", "epochs asked", "epochs trained"]]
    told += [
        [row["study"], row["words"], str(row["epochs_asked"]), str(row["epochs_trained"])]
        for row in turns
    ]
    cold, hot = (median(each[kind] for each in warm) for kind in ("cold", "warm"))
    return (
        f"# Several studies of one plan\n\n{markdown(lines)}\n\n"
        f"Simulated on {SLOTS} slots with the spaces and costs of `stages.md`; schedules in an "
        "order by lot. *Own plans*: each study alone, its trials share; *one plan*: what any two "
        "trials have in common is trained once. *Limit*: how many times as many epochs all trials "
        "asked for as there are different ones among them. A study that stops early asks for "
        "other epochs with sharing than without, `asha` for more: so saved and limit differ "
        "there.\n\nPublished, on other spaces and machines: GPU-hours 6.77x less and 3.53x sooner "
        "for several studies (Hippo); 5.73x and 6.6x less, 4.13x sooner (stage-based tuning).\n\n"
        f"## One after another in a store\n\n{markdown(told)}\n\n"
        "Live studies of the same function, each after those above it.\n\n"
        "## A generator that begins with another study's results\n\n"
        f"Trials until the loss is 0.001, `tpe`, median of {len(warm)} seeds: {cold:g} cold, "
        f"{hot:g} after 30 trials of another study (`warm_start`); warm was sooner in "
        f"{sum(each['warm'] < each['cold'] for each in warm)}, later in "
        f"{sum(each['warm'] > each['cold'] for each in warm)}.\n\n{provenance(known)}\n"
    )


if __name__ == "__main__":
    main()
