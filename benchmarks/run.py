"""Measure speed and size of Paceline itself: core, simulator, memory, store, fold, import.

`make bench` prints the figures and writes `benchmarks/results/core.md` and `.json`. Every case runs
in a separate process, several times, with the garbage collector on; the spread is shown.
"""

from __future__ import annotations

import gc
import json
import resource
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.page import (
    ROOT,
    collect_facts,
    format_provenance,
    format_range,
    format_table,
    publish,
)

if TYPE_CHECKING:
    from paceline.core.decisions import Step

COMMAND = "make bench"
WEEK_S = 7 * 24 * 3600.0


def measure_core(trials: int) -> dict[str, float]:
    """Time each `Machine.handle` of an ASHA study of this many trials on 64 slots."""
    from benchmarks.table import make_table, make_trace
    from paceline.api.simulation import Simulation
    from paceline.machine.machine import Machine

    table = make_trace(make_table(trials, 30))
    times: list[int] = []
    handle, clock = Machine.handle, time.perf_counter_ns

    def timed(machine: Machine, event: Any) -> Step:  # noqa: ANN401
        before = clock()
        step = handle(machine, event)
        times.append(clock() - before)
        return step

    Machine.handle = timed  # type: ignore[method-assign, assignment]
    Simulation(source="table", policy="asha:drain=false", slots=64).run(trace=table)
    times.sort()
    return {
        "events_per_s": 1e9 * len(times) / sum(times),
        "p99_us": times[int(0.99 * len(times))] / 1e3,
    }


def measure_simulator(slots: int, policy: str) -> dict[str, float]:
    """Simulate 20,000 configs of 100 epochs."""
    from benchmarks.table import make_table, make_trace
    from paceline.api.simulation import Simulation

    table = make_trace(make_table())
    started = time.process_time()
    result = Simulation(source="table", policy=policy, slots=slots).run(trace=table)
    return {"reports_per_cpu_s": result.reports / (time.process_time() - started)}


def measure_week() -> dict[str, float]:
    """Simulate a week of 1,000 slots with epochs of seven minutes under ASHA."""
    from benchmarks.table import make_table, make_trace
    from paceline.api.simulation import Simulation

    table = make_trace(make_table(), epoch_s=420.0)
    started = time.perf_counter()
    result = Simulation(source="table", policy="asha", slots=1000, deadline_s=WEEK_S).run(
        trace=table
    )
    return {
        "seconds": time.perf_counter() - started,
        "reports": result.reports,
        "busy_fraction": result.busy_fraction,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def measure_memory() -> dict[str, float]:
    """Measure the memory of a finished study: per trial, and per report."""
    from benchmarks.table import make_table, make_trace
    from paceline.api.simulation import Simulation

    sizes = {}
    for epochs in (1, 201):
        table = make_trace(make_table(2000, epochs))
        kept: list[Any] = []
        gc.collect()
        tracemalloc.start()
        Simulation(source="table", policy="fifo", slots=64).run(trace=table, watch=kept.append)
        state = kept[-1]
        kept.clear()
        gc.collect()
        sizes[epochs] = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        del state
    return {
        "bytes_per_trial": sizes[1] / 2000,
        "bytes_per_report": (sizes[201] - sizes[1]) / (2000 * 200),
    }


def _simulate_log(reports: int) -> list[Step]:
    from benchmarks.table import make_table, make_trace
    from paceline.api.simulation import Simulation

    steps: list[Step] = []
    table = make_trace(make_table(reports // 10, 10))
    Simulation(source="table", policy="asha:drain=true", slots=64).run(
        name="log", trace=table, remember=steps.extend
    )
    return steps


def measure_store() -> dict[str, float]:
    """Append the steps of a study durably (synchronous FULL), 100 a group, and read them back."""
    from paceline.store import open_store

    steps = _simulate_log(50_000)
    entries = sum(len(step.entries) for step in steps)
    with tempfile.TemporaryDirectory() as folder:
        kept = open_store(f"{folder}/log.db", create=True)
        started = time.perf_counter()
        for first in range(0, len(steps), 100):
            kept.append("log", steps[first : first + 100])
        written = time.perf_counter()
        read = sum(len(step.entries) for step in kept.read("log"))
        done = time.perf_counter()
        kept.close()
    return {
        "appended_per_s": entries / (written - started),
        "read_per_s": read / (done - written),
    }


def measure_fold() -> dict[str, float]:
    """Bring a study with 10,000 trials and 100,000 reports back from SQLite, parts included."""
    from paceline.api.registry import build_parts
    from paceline.core.events import Opened
    from paceline.machine.machine import Machine
    from paceline.store import open_store

    steps = _simulate_log(100_000)
    with tempfile.TemporaryDirectory() as folder:
        kept = open_store(f"{folder}/log.db", create=True, lazy=True)
        kept.append("log", steps)
        kept.close()
        del steps
        kept = open_store(f"{folder}/log.db", create=False)
        started = time.perf_counter()
        log = kept.read("log")
        first = next(log)
        assert isinstance(first.event, Opened)
        machine = Machine(build_parts(first.event.spec))
        machine.fold(first)
        for step in log:
            machine.fold(step)
        seconds = time.perf_counter() - started
        kept.close()
    return {"seconds": seconds, "reports": machine.state.reports}


def measure_imports() -> dict[str, float]:
    """Time `import paceline` and `paceline --version`, less what Python's own start takes."""
    script = Path(sys.executable).with_name("paceline")

    def least_seconds(*command: str) -> float:
        spent = []
        for _ in range(10):
            started = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            spent.append(time.perf_counter() - started)
        return min(spent)

    bare = least_seconds(sys.executable, "-c", "pass")
    return {
        "import_s": least_seconds(sys.executable, "-c", "import paceline") - bare,
        "command_s": least_seconds(str(script), "--version") - bare,
    }


# (name, call, repeats, units of its figures, target)
Case = tuple[str, str, int, dict[str, str], str]
CASES: tuple[Case, ...] = (
    *(
        (
            f"core, {trials:,} trials",
            f"measure_core({trials})",
            3 if trials < 100_000 else 2,
            {"events_per_s": "events/s", "p99_us": "µs p99"},
            "≥ 20,000/s and p99 < 1 ms at 10,000" if trials == 10_000 else "",
        )
        for trials in (100, 1_000, 10_000, 100_000)
    ),
    *(
        (
            f"simulator, {policy}, {slots:,} slots",
            f"measure_simulator({slots}, {policy!r})",
            3,
            {"reports_per_cpu_s": "reports per CPU second"},
            "≥ 50,000 at 64 and 1,000" if slots > 4 else "",
        )
        for policy in ("asha:drain=true", "asha:drain=false")
        for slots in (4, 64, 1000)
    ),
    (
        "a week of 1,000 slots, 7-minute epochs",
        "measure_week()",
        2,
        {"seconds": "s", "peak_mb": "MB at most", "reports": "reports"},
        "≤ 40 s, ≤ 2 GB",
    ),
    (
        "memory of a study",
        "measure_memory()",
        1,
        {"bytes_per_trial": "B a trial", "bytes_per_report": "B a report"},
        "≤ 2 kB a trial, 16 B a report",
    ),
    (
        "SQLite, synchronous FULL, groups of 100 steps",
        "measure_store()",
        3,
        {"appended_per_s": "entries/s appended", "read_per_s": "entries/s read"},
        "≥ 20,000/s",
    ),
    (
        "resume of 10,000 trials, 100,000 reports",
        "measure_fold()",
        3,
        {"seconds": "s", "reports": "reports"},
        "≤ 2 s",
    ),
    (
        "start",
        "measure_imports()",
        3,
        {"import_s": "s import", "command_s": "s command"},
        "≤ 0.15 s",
    ),
)


def main() -> None:
    """Run every case, print and write the page."""
    started = time.perf_counter()
    rows = []
    for name, call, repeats, units, wanted in CASES:
        found = [_measure_in_process(call) for _ in range(repeats)]
        figures = {key: [each[key] for each in found] for key in units}
        rows.append({"case": name, "wanted": wanted, "figures": figures})
        print(f"{name}: {_format_figures(figures, units)}", file=sys.stderr)
    known = collect_facts(COMMAND, time.perf_counter() - started)
    lines = [["what", "median (least to most)", "wanted"]]
    for (name, _, _, units, wanted), row in zip(CASES, rows, strict=True):
        lines.append([name, _format_figures(row["figures"], units), wanted])  # type: ignore[arg-type]
    page = f"# Paceline by itself\n\n{format_table(lines)}\n\n{format_provenance(known)}\n"
    publish("core", page, known, rows=rows)


def _measure_in_process(call: str) -> dict[str, float]:
    """Run one measurement in a separate process, so that runs do not affect each other."""
    code = f"import json; from benchmarks.run import *; print(json.dumps({call}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _format_figures(figures: dict[str, list[float]], units: dict[str, str]) -> str:
    return "; ".join(
        f"{_format_number(median(numbers))} {units[key]}"
        + (f" ({format_range(numbers, _digits(median(numbers)))})" if len(numbers) > 1 else "")
        for key, numbers in figures.items()
    )


def _digits(number: float) -> int:
    return 0 if number >= 100 else 2 if number >= 1 else 3


def _format_number(number: float) -> str:
    return f"{number:,.{_digits(number)}f}"


if __name__ == "__main__":
    main()
