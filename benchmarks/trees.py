"""How close stages come to the bound of any schedule, on random trees, by which path goes first.

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
from benchmarks.page import RESULTS, facts, markdown, provenance
from paceline.core.ports import Pick
from paceline.engines.sim.cluster import Cluster
from paceline.engines.sim.trace_workload import Recorded
from paceline.plan.settings import canonical, key, setting_at
from paceline.policies.fifo import Fifo
from paceline.testing.simulations import Rehearsal, brains_for, spec_for, table

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


class Shape(NamedTuple):
    """A random tree: schedules, what an epoch takes at each batch size, and how many slots."""

    configs: list[Config]
    epoch_s: dict[int, float]
    slots: int


class ByArrival(Fifo):
    """Whoever was opened first goes first, however long its path is."""

    def next(self, study: StudyView) -> Pick | None:
        if study.ready:
            return Pick(min(study.ready), 0, "it came first")
        return super().next(study)


def drawn(seed: int, *, even: bool) -> Shape:
    """Return schedules that change at random at a few epochs; all epochs alike, or not."""
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
        config = canonical({"lr": pl.piecewise(lr), "batch": pl.piecewise(size)})
        configs[key(config)] = config
    return Shape(list(configs.values()), epoch_s, rng.choice([2, 4, 8, 16]))


def seconds(shape: Shape, config: Config) -> list[float]:
    """Return what each epoch of a schedule takes."""
    return [shape.epoch_s[setting_at(config, epoch)["batch"]] for epoch in range(EPOCHS)]


def bound(shape: Shape) -> float:
    """Return the longest path, or all different epochs on all slots: none can be sooner."""
    work: dict[bytes, float] = {}
    longest = 0.0
    for config in shape.configs:
        took, path = seconds(shape, config), b""
        for epoch in range(EPOCHS):
            path += key(setting_at(config, epoch))
            work[path] = took[epoch]
        longest = max(longest, sum(took))
    return max(longest, sum(work.values()) / shape.slots)


def traced(shape: Shape) -> Trace:
    """Return a tree as a trace."""
    trace = table([[1.0] * EPOCHS] * len(shape.configs), configs=shape.configs)
    for run in trace.runs:
        run.seconds[:] = array("d", seconds(shape, run.config))
    return trace


def ratio(shape: Shape, policy: Fifo, costs: dict[str, Any]) -> float:
    """Return how many times its bound a tree takes."""
    trace = traced(shape)
    workload, cluster = Recorded(trace, share=True), Cluster(slots=shape.slots, **costs)
    brains = brains_for(trace, policy)
    played = Rehearsal(spec_for(trace, share=True), brains, workload, cluster).run()
    return played.state.now / bound(shape)


def main() -> None:
    """Simulate, print and write."""
    started = time.perf_counter()
    rows = []
    for even in (True, False):
        shapes = [drawn(seed, even=even) for seed in range(TREES)]
        for cost, costs in COSTS.items():
            for words, policy in (("arrival", ByArrival()), ("longest path", Fifo())):
                ratios = [ratio(shape, policy, costs) for shape in shapes]
                found: dict[str, Any] = {
                    "epochs": "alike" if even else "1, 2 or 4 s",
                    "costs": cost,
                }
                found |= {"first": words, "mean": mean(ratios), "worst": max(ratios)}
                rows.append(found)
    known = facts(COMMAND, time.perf_counter() - started)
    page = _page(rows, known)
    print(page)
    (RESULTS / "trees.md").write_text(page, encoding="utf-8")
    body = json.dumps({**known, "rows": rows}, indent=1)
    (RESULTS / "trees.json").write_text(body + "\n", encoding="utf-8")


def _page(rows: list[dict[str, Any]], known: dict[str, Any]) -> str:
    lines = [["epochs", "costs", "who goes first", "times the bound, mean", "worst"]]
    lines += [
        [row["epochs"], row["costs"], row["first"], f"{row['mean']:.3f}", f"{row['worst']:.3f}"]
        for row in rows
    ]
    return (
        f"# Random trees of stages\n\n{markdown(lines)}\n\n"
        f"{TREES} random trees of 20 to 80 schedules of {EPOCHS} epochs on 2 to 16 slots, first in "
        "first out with sharing. *Bound*: the longest path, or all different epochs divided by "
        "the slots, whichever is more, without any cost; no schedule is sooner, and few trees "
        "allow it, since they begin with fewer stages than slots and end with stages of unlike "
        "length. *Who goes first* among those that wait for a slot: who was opened first, or "
        f"who has the longest path to its goal, which is the machine's own order.\n\n"
        f"{provenance(known)}\n"
    )


if __name__ == "__main__":
    main()
