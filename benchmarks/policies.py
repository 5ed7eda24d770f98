"""What a report costs under each policy that does not forecast, as studies grow.

`make bench-policies` prints the figures and writes `benchmarks/results/policies.md` and `.json`.
The whole simulator is timed, in CPU seconds of a process of its own: the policy is only a part.
"""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

from benchmarks.page import ROOT, facts, markdown, provenance, publish, spread

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
    from benchmarks.table import numbers, trace
    from paceline.api.simulation import Simulation

    table = trace(numbers(trials, EPOCHS))
    # HyperSched plans for a deadline: a quarter of the time that training everything would take.
    whole_s = trials * EPOCHS * EPOCH_S / SLOTS
    deadline_s = whole_s / 4 if policy == "hypersched" else None
    simulation = Simulation(source="table", policy=policy, slots=SLOTS, deadline_s=deadline_s)
    started = time.process_time()
    result = simulation.run(trace=table)
    return result.reports / (time.process_time() - started)


def main() -> None:
    """Measure every policy at every size, print and write."""
    started = time.perf_counter()
    rows = []
    for policy in POLICIES:
        found = {size: [_apart(policy, size) for _ in range(REPEATS[size])] for size in SIZES}
        rows.append({"policy": policy, "reports_per_cpu_s": found})
        print(f"{policy}: {[_said(found[size]) for size in SIZES]}", file=sys.stderr)
    known = facts(COMMAND, time.perf_counter() - started)
    lines = [["policy", *(f"{size:,} trials" for size in SIZES)]]
    for row in rows:
        by_size = row["reports_per_cpu_s"]
        lines.append([f"`{row['policy']}`", *(_said(by_size[size]) for size in SIZES)])  # type: ignore[index]
    page = (
        "# What a report costs under each policy\n\n"
        f"Reports per CPU second of the whole simulator on {SLOTS} slots, {EPOCHS} epochs a trial: "
        f"median (least to most).\nWanted: {WANTED:,} at {SIZES[-1]:,} trials. Where trials are "
        "stopped early there are more starts for each report, and so fewer reports a second.\n\n"
        f"{markdown(lines)}\n\n{provenance(known)}\n"
    )
    publish("policies", page, known, rows=rows)


def _apart(policy: str, trials: int) -> float:
    """Measure in a process of its own, so that none warms or burdens another."""
    code = f"from benchmarks.policies import measure; print(measure({policy!r}, {trials}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True
    )
    return float(done.stdout.splitlines()[-1])


def _said(found: list[float]) -> str:
    return f"{median(found):,.0f}" + (f" ({spread(found)})" if len(found) > 1 else "")


if __name__ == "__main__":
    main()
