"""Compare stage orders on random trees with the bound of any schedule.

`python -m benchmarks.trees`. Simulated: the same on any machine.
"""

from __future__ import annotations

import json
import time
from array import array
from random import Random
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

import paceline as pl
from benchmarks.page import RESULTS, collect_facts, format_provenance, format_table
from paceline.core.ports import Pick
from paceline.engines.sim.cluster import Cluster
from paceline.engines.sim.trace_workload import TraceWorkload
from paceline.plan.settings import canonicalize, config_key, setting_at
from paceline.policies.fifo import Fifo
from paceline.testing.simulations import SimulatedStudy, make_parts, make_spec, make_table

if TYPE_CHECKING:
    from paceline.core.values import Config
    from paceline.core.views import StudyView
    from paceline.engines.sim.traces import Trace

COMMAND = "python -m benchmarks.trees"
TREES, EPOCHS = 100, 30
COSTS: dict[str, dict[str, Any]] = {
    "nothing": {"save_every_s": 0.0},
    "starts 0.5 s, saves 0.05 s": {
        "setup_s": 0.5,
        "save_s": 0.05,
        "restore_s": 0.1,
        "save_every_s": 3.0,
    },
}


class TreeShape(NamedTuple):
    """A random tree: schedules, epoch times by batch size, and number of slots."""

    configs: list[Config]
    epoch_s: dict[int, float]
    slots: int


class ByArrival(Fifo):
    """Picks the trial that was opened first, whatever the length of its path."""

    def next(self, study: StudyView) -> Pick | None:
        if study.ready:
            return Pick(min(study.ready), 0, "it came first")
        return super().next(study)


def draw_tree(seed: int, *, even: bool) -> TreeShape:
    """Return schedules that change at a few random epochs, with equal epoch times or not."""
    rng = Random(seed)
    epoch_s = {64: 1.0} if even else {32: 4.0, 64: 2.0, 128: 1.0}
    rates = [0.1, 0.03, 0.01, 0.003][: rng.randint(2, 4)]
    cuts = sorted(rng.sample(range(2, EPOCHS), rng.randint(2, 5)))
    configs: dict[bytes, Config] = {}
    for _ in range(rng.choice([20, 40, 80])):
        lr = [(0, rng.choice(rates)), *((c, rng.choice(rates)) for c in cuts if rng.random() < 0.6)]
        sizes = list(epoch_s)
        size = [(0, rng.choice(sizes))]
        size += [(c, rng.choice(sizes)) for c in cuts if rng.random() < 0.3]
        config = canonicalize({"lr": pl.piecewise(lr), "batch": pl.piecewise(size)})
        configs[config_key(config)] = config
    return TreeShape(list(configs.values()), epoch_s, rng.choice([2, 4, 8, 16]))


def epoch_seconds(shape: TreeShape, config: Config) -> list[float]:
    """Return the time of each epoch of a schedule."""
    return [shape.epoch_s[setting_at(config, epoch)["batch"]] for epoch in range(EPOCHS)]


def compute_bound(shape: TreeShape) -> float:
    """Return the longest path, or all distinct epochs divided by the slots if that is more."""
    work: dict[bytes, float] = {}
    longest = 0.0
    for config in shape.configs:
        took, path = epoch_seconds(shape, config), b""
        for epoch in range(EPOCHS):
            path += config_key(setting_at(config, epoch))
            work[path] = took[epoch]
        longest = max(longest, sum(took))
    return max(longest, sum(work.values()) / shape.slots)


def make_trace(shape: TreeShape) -> Trace:
    """Return the trace of a tree."""
    trace = make_table([[1.0] * EPOCHS] * len(shape.configs), configs=shape.configs)
    for run in trace.runs:
        run.seconds[:] = array("d", epoch_seconds(shape, run.config))
    return trace


def measure_ratio(shape: TreeShape, policy: Fifo, costs: dict[str, Any]) -> float:
    """Return the makespan of a tree divided by its bound."""
    trace = make_trace(shape)
    workload, cluster = TraceWorkload(trace, share=True), Cluster(slots=shape.slots, **costs)
    parts = make_parts(trace, policy)
    study = SimulatedStudy(make_spec(trace, share=True), parts, workload, cluster).run()
    return study.state.now / compute_bound(shape)


def main() -> None:
    """Simulate all trees, print and write the page."""
    started = time.perf_counter()
    rows = []
    for even in (True, False):
        shapes = [draw_tree(seed, even=even) for seed in range(TREES)]
        for cost, costs in COSTS.items():
            for words, policy in (("arrival", ByArrival()), ("longest path", Fifo())):
                ratios = [measure_ratio(shape, policy, costs) for shape in shapes]
                found: dict[str, Any] = {
                    "epochs": "alike" if even else "1, 2 or 4 s",
                    "costs": cost,
                }
                found |= {"first": words, "mean": mean(ratios), "worst": max(ratios)}
                rows.append(found)
    known = collect_facts(COMMAND, time.perf_counter() - started)
    page = _make_page(rows, known)
    print(page)
    (RESULTS / "trees.md").write_text(page, encoding="utf-8")
    body = json.dumps({**known, "rows": rows}, indent=1)
    (RESULTS / "trees.json").write_text(body + "\n", encoding="utf-8")


def _make_page(rows: list[dict[str, Any]], known: dict[str, Any]) -> str:
    lines = [["epochs", "costs", "order", "times the bound, mean", "worst"]]
    lines += [
        [row["epochs"], row["costs"], row["first"], f"{row['mean']:.3f}", f"{row['worst']:.3f}"]
        for row in rows
    ]
    return (
        f"# Random trees of stages\n\n{format_table(lines)}\n\n"
        f"{TREES} random trees of 20 to 80 schedules of {EPOCHS} epochs on 2 to 16 slots, first in "
        "first out with sharing. *Bound*: the longest path, or all distinct epochs divided by the "
        "slots if that is more, without any cost. No schedule is faster, and few trees allow it, "
        "since they begin with fewer stages than slots and end with stages of different length. "
        "*Order* of the ready trials: the one that was opened first, or the one with the longest "
        f"path to its goal, which is the machine's own order.\n\n"
        f"{format_provenance(known)}\n"
    )


if __name__ == "__main__":
    main()
