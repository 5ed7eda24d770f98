"""Compare allocators: makespan and utilisation of tuners with each of them, simulated.

`python -m benchmarks.allocation`, `make bench-allocation`. Writes results/allocation.md, .json and
a picture, results/allocation.svg: slots in use, and slots per trial, over time.

PACELINE_TRACES names the folder of recorded traces. The three workloads of Fluid are generated here
from SHAPES, so they need no trace.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from array import array
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.allocation_picture import WidthHistory, draw_widths
from benchmarks.page import RESULTS, ROOT, collect_facts, format_provenance, format_table, publish
from paceline.api.simulation import Simulation
from paceline.api.sources import find_trace
from paceline.core.rng import stream
from paceline.core.speedup import parse_speedup
from paceline.engines.sim.traces import Trace, TraceHeader, TraceRun, write_trace
from paceline.plan.settings import canonicalize, config_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paceline.core.decisions import Step
    from paceline.machine.state import StudyState

TRACES = Path(os.environ.get("PACELINE_TRACES", ROOT.parent / "shared" / "traces"))
COMMAND = "python -m benchmarks.allocation"
SLOTS, SEEDS = 8, 5
# ResNet50 on V100s, as HyperSched measured it.
SPEEDUP = "table:1=1,2=1.87,4=3.421,8=5.598"
TUNERS = {
    "grid": "fifo",
    "sha": "sha",
    "hyperband": "hyperband",
    "asha": "asha:drain=false",
    "bohb": "hyperband",
}
# BOHB proposes configs of its own, which only a synthetic workload can train.
SYNTHETIC = "families:epochs=81"
ALLOCATORS = ("fixed", "fluid_static", "fluid", "uniform")
# `fixed` is the baseline with one slot for each trial; `uniform` gives whole slots only.
PACKING = ("fluid_static", "fluid")
RECORDED = (
    "cifar10_cnn14",
    "nasbench_nlp_wikitext2",
    "mnist_cnn_tfhpo",
    "deepobs_tolstoi_char_rnn",
    "algoperf_ogbg_jax",
)


class Shape(NamedTuple):
    """Trials whose epoch times are log-uniform between two values."""

    shortest_s: float
    longest_s: float
    # As many as hyperband's brackets need.
    trials: int = 143
    epochs: int = 81


# Fluid tunes a convolutional network with a varying number of layers, a recurrent one that varies
# much more in kind and size, and a GAN of one size. Its slides give no times: the ratios are ours.
SHAPES = {
    "cnn": Shape(10.0, 30.0),
    "rnn": Shape(10.0, 80.0),
    "gan": Shape(25.0, 30.0),
}
# Costs of starting, restoring and saving, for the shapes; recorded traces contain their own.
START_S, SAVE_S = 5.0, 1.0


class Outcome(NamedTuple):
    """Result of one run: makespan, utilisation, and the bound on the makespan."""

    makespan_s: float
    busy: float
    bound_s: float
    widest: float


class Job(NamedTuple):
    """Parameters of one run."""

    source: str
    tuner: str
    allocator: str
    pack: int
    seed: int


def make_simulation(job: Job, *, shape: bool) -> Simulation:
    """Return the simulation of a job."""
    fixed = job.allocator == "fixed"
    return Simulation(
        source=job.source,
        policy=TUNERS[job.tuner],
        generator="tpe" if job.tuner == "bohb" else None,
        allocator=job.allocator,
        slots=SLOTS,
        seed=job.seed,
        speedup=SPEEDUP,
        span=1 if fixed else SLOTS,
        pack=job.pack if job.allocator in PACKING else 1,
        interference=0.3 if job.pack > 1 else 0.0,
        setup_s=START_S if shape else None,
        save_s=SAVE_S if shape else 0.0,
        restore_s=SAVE_S if shape else 0.0,
    )


def run_job(job: Job) -> Outcome:
    """Run a job and return its outcome."""
    asked = make_simulation(job, shape=Path(job.source).parent != TRACES)
    trace = find_trace(job.source)
    seen: list[StudyState] = []
    steps: list[Step] = []
    result = asked.run(trace=trace, watch=lambda state: seen.append(state), remember=steps.extend)
    widths = [each.width for step in steps for each in step.decisions if hasattr(each, "width")]
    return Outcome(
        result.makespan_s,
        result.busy_fraction,
        compute_bound(seen[-1], trace, job.pack, asked),
        max(widths),
    )


def compute_bound(state: StudyState, trace: Trace | None, pack: int, asked: Simulation) -> float:
    """Return the strip-packing bound of the trained epochs; NaN if the trace lacks them.

    The larger of: all epochs spread over all slots, and the longest trial alone at the largest
    width. Starts and saves are not included.
    """
    if trace is None:
        return math.nan
    runs = {config_key(run.config): run for run in trace.runs}
    works = [
        math.fsum(runs[config_key(trial.config)].seconds[: trial.epoch]) for trial in state.trials
    ]
    speed = parse_speedup(SPEEDUP, asked.interference)
    packed = pack * speed.shared(pack) if pack > 1 else 1.0
    return max(math.fsum(works) / (SLOTS * max(1.0, packed)), max(works) / speed.of(SLOTS))


def write_shape_trace(name: str, shape: Shape, folder: Path) -> str:
    """Write the trace of a shape and return its path."""
    runs = []
    for number in range(shape.trials):
        rng = stream(1, name, number)
        spread = math.log(shape.longest_s / shape.shortest_s)
        seconds = shape.shortest_s * math.exp(spread * rng.random())
        end, rate = rng.random(), 0.02 + 0.3 * rng.random()
        values = [
            end + math.exp(-rate * epoch) + 0.01 * rng.random()
            for epoch in range(1, shape.epochs + 1)
        ]
        config = canonicalize({"number": number})
        runs.append(
            TraceRun(number, config, array("d", values), array("d", [seconds] * shape.epochs))
        )
    header = TraceHeader(
        paceline_trace=1, name=name, metric="loss", mode="min", max_epochs=shape.epochs
    )
    path = folder / f"{name}.jsonl.gz"
    write_trace(path, header, runs)
    return str(path)


def main() -> None:
    """Run all jobs, print and write the page."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        sources = {
            name: write_shape_trace(name, shape, Path(folder)) for name, shape in SHAPES.items()
        }
        recorded = {name: TRACES / f"{name}.jsonl.gz" for name in RECORDED}
        sources |= {name: str(path) for name, path in recorded.items() if path.exists()}
        sources["families"] = SYNTHETIC
        jobs = [
            Job(source, tuner, allocator, pack, seed)
            for name, source in sources.items()
            for tuner, allocator, pack, seed in product(TUNERS, ALLOCATORS, (1, 2), range(SEEDS))
            # Traces were recorded without packing, so its effect on their epoch times is unknown.
            if (pack == 1 or name in SHAPES) and (tuner == "bohb") == (name == "families")
        ]
        with ProcessPoolExecutor() as pool:
            found = dict(zip(jobs, pool.map(run_job, jobs, chunksize=4), strict=True))
        picture = draw_widths(
            {
                allocator: read_widths(Job(sources["rnn"], "sha", allocator, 1, 0))
                for allocator in ("fixed", "fluid")
            },
            SLOTS,
        )
        names = {source: name for name, source in sources.items()}
    known = collect_facts(" ".join([COMMAND, *sys.argv[1:]]), time.perf_counter() - started)
    text = make_page(found, names) + f"\n\n{format_provenance(known)}\n"
    (RESULTS / "allocation.svg").write_text(picture, encoding="utf-8")
    rows = [
        {**job._replace(source=names[job.source])._asdict(), **out._asdict()}
        for job, out in found.items()
    ]
    publish("allocation", text, known, rows=rows)


def read_widths(job: Job) -> WidthHistory:
    """Return the width of each trial over time in one run."""
    steps: list[Step] = []
    make_simulation(job, shape=True).run(remember=steps.extend)
    return WidthHistory(steps)


def make_page(found: Mapping[Job, Outcome], names: Mapping[str, str]) -> str:
    """Return the page with its tables."""
    speeds = SPEEDUP.removeprefix("table:")
    parts = [
        f"# Allocators\n\nMakespan of a tuner's trials on {SLOTS} slots and the share of slot time "
        f"in use, means over {SEEDS} orders. `fixed` runs every trial on one slot, first come "
        "first served; the other columns say how much sooner the trials end than with it (later, "
        "with a minus). The last columns divide the makespan by the strip-packing bound of the "
        "same trials, which knows all trials beforehand and moves them at no cost. A trial may "
        f"use up to 8 slots, at the speeds of ResNet50 on V100s ({speeds}). The allocators do not "
        "know these speeds: they start from their prior and measure. `uniform` gives whole slots, "
        "so it is the same in both tables. In the shapes `cnn`, `rnn` "
        f"and `gan` a start costs {START_S:g} s, a save or restore {SAVE_S:g} s, and epochs take "
        + ", ".join(f"{each.shortest_s:g} to {each.longest_s:g} s" for each in SHAPES.values())
        + "; recorded traces contain their own costs. `bohb` is hyperband with TPE, on synthetic "
        "curves. One order as a picture:\n\n"
        "![slots in use, and slots per trial](allocation.svg)"
    ]
    for pack, title in (
        (1, "## One or several slots per trial"),
        (2, "## Up to two trials per slot (each 1.3 times as slow beside another)"),
    ):
        lines = [["source", "tuner", "fixed", *ALLOCATORS[1:], "times the bound"]]
        for source, tuner in product(names, TUNERS):
            cells = {
                allocator: [
                    out for job, out in found.items() if job[:4] == (source, tuner, allocator, pack)
                ]
                for allocator in ALLOCATORS
            }
            if cells["fixed"]:
                lines.append([names[source], tuner, *make_row(cells)])
        parts += [title, format_table(lines)]
    return "\n\n".join(parts)


def make_row(cells: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """Return the cells of a row."""

    def mean(allocator: str, field: str) -> float:
        return fmean(getattr(out, field) for out in cells[allocator])

    plain = mean("fixed", "makespan_s")
    texts = [f"{plain:.4g} s, {mean('fixed', 'busy'):.0%} busy"]
    for allocator in ALLOCATORS[1:]:
        gain = 1 - mean(allocator, "makespan_s") / plain
        texts.append(f"{gain:.0%} sooner, {mean(allocator, 'busy'):.0%} busy")
    if math.isnan(mean("fixed", "bound_s")):
        return [*texts, ""]
    above = {
        name: fmean(out.makespan_s / out.bound_s for out in cells[name])
        for name in ("fixed", "fluid")
    }
    return [*texts, ", ".join(f"{name} {ratio:.2f}" for name, ratio in above.items())]


if __name__ == "__main__":
    main()
