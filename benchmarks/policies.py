"""Measure the cost of a report under each policy that does not forecast, by study size.

`make bench-policies` prints the figures and writes `benchmarks/results/policies.md` and `.json`.
The time is that of the whole simulator, in CPU seconds of a separate process; the policy is a part.
"""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

from benchmarks.page import (
    ROOT,
    collect_facts,
    format_provenance,
    format_range,
    format_table,
    publish,
)

COMMAND = "make bench-policies"
SLOTS, EPOCHS, EPOCH_S = 64, 30, 60.0
SIZES = (1_000, 10_000, 100_000)
REPEATS = {1_000: 3, 10_000: 3, 100_000: 1}
WANTED = 20_000
POLICIES = (
    "fifo",
    "median",
    "bandit",
    "asha",
    "asha_stop",
    "pasha",
    "sha",
    "hyperband",
    "hypersched",
    "plateau",
    "kill_below:value=1.5,after=5",
    "barrier",
    "asha+plateau",
)


def measure(policy: str, trials: int) -> float:
    """Return the reports per CPU second of one simulated study."""
    from benchmarks.table import make_table, make_trace
    from paceline.api.simulation import Simulation

    table = make_trace(make_table(trials, EPOCHS))
    # HyperSched plans for a deadline: a quarter of the time that training everything would take.
    whole_s = trials * EPOCHS * EPOCH_S / SLOTS
    deadline_s = whole_s / 4 if policy == "hypersched" else None
    simulation = Simulation(source="table", policy=policy, slots=SLOTS, deadline_s=deadline_s)
    started = time.process_time()
    result = simulation.run(trace=table)
    return result.reports / (time.process_time() - started)


def main() -> None:
    """Measure every policy at every size, print and write the page."""
    started = time.perf_counter()
    rows = []
    for policy in POLICIES:
        found = {
            size: [_measure_in_process(policy, size) for _ in range(REPEATS[size])]
            for size in SIZES
        }
        rows.append({"policy": policy, "reports_per_cpu_s": found})
        print(f"{policy}: {[_format_rate(found[size]) for size in SIZES]}", file=sys.stderr)
    known = collect_facts(COMMAND, time.perf_counter() - started)
    lines = [["policy", *(f"{size:,} trials" for size in SIZES)]]
    for row in rows:
        by_size = row["reports_per_cpu_s"]
        lines.append([f"`{row['policy']}`", *(_format_rate(by_size[size]) for size in SIZES)])  # type: ignore[index]
    page = (
        "# The cost of a report under each policy\n\n"
        f"Reports per CPU second of the whole simulator on {SLOTS} slots, {EPOCHS} epochs a trial: "
        f"median (least to most).\nWanted: {WANTED:,} at {SIZES[-1]:,} trials. Where trials are "
        "stopped early there are more starts per report, so fewer reports per second.\n\n"
        f"{format_table(lines)}\n\n{format_provenance(known)}\n"
    )
    publish("policies", page, known, rows=rows)


def _measure_in_process(policy: str, trials: int) -> float:
    """Measure in a separate process, so that runs do not affect each other."""
    code = f"from benchmarks.policies import measure; print(measure({policy!r}, {trials}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True
    )
    return float(done.stdout.splitlines()[-1])


def _format_rate(found: list[float]) -> str:
    return f"{median(found):,.0f}" + (f" ({format_range(found)})" if len(found) > 1 else "")


if __name__ == "__main__":
    main()
