"""How fast a log becomes durable in each store: SQLite on this disk, PostgreSQL beside it.

`make bench-stores` starts a server of its own, takes the two in turn, and writes
`benchmarks/results/stores.md`. Both promise the same: what was appended survives a power cut.
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

from benchmarks.page import ROOT, facts, markdown, provenance, publish, spread
from benchmarks.postgres import Cluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.api.results import Result
    from paceline.core.decisions import Step
    from paceline.machine.state import StudyState

COMMAND = "make bench-stores"
REPEATS = 3
TRIALS, EPOCHS, SLOTS = 8, 2_000, 2
SINGLE, GROUP = 2_000, 100

# What is measured, in the words of the page, and what is wanted of it.
ROWS = {
    "reports": (f"reports a second, end to end ({TRIALS} trials of {EPOCHS:,})", "≥ 2,000"),
    "single": ("steps a second, appended one by one", ""),
    "grouped": (f"steps a second, appended {GROUP} at a time", ""),
    "read": ("steps a second, read", ""),
}


def measured(url: str) -> dict[str, float]:
    """Return what a store at this address does a second."""
    with tempfile.TemporaryDirectory() as folder:
        steps, rate = _studied(url, folder)
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


def _studied(url: str, folder: str) -> tuple[Sequence[Step], float]:
    """Run trials that do nothing but report; return the log, and the reports a second.

    From the first that was durable to the end: starting is measured elsewhere.
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
    """Measure both in turn, print and write."""
    started, busy = time.perf_counter(), os.getloadavg()[0]
    found: dict[str, list[dict[str, float]]] = {"SQLite": [], "PostgreSQL": []}
    with closing(Cluster()) as cluster, tempfile.TemporaryDirectory() as folder:
        version = cluster.run("postgres", "--version").split()[2]
        for number in range(REPEATS):
            urls = {"SQLite": f"{folder}/{number}.db", "PostgreSQL": cluster.url()}
            for name, url in urls.items():
                found[name].append(_apart(url))
                print(name, found[name][-1], file=sys.stderr)
    known = facts(COMMAND, time.perf_counter() - started)
    lines = [["what", *found, "wanted"]]
    for key, (words, wanted) in ROWS.items():
        rates = [[each[key] for each in repeats] for repeats in found.values()]
        lines.append([words, *(f"{median(each):,.0f} ({spread(each)})" for each in rates), wanted])
    page = (
        f"# Stores\n\n{markdown(lines)}\n\nMedian, and least to most, of {REPEATS} runs in turn; "
        f"both on the same disk, PostgreSQL {version} through a socket, fsync on in both. The "
        f"machine's load before the run: {busy:.1f}.\n\n"
        f"{provenance(known)}\n"
    )
    publish("stores", page, known, stores=found)


def _apart(url: str) -> dict[str, float]:
    """Measure in a process of its own, so that none warms another."""
    code = "import json, sys; from benchmarks.stores import *; "
    command = [sys.executable, "-c", f"{code}print(json.dumps(measured(sys.argv[1])))", url]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


if __name__ == "__main__":
    main()
