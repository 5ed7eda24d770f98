"""Paceline's local engine beside Ray Tune, Optuna and Syne Tune: the same work in one run.

Makes an environment for each peer (`.peers/`), gives all of them the same tasks in turns, and
measures reports and trials per second, the cost of a pause, deadlines, start-up time and memory
per finished trial. It writes `benchmarks/results/peers-local.md` and `.json`. `--quick` runs
everything with minimal work and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Self

from benchmarks.environments import prepare_python
from benchmarks.local.cases import REPEATS, TUNERS, Case, Row, list_cases
from benchmarks.local.page import make_page, make_table, make_targets_table
from benchmarks.local.workload import TaskSpec
from benchmarks.page import ROOT, collect_facts, publish

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMAND = "make bench-local"


class Session:
    """A tuner's process, which runs one task after the other."""

    def __init__(self, name: str) -> None:
        tuner = TUNERS[name]
        python = prepare_python(tuner.environment) if tuner.environment else Path(sys.executable)
        # The peers import the common workload, and nothing else of Paceline.
        paths = [str(ROOT), *([] if tuner.environment else [str(ROOT / "src")])]
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the session
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            [str(python), "-m", f"benchmarks.local.{tuner.module}"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._noise,
            text=True,
        )

    def run(self, case: Case) -> dict[str, Any]:
        """Run a task in a folder of its own; return its figures."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            task = TaskSpec(case.task, folder, self._started, **case.work)
            print(json.dumps(task._asdict()), file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        if not answer:
            self._noise.seek(0)
            output = self._noise.read().decode(errors="replace")[-2_000:]
            raise SystemExit(f"{case.label} failed at {case.figure}:\n{output}")
        found: dict[str, Any] = json.loads(answer)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # end of input: the process exits
        self._noise.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all tuners, print and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="minimal work; write nothing")
    parser.add_argument(
        "--only", action="append", choices=list(TUNERS), help="a tuner; may be repeated"
    )
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    load = os.getloadavg()[0]
    wanted = options.only or list(TUNERS)
    for name in wanted:
        environment = TUNERS[name].environment
        if environment:
            prepare_python(environment)  # installing is not measured
    rows = [Row(case) for case in list_cases(quick=options.quick) if case.tuner in wanted]
    for repeat in range(REPEATS):
        for name in wanted:
            _run_turn(name, [row for row in rows if row.case.tuner == name], repeat)
    shown = make_table(rows)
    print("\n" + shown)
    if options.quick or options.only:
        return
    versions: dict[str, str] = {}
    for row in rows:
        versions |= row.found[0]["versions"]
    known = {
        **collect_facts(COMMAND, time.perf_counter() - started),
        "load_before": round(load, 1),
        "fsync_ms": round(_fsync_ms(), 2),
        "peer_versions": {
            name: version for name, version in versions.items() if name != "paceline"
        },
    }
    print("\n" + make_targets_table(rows))
    raw = [asdict(row.case) | {"found": [_bare(each) for each in row.found]} for row in rows]
    publish("peers-local", make_page(rows, known), known, rows=raw)


def _run_turn(name: str, rows: Sequence[Row], repeat: int) -> None:
    """Run all tasks of one tuner once."""
    due = [row for row in rows if repeat < row.case.repeats]
    sessions = [due] if TUNERS[name].session else [[row] for row in due]
    for session in filter(None, sessions):
        with Session(name) as process:
            for row in session:
                began = time.perf_counter()
                row.found.append(process.run(row.case))
                print(
                    f"{repeat + 1}/{row.case.repeats} {row.case.label}: {row.case.figure} "
                    f"{row.case.work} took {time.perf_counter() - began:.1f} s",
                    file=sys.stderr,
                )


def _bare(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != "versions"}


def _fsync_ms() -> float:
    """Return the time of one small durable write, which every log pays."""
    times = []
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(50):
            began = time.perf_counter()
            file.write(b"0" * 4096)
            file.flush()
            os.fsync(file.fileno())
            times.append(1e3 * (time.perf_counter() - began))
    return median(times)


if __name__ == "__main__":
    main()
