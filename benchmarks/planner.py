"""Measure the planner on the recorded traces, with networks that have not seen the row's family.

`make bench-planner` prints the figures and writes `benchmarks/results/planner.md` and `.json`. The
traces are next to the repository: PACELINE_TRACES is their folder. The networks of
`benchmarks/planner_networks` were trained like the shipped ones, each without one family of traces.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.page import ROOT, collect_facts, format_provenance, format_table, publish

POLICIES = ("planner", "asha", "hypersched", "bandit", "fifo")
SHARES = (5, 10, 25)
INTRODUCTION = """# The planner on recorded traces

Medians over {orders} orders, the same for all policies. Time to target in multiples of the fastest
single run on one slot, which is unknown beforehand; in the first table the geometric mean over 13
rows. The planner's networks have not seen the family of the row's trace. *Worst row*: times the
best of twelve policies of a reference implementation on that row. *Never*: not reached within F,
the makespan of fifo. The planner's inputs and settings were chosen by these rows."""
_NETWORKS = ROOT / "benchmarks" / "planner_networks"


class Job(NamedTuple):
    """One simulated study: a trace, a target or a deadline, a policy, an order."""

    trace: str
    slots: int
    target: float | None
    deadline_s: float | None
    policy: str
    seed: int


def find_family(trace: str) -> str:
    """Return the family of a trace; traces of one family are correlated.

    >>> find_family("algoperf_ogbg_jax"), find_family("lcbench_surrogate_3945")
    ('algoperf_ogbg', 'lcbench')
    """
    first, second = trace.split("_")[:2]
    return f"{first}_{second}" if first == "algoperf" else first


def simulate(job: Job) -> tuple[Job, float | None, float]:
    """Return the time to the target or the best value, and the CPU seconds it took."""
    import paceline as pl
    from paceline.policies.planner import planner, weights

    path = _NETWORKS / f"{find_family(job.trace)}.npz"
    networks = weights.check_networks(dict(np.load(path, allow_pickle=False)))
    setattr(planner, "load_networks", lambda: networks)  # noqa: B010 - the type checker sees a function
    trace = pl.read_trace(Path(os.environ["PACELINE_TRACES"]) / f"{job.trace}.jsonl.gz")
    order = np.random.default_rng(job.seed).permutation(len(trace.runs))
    shuffled = type(trace)(trace.header, [trace.runs[at] for at in order])
    result = pl.Simulation(
        source=job.trace,
        policy=job.policy,
        slots=job.slots,
        target=job.target,
        deadline_s=job.deadline_s,
        order="file",
        seed=job.seed,
    ).run(trace=shuffled)
    value = result.time_to_target_s if job.target is not None else result.best_value
    return job, value, result.wall_s


def read_rows() -> list[dict[str, Any]]:
    """Return the rows of the reference that have targets."""
    path = Path(os.environ["PACELINE_TRACES"]).parent / "anchors.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [row for row in rows if row["set"] == "dev" and row["slots"] in (4, 8)]


def list_jobs(rows: list[dict[str, Any]], orders: int) -> list[Job]:
    """Return all studies to simulate."""
    jobs = []
    for row in rows:
        for policy in POLICIES:
            for seed in range(orders):
                jobs += [
                    Job(row["trace"], row["slots"], float(target), None, policy, seed)
                    for target in row["targets"]
                ]
                if row["slots"] == 4:
                    jobs += [
                        Job(row["trace"], 4, None, row["deadline_s"][str(share)], policy, seed)
                        for share in SHARES
                    ]
    return jobs


def sum_up_targets(
    rows: list[dict[str, Any]], slots: int, found: dict[tuple[Any, ...], list[float | None]]
) -> tuple[list[list[str]], list[list[str]]]:
    """Return the tables of all policies, and of the planner by row."""
    ratios: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    beside: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    never = dict.fromkeys(POLICIES, 0)
    by_row = [["trace, target", *POLICIES, "planner, times the best known policy"]]
    for row in (each for each in rows if each["slots"] == slots):
        limit = row["fifo_makespan_s"]
        for target, known in row["targets"].items():
            oracle = known["oracle_s"]
            best = min(
                each["median"]
                for name, each in known["policies"].items()
                if not name.startswith("peek")
            )
            medians = {}
            for policy in POLICIES:
                times = found[(row["trace"], slots, float(target), None, policy)]
                never[policy] += sum(time is None or time > limit for time in times)
                medians[policy] = statistics.median(
                    limit if time is None else min(time, limit) for time in times
                )
                ratios[policy].append(medians[policy] / oracle)
                beside[policy].append(medians[policy] / best)
            by_row.append(
                [
                    f"{row['trace']} {target}",
                    *(f"{medians[policy] / oracle:.2f}" for policy in POLICIES),
                    f"{medians['planner'] / best:.2f}",
                ]
            )
    table = [["policy", "time to target", "worst row", "never"]]
    table += [
        [
            policy,
            f"{math.exp(statistics.mean(map(math.log, ratios[policy]))):.2f}",
            f"{max(beside[policy]):.2f}",
            str(never[policy]),
        ]
        for policy in POLICIES
    ]
    return table, by_row


def sum_up_regrets(
    rows: list[dict[str, Any]], found: dict[tuple[Any, ...], list[float | None]]
) -> list[list[str]]:
    """Return the mean regret of each policy at each deadline, on 4 slots."""
    table = [["policy", *(f"{share} %" for share in SHARES)]]
    for policy in POLICIES:
        cells = []
        for share in SHARES:
            medians = []
            for row in (each for each in rows if each["slots"] == 4):
                deadline = row["deadline_s"][str(share)]
                best, usual = row["best"], row["median_final"]
                values = found[(row["trace"], 4, None, deadline, policy)]
                medians.append(
                    statistics.median(
                        (best - (usual if value is None else value)) / (best - usual)
                        for value in values
                    )
                )
            cells.append(f"{statistics.mean(medians):.3f}")
        table.append([policy, *cells])
    return table


def main() -> None:
    """Simulate everything and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    started = time.perf_counter()
    os.environ.setdefault("PACELINE_TRACES", str(ROOT.parent / "shared" / "traces"))
    if not Path(os.environ["PACELINE_TRACES"]).is_dir():
        sys.exit("the recorded traces are missing: set PACELINE_TRACES to their folder.")
    rows = read_rows()
    jobs = list_jobs(rows, options.orders)
    found: dict[tuple[Any, ...], list[float | None]] = {}
    seconds = dict.fromkeys(POLICIES, 0.0)
    with ProcessPoolExecutor(options.jobs) as pool:
        for job, value, wall_s in pool.map(simulate, jobs, chunksize=8):
            found.setdefault(job[:-1], []).append(value)
            seconds[job.policy] += wall_s
    command = f"python -m benchmarks.planner --orders {options.orders}"
    known = collect_facts(command, time.perf_counter() - started)
    parts = [INTRODUCTION.format(orders=options.orders)]
    for slots in (4, 8):
        table, by_row = sum_up_targets(rows, slots, found)
        parts += [f"## {slots} slots", format_table(table), format_table(by_row)]
    parts += [
        "## Best value at a deadline, 4 slots, no target",
        "Mean regret at 5, 10 and 25 % of F: (best possible - found) / (best possible - median "
        "final).",
        format_table(sum_up_regrets(rows, found)),
        "Seconds of simulation: "
        + ", ".join(f"{policy} {spent:.0f}" for policy, spent in seconds.items())
        + ".",
        format_provenance(known) + "\n",
    ]
    results = [[*key, values] for key, values in found.items()]
    publish("planner", "\n\n".join(parts), known, orders=options.orders, results=results)


if __name__ == "__main__":
    main()
