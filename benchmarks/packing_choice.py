"""Compare `fluid`, which chooses how many trials share a slot, with every fixed packing.

`python -m benchmarks.packing_choice` simulates tuners whose starts cost something, with trials that
slow each other down little, much and very much, and runs one study live. It writes
`benchmarks/results/packing-choice.md` and `.json`, and takes about half an hour on one core.
`--seeds 1` takes ten. `--live` runs the live study alone and prints it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from statistics import fmean
from typing import Any, NamedTuple

import paceline as pl
from benchmarks.page import collect_facts, format_provenance, format_table, publish
from paceline.api.simulation import Simulation
from paceline.core.decisions import Launch, Resize
from paceline.core.events import CapacityChanged, Ended

COMMAND = "python -m benchmarks.packing_choice"
SLOTS, PACK, SEEDS = 8, 4, 3
# Without simulated crashes: a trial that is started four times has the longest way, packed or not.
SOURCE = "families:crash=0"
TUNERS = {
    "fifo": (1.0, 5.0, 20.0),
    "asha": (1.0, 5.0, 20.0),
    "asha:drain=true": (1.0, 5.0, 20.0),
    "hypersched": (1.0, 5.0),
    "hypersched:drain=true": (1.0, 5.0),
    "sha": (1.0, 5.0, 20.0),
    "hyperband": (1.0, 5.0, 20.0),
    "pop": (1.0, 5.0),
}
# k trials on a slot take 1 + x (k - 1) times as long: together they train 3.1, 1.08 and 0.57 times
# as much as one alone.
INTERFERENCE = (0.1, 0.9, 2.0)
# The live study: trials of ten epochs that take turns with nothing but the clock.
LIVE_TRIALS, LIVE_EPOCHS, LIVE_START_S, LIVE_EPOCH_S = 24, 10, 1.0, 0.2


class Run(NamedTuple):
    """The makespan of one run, and what its allocator did."""

    makespan_s: float
    shared: int
    whole: int
    resizes: int


def simulate(policy: str, start_s: float, interference: float, options: dict[str, Any]) -> Run:
    """Simulate 100 trials of a tuner."""
    steps: list[Any] = []
    result = Simulation(
        source=SOURCE,
        policy=policy,
        slots=SLOTS,
        setup_s=start_s,
        interference=interference,
        **options,
    ).run(remember=steps.extend)
    return summarize(result.makespan_s, steps)


def summarize(makespan_s: float, steps: list[Any]) -> Run:
    """Count launches on shared and on whole slots, and resizes."""
    decisions = [decision for step in steps for decision in step.decisions]
    widths = [each.width for each in decisions if isinstance(each, Launch)]
    return Run(
        makespan_s,
        sum(width < 1 for width in widths),
        sum(width >= 1 for width in widths),
        sum(isinstance(each, Resize) for each in decisions),
    )


def train(trial: Any) -> None:  # noqa: ANN401
    """Wait for a start, then report epochs; trials that share a slot do not slow each other."""
    time.sleep(LIVE_START_S)
    for epoch in trial.epochs():
        time.sleep(LIVE_EPOCH_S)
        trial.report(loss=1.0 / (1 + epoch + trial["x"]))


def run_live(**options: Any) -> Run:  # noqa: ANN401
    """Train on two slots; the time runs from the first slot to the end of the last trial."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = pl.tune(
            train,
            space={"x": pl.uniform(0.0, 1.0)},
            metric="loss",
            mode="min",
            epochs=LIVE_EPOCHS,
            trials=LIVE_TRIALS,
            policy="fifo",
            generator="random",
            slots="cpu:2",
            progress=False,
            **options,
        )
    events = [step.event for step in result.log]
    begun = next(event.at for event in events if isinstance(event, CapacityChanged))
    ended = max(event.at for event in events if isinstance(event, Ended))
    return summarize(ended - begun, list(result.log))


def measure(seeds: int) -> list[dict[str, Any]]:
    """Run everything; print each row as it is known."""
    rows = []
    for interference in INTERFERENCE:
        for policy, starts in TUNERS.items():
            for start_s in starts:
                cells = {
                    name: [
                        simulate(policy, start_s, interference, {**options, "seed": seed})
                        for seed in range(seeds)
                    ]
                    for name, options in list_options().items()
                }
                row = {"interference": interference, "tuner": policy, "start_s": start_s}
                rows.append({**row, **{name: average(runs) for name, runs in cells.items()}})
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def measure_live() -> dict[str, Any]:
    """Run the live study with every allocator."""
    found = {name: run_live(**options)._asdict() for name, options in list_options().items()}
    return {"interference": 0.0, "tuner": "fifo, live", "start_s": LIVE_START_S, **found}


def list_options() -> dict[str, dict[str, Any]]:
    """Return the fixed packings, and the two allocators that choose."""
    fixed = {f"pack {pack}": {"pack": pack} for pack in (1, 2, PACK)}
    chosen = {name: {"allocator": name, "pack": PACK} for name in ("fluid_static", "fluid")}
    return {**fixed, **chosen}


def average(runs: list[Run]) -> dict[str, float]:
    """Return the means of all fields."""
    return {name: fmean(getattr(run, name) for run in runs) for name in Run._fields}


def make_table(rows: list[dict[str, Any]]) -> str:
    """Return makespans, and those of the allocators as multiples of the best fixed packing."""
    fixed = [name for name in rows[0] if name.startswith("pack ")]
    lines = [["tuner", "a start", *fixed, "fluid_static", "fluid", "shared : whole", "resizes"]]
    for row in rows:
        best = min(row[name]["makespan_s"] for name in fixed)
        chosen = row["fluid"]
        cells = [f"{row[name]['makespan_s']:.4g} s" for name in fixed]
        for name in ("fluid_static", "fluid"):
            seconds = row[name]["makespan_s"]
            cells.append(f"{seconds:.4g} s ({seconds / best:.2f})")
        ratio = f"{chosen['shared']:.0f} : {chosen['whole']:.0f}"
        lines.append(
            [row["tuner"], f"{row['start_s']:g} s", *cells, ratio, f"{chosen['resizes']:.0f}"]
        )
    return format_table(lines)


def make_page(rows: list[dict[str, Any]], live: dict[str, Any], seeds: int) -> str:
    """Return the page without its provenance."""
    parts = [
        f"# How many trials share a slot\n\nMakespan of 100 trials of `{SOURCE}` on {SLOTS} slots, "
        f"means over {seeds} orders, if 1, 2 or {PACK} trials always share a slot, and if "
        f"`fluid_static` or `fluid` choose with `pack={PACK}`; in brackets, as a multiple of the "
        "best fixed packing. `fluid_static` goes by its prior, 1.6 times as much training by "
        f"{PACK} trials on a slot as by one. `fluid` starts with it and measures. The last columns "
        "count its launches on shared and on whole slots, and its resizes."
    ]
    for interference in INTERFERENCE:
        some = [row for row in rows if row["interference"] == interference]
        total = PACK / (1.0 + interference * (PACK - 1))
        title = (
            f"## Interference {interference:g}: {PACK} trials on a slot train {total:.2g} times as "
            "much as one"
        )
        parts += [title, make_table(some)]
    parts += [
        f"## Live: {LIVE_TRIALS} trials of {LIVE_EPOCHS * LIVE_EPOCH_S:g} s on two slots, without "
        "interference",
        make_table([live]),
    ]
    return "\n\n".join(parts)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="orders of each simulated row")
    parser.add_argument("--live", action="store_true", help="only the live study; print it")
    given = parser.parse_args()
    if given.live:
        print(make_table([measure_live()]))
        return
    started = time.perf_counter()
    live = measure_live()
    rows = measure(given.seeds)
    known = collect_facts(" ".join([COMMAND, *sys.argv[1:]]), time.perf_counter() - started)
    text = make_page(rows, live, given.seeds) + f"\n\n{format_provenance(known)}\n"
    publish("packing-choice", text, known, rows=[*rows, live])


if __name__ == "__main__":
    main()
