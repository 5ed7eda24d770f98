"""Measure when a study with a deadline is back: wall time from the call, everything included.

`python -m benchmarks.deadline`. Each run is a program of its own, as a user would start it. What is
measured is the time around `pl.tune(…)`; for `paceline run`, from the start of the process to its
exit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.page import RESULTS, collect_facts, format_provenance, format_table, publish

COMMAND = "python -m benchmarks.deadline"

_SCRIPT = """
import sys, time
import paceline as pl
{imports}

def train(trial):
    {keep}
    for _ in trial.epochs():
        {epoch}
        trial.report(loss=trial["lr"])

{study}
if __name__ == "__main__":
    {before}
    began = time.monotonic()
    pl.tune(train, space={{"lr": pl.loguniform(1e-4, 1)}}, metric="loss", mode="min",
            deadline={deadline}{options})
    print("seconds", time.monotonic() - began)
"""
_STUDY = """
study = pl.Study(train, space={"lr": pl.loguniform(1e-4, 1)}, metric="loss", mode="min", epochs=100)
"""


class Case(NamedTuple):
    """One way to call a study with a deadline."""

    words: str
    options: str = ", epochs=100"
    imports: str = ""
    keep: str = "trial.keep(state=[0.0])"
    epoch: str = "time.sleep(0.05)"
    before: str = "pass"
    # What `deadline` is in the script.
    deadline: str = "{seconds}"
    # The arguments of `paceline run`; None: the script calls `pl.tune`.
    command: tuple[str, ...] | None = None
    # The shortest deadline that makes sense.
    least_s: float = 0.0


_LARGE = "trial.keep(state=np.zeros(6_000_000))"
CASES = {
    "default": Case("`pl.tune`, default options"),
    "torch": Case(
        "the function imports torch",
        imports="import torch",
        epoch="torch.ones(300, 300) @ torch.ones(300, 300); time.sleep(0.05)",
    ),
    "store": Case("with a store", ", epochs=100, name='study', store='sqlite:///study.db'"),
    "checkpoints": Case(
        "checkpoints of 48 MB are written all the time", imports="import numpy as np", keep=_LARGE
    ),
    "stubborn": Case(
        "the function ignores SIGTERM",
        keep="import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    ),
    # With a single slot, a trial that could not finish would not be opened.
    "inline": Case("`slots='inline'`, reports each 0.05 s", ", epochs=1000, slots='inline'"),
    "pop": Case("`policy='pop'`", ", epochs=100, policy='pop'"),
    "datetime": Case(
        "a time of day",
        imports="from datetime import datetime, timedelta",
        before="until = datetime.now() + timedelta(seconds={seconds})",
        deadline="until",
    ),
    "command": Case("`paceline run`, with report", command=()),
    "no-report": Case("`paceline run --no-report`", command=("--no-report",)),
    "ray": Case(
        "`slots='ray:cpu:2@local'`, which starts a cluster; 20 s",
        ", epochs=100, slots='ray:cpu:2@local'",
        least_s=20.0,
    ),
}


def measure(case: Case, seconds: float) -> float:
    """Run a case once; return by how many seconds it was late."""
    seconds = max(seconds, case.least_s)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.py")
        values = {
            **case._asdict(),
            "before": case.before.format(seconds=seconds),
            "deadline": case.deadline.format(seconds=seconds),
            "study": _STUDY if case.command is not None else "",
        }
        script.write_text(_SCRIPT.format(**values))
        if case.command is None:
            return _measure_script(script, folder) - seconds
        return _measure_command(script, folder, seconds, case.command) - seconds


def _measure_script(script: Path, folder: str) -> float:
    ran = subprocess.run(
        [sys.executable, str(script)], cwd=folder, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise SystemExit(f"{script} failed:\n{ran.stderr}")
    (line,) = (line for line in ran.stdout.splitlines() if line.startswith("seconds "))
    return float(line.split()[1])


def _measure_command(
    script: Path, folder: str, seconds: float, arguments: tuple[str, ...]
) -> float:
    paceline = Path(sys.executable).with_name("paceline")
    began = time.monotonic()
    ran = subprocess.run(
        [str(paceline), "run", str(script), "--deadline", f"{seconds:g}s", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    took = time.monotonic() - began
    if ran.returncode:
        raise SystemExit(f"paceline run failed:\n{ran.stdout}\n{ran.stderr}")
    return took


def format_page(rows: list[dict[str, Any]], seconds: float, facts: dict[str, Any]) -> str:
    """Return the page with its table."""
    allowed = max(0.3, 0.02 * seconds)
    lines = [["call", "seconds late, in turn", "worst", "in time", "load before"]]
    for row in rows:
        late = row["late_s"]
        kept = sum(abs(each) <= allowed for each in late)
        lines.append(
            [
                row["case"],
                ", ".join(f"{each:+.2f}" for each in late),
                f"{max(late, key=abs):+.2f}",
                f"{kept} of {len(late)}",
                f"{row['load']:.1f}",
            ]
        )
    return (
        f"# A deadline of {seconds:g} s\n\n"
        f"{format_table(lines)}\n\n"
        "Wall time from the call of `pl.tune` to its return, or from the start of `paceline run` "
        f"to its exit, minus the deadline. *In time*: within max(0.3 s, 2 %), here {allowed:g} s. "
        "*Load before*: runnable processes before the case began. Each run is a fresh program, so "
        "the import of Paceline is part of it.\n\n"
        f"{format_provenance(facts)}\n"
    )


def main() -> None:
    """Measure all cases and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10.0, help="the deadline")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--only", nargs="*", choices=list(CASES), default=list(CASES), help="the other rows stay"
    )
    given = parser.parse_args()
    began, rows = time.monotonic(), []
    for name in given.only:
        load = os.getloadavg()[0]
        late = [measure(CASES[name], given.seconds) for _ in range(given.repeats)]
        rows.append({"case": CASES[name].words, "load": load, "late_s": late})
        print(name, [round(each, 3) for each in late], flush=True)
    facts = collect_facts(COMMAND, time.monotonic() - began)
    measured = {row["case"]: row for row in [*_read_rows(given.seconds), *rows]}
    rows = [measured[case.words] for case in CASES.values() if case.words in measured]
    page = format_page(rows, given.seconds, facts)
    publish("deadline", page, facts, seconds=given.seconds, rows=rows)


def _read_rows(seconds: float) -> list[dict[str, Any]]:
    """Return what was measured before, with the same deadline."""
    path = RESULTS / "deadline.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    return list(known["rows"]) if known.get("seconds") == seconds else []


if __name__ == "__main__":
    main()
