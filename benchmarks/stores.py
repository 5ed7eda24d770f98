"""Measure how fast each store makes a log durable: SQLite, and PostgreSQL on the same disk.

`make bench-stores` starts its own server, measures both in turn, and writes
`benchmarks/results/stores.md`. Both guarantee that appended steps survive a power cut.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.page import (
    ROOT,
    collect_facts,
    format_provenance,
    format_range,
    format_table,
    publish,
)
from benchmarks.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.api.results import Result
    from paceline.core.decisions import Step
    from paceline.machine.state import StudyState

COMMAND = "make bench-stores"
REPEATS = 3
TRIALS, EPOCHS, SLOTS = 8, 2_000, 2
SINGLE, GROUP = 2_000, 100

# Figure: its name on the page, and its target.
ROWS = {
    "reports": (f"reports a second, end to end ({TRIALS} trials of {EPOCHS:,})", "≥ 2,000"),
    "single": ("steps a second, appended one by one", ""),
    "grouped": (f"steps a second, appended {GROUP} at a time", ""),
    "read": ("steps a second, read", ""),
}


def measure(url: str) -> dict[str, float]:
    """Return the rates of the store at this URL."""
    with tempfile.TemporaryDirectory() as folder:
        steps, rate = _run_study(url, folder)
    from paceline.store import open_store

    with closing(open_store(url, create=False)) as store:
        started = time.perf_counter()
        for step in steps[:SINGLE]:
            store.append("single", [step])
        single = time.perf_counter()
        for first in range(0, len(steps), GROUP):
            store.append("grouped", steps[first : first + GROUP])
        grouped = time.perf_counter()
        read = len(list(store.read("grouped")))
        done = time.perf_counter()
    assert read == len(steps)
    return {
        "reports": rate,
        "single": SINGLE / (single - started),
        "grouped": len(steps) / (grouped - single),
        "read": read / (done - grouped),
    }


def _run_study(url: str, folder: str) -> tuple[Sequence[Step], float]:
    """Run trials that only report; return the log and the reports per second.

    Counted from the first durable report: starting is measured elsewhere.
    """
    import paceline as pl

    def train(trial: pl.Trial) -> None:
        for epoch in trial.epochs():
            trial.report(loss=trial["x"] / (epoch + 1))

    seen: list[tuple[float, int]] = []

    def watch(state: StudyState, _: Sequence[Step]) -> None:
        if state.reports and not seen:
            seen.append((time.perf_counter(), state.reports))

    study = pl.Study(
        train,
        space={"x": pl.uniform(1.0, 2.0)},
        metric="loss",
        mode="min",
        epochs=EPOCHS,
        trials=TRIALS,
        policy="fifo",
        generator="random",
        slots=f"cpu:{SLOTS}",
        name="reports",
        store=url,
        files=folder,
    )
    result: Result = study.run(watch)
    (began, before), ended = seen[0], time.perf_counter()
    return result.log, (TRIALS * EPOCHS - before) / (ended - began)


def main() -> None:
    """Measure both in turn, print and write the page."""
    started, busy = time.perf_counter(), os.getloadavg()[0]
    found: dict[str, list[dict[str, float]]] = {"SQLite": [], "PostgreSQL": []}
    with closing(PostgresServer()) as cluster, tempfile.TemporaryDirectory() as folder:
        version = cluster.run("postgres", "--version").split()[2]
        for number in range(REPEATS):
            urls = {"SQLite": f"{folder}/{number}.db", "PostgreSQL": cluster.url()}
            for name, url in urls.items():
                found[name].append(_measure_in_process(url))
                print(name, found[name][-1], file=sys.stderr)
    known = collect_facts(COMMAND, time.perf_counter() - started)
    lines = [["what", *found, "wanted"]]
    for key, (words, wanted) in ROWS.items():
        rates = [[each[key] for each in repeats] for repeats in found.values()]
        lines.append(
            [words, *(f"{median(each):,.0f} ({format_range(each)})" for each in rates), wanted]
        )
    page = (
        f"# Stores\n\n{format_table(lines)}\n\n"
        f"Median, and least to most, of {REPEATS} runs in turn; both on "
        f"the same disk, PostgreSQL {version} through a socket, fsync on in both. The "
        f"machine's load before the run: {busy:.1f}.\n\n"
        f"{format_provenance(known)}\n"
    )
    publish("stores", page, known, stores=found)


def _measure_in_process(url: str) -> dict[str, float]:
    """Measure in a separate process, so that runs do not affect each other."""
    code = "import json, sys; from benchmarks.stores import *; "
    command = [sys.executable, "-c", f"{code}print(json.dumps(measured(sys.argv[1])))", url]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


if __name__ == "__main__":
    main()
