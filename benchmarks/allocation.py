"""What allocators are worth: makespan and utilisation of tuners on each, simulated.

`python -m benchmarks.allocation`, `make bench-allocation`. Writes results/allocation.md, .json and
a picture, results/allocation.svg: slots in use, and slots per trial, over time.

Recorded traces are found by PACELINE_TRACES; the shapes of Fluid's three workloads are written here
by the laws stated in SHAPES, so that they need none.
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

from benchmarks.allocation_picture import Past, draw
from benchmarks.page import RESULTS, ROOT, facts, markdown, provenance, publish
from paceline.api.simulation import Simulation
from paceline.api.sources import trace_of
from paceline.core.rng import stream
from paceline.core.speedup import parse_speedup
from paceline.engines.sim.traces import Header, Run, Trace, write_trace
from paceline.plan.settings import canonical, key

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
# What BOHB's generator can propose for: a trace answers only what was recorded.
SYNTHETIC = "families:epochs=81"
ALLOCATORS = ("fixed", "fluid_static", "fluid", "uniform")
RECORDED = (
    "cifar10_cnn14",
    "nasbench_nlp_wikitext2",
    "mnist_cnn_tfhpo",
    "deepobs_tolstoi_char_rnn",
    "algoperf_ogbg_jax",
)


class Shape(NamedTuple):
    """Trials whose epochs take between these seconds, evenly in their logarithm."""

    shortest_s: float
    longest_s: float
    # As many as the brackets of hyperband take.
    trials: int = 143
    epochs: int = 81


# Fluid tunes a convolutional network whose layers vary, a recurrent one whose kind and sizes vary
# much more, and a GAN of one size. Its slides give no times: these ratios are ours.
SHAPES = {
    "cnn": Shape(10.0, 30.0),
    "rnn": Shape(10.0, 80.0),
    "gan": Shape(25.0, 30.0),
}
# Starting a process, restoring and saving, for the shapes; recorded traces know their own starts.
START_S, SAVE_S = 5.0, 1.0


class Outcome(NamedTuple):
    """One run: how long, how busy, and the shortest it could have been."""

    makespan_s: float
    busy: float
    bound_s: float
    widest: float


class Job(NamedTuple):
    """One run to make."""

    source: str
    tuner: str
    allocator: str
    pack: int
    seed: int


def simulation(job: Job, *, shape: bool) -> Simulation:
    """Return the run of a job."""
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
        pack=1 if fixed else job.pack,
        interference=0.3 if job.pack > 1 else 0.0,
        setup_s=START_S if shape else None,
        save_s=SAVE_S if shape else 0.0,
        restore_s=SAVE_S if shape else 0.0,
    )


def play(job: Job) -> Outcome:
    """Run a job."""
    asked = simulation(job, shape=Path(job.source).parent != TRACES)
    trace = trace_of(job.source)
    seen: list[StudyState] = []
    steps: list[Step] = []
    result = asked.run(trace=trace, watch=lambda state: seen.append(state), remember=steps.extend)
    widths = [each.width for step in steps for each in step.decisions if hasattr(each, "width")]
    return Outcome(
        result.makespan_s,
        result.busy_fraction,
        bound(seen[-1], trace, job.pack, asked),
        max(widths),
    )


def bound(state: StudyState, trace: Trace | None, pack: int, asked: Simulation) -> float:
    """Return the strip-packing bound for what was trained; no number where that is not recorded.

    All of it on all slots, or the longest trial alone on as many as one may have. Starts and
    saves are not in it.
    """
    if trace is None:
        return math.nan
    runs = {key(run.config): run for run in trace.runs}
    works = [math.fsum(runs[key(trial.config)].seconds[: trial.epoch]) for trial in state.trials]
    speed = parse_speedup(SPEEDUP, asked.interference)
    packed = pack * speed.shared(pack) if pack > 1 else 1.0
    return max(math.fsum(works) / (SLOTS * max(1.0, packed)), max(works) / speed.of(SLOTS))


def shaped(name: str, shape: Shape, folder: Path) -> str:
    """Write a trace of a shape and return where it is."""
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
        config = canonical({"number": number})
        runs.append(Run(number, config, array("d", values), array("d", [seconds] * shape.epochs)))
    header = Header(paceline_trace=1, name=name, metric="loss", mode="min", max_epochs=shape.epochs)
    path = folder / f"{name}.jsonl.gz"
    write_trace(path, header, runs)
    return str(path)


def main() -> None:
    """Run, print and write."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        sources = {name: shaped(name, shape, Path(folder)) for name, shape in SHAPES.items()}
        recorded = {name: TRACES / f"{name}.jsonl.gz" for name in RECORDED}
        sources |= {name: str(path) for name, path in recorded.items() if path.exists()}
        sources["families"] = SYNTHETIC
        jobs = [
            Job(source, tuner, allocator, pack, seed)
            for name, source in sources.items()
            for tuner, allocator, pack, seed in product(TUNERS, ALLOCATORS, (1, 2), range(SEEDS))
            # Recorded runs were not recorded packed: what packing does to them is not known.
            if (pack == 1 or name in SHAPES) and (tuner == "bohb") == (name == "families")
        ]
        with ProcessPoolExecutor() as pool:
            found = dict(zip(jobs, pool.map(play, jobs, chunksize=4), strict=True))
        picture = draw(
            {
                allocator: past(Job(sources["rnn"], "sha", allocator, 1, 0))
                for allocator in ("fixed", "fluid")
            },
            SLOTS,
        )
        names = {source: name for name, source in sources.items()}
    known = facts(" ".join([COMMAND, *sys.argv[1:]]), time.perf_counter() - started)
    text = page(found, names) + f"\n\n{provenance(known)}\n"
    (RESULTS / "allocation.svg").write_text(picture, encoding="utf-8")
    rows = [
        {**job._replace(source=names[job.source])._asdict(), **out._asdict()}
        for job, out in found.items()
    ]
    publish("allocation", text, known, rows=rows)


def past(job: Job) -> Past:
    """Return who held how many slots, and when, in one run."""
    steps: list[Step] = []
    simulation(job, shape=True).run(remember=steps.extend)
    return Past(steps)


def page(found: Mapping[Job, Outcome], names: Mapping[str, str]) -> str:
    """Return the tables."""
    speeds = SPEEDUP.removeprefix("table:")
    parts = [
        f"# Allocators\n\nMakespan of a tuner's trials on {SLOTS} slots and the share of slot time "
        f"in use, means over {SEEDS} orders; how much sooner (or, with a minus, later) than with "
        "`fixed`, which runs every trial on one slot, first come first served; and how far above "
        "the strip-packing bound for the same trials `fixed` and `fluid` end. The bound knows all "
        "trials beforehand and moves them at no cost. Up to 8 slots a trial, at the speeds of "
        f"ResNet50 on V100s ({speeds}); the allocators are not told them: they start from their "
        f"prior and measure. Starts cost {START_S:g} s, saves and restores {SAVE_S:g} s in the "
        "shapes `cnn`, `rnn` and `gan`, whose epochs take "
        + ", ".join(f"{each.shortest_s:g} to {each.longest_s:g} s" for each in SHAPES.values())
        + "; in recorded traces what was recorded. `bohb` is hyperband on what TPE proposes, on "
        "synthetic curves. One order in pictures:\n\n"
        "![slots in use, and slots per trial](allocation.svg)"
    ]
    for pack, title in (
        (1, "## One trial a slot, or several slots a trial"),
        (2, "## And up to two trials a slot (each 1.3 times as slow beside another)"),
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
                lines.append([names[source], tuner, *row(cells)])
        parts += [title, markdown(lines)]
    return "\n\n".join(parts)


def row(cells: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """Return a row's figures."""

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
