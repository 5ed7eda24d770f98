"""Paceline's simulator beside Syne Tune's: one table, one ASHA, one machine, one invocation.

Makes an environment for Syne Tune (`.peers/syne-tune`), writes a synthetic table, lets both
simulate the same studies in turns, and measures how many reports each handles per CPU second. It
writes `benchmarks/results/peers-simulator.md` and `.json`. The page says what is measured and what
is switched off.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.environments import prepare_python
from benchmarks.page import collect_facts, format_provenance, format_range, format_table, publish
from benchmarks.table import CONFIGS, EPOCHS, make_table, make_trace
from paceline.api.simulation import Simulation

if TYPE_CHECKING:
    from paceline.engines.sim.traces import Trace

COMMAND = "make bench-peers"

ETA, FIRST = 3, 1
# Syne Tune polls for results at this interval of simulated time: just below the shortest epoch, so
# it polls as seldom as it can without letting a trial run past a rung.
POLL_S = 30.0

PEER = "Syne Tune"
PROMOTING = "Paceline asha:drain=false"
DRAINING = "Paceline asha, draining"
POLICIES = {
    PROMOTING: f"asha:eta={ETA},first={FIRST},drain=false",
    DRAINING: f"asha:eta={ETA},first={FIRST},drain=true",
}


@dataclass(frozen=True)
class Case:
    """A study that is simulated repeatedly, and its simulators."""

    slots: int
    trials: int
    repeats: int = 3
    simulator: tuple[str, ...] = (PEER, PROMOTING, DRAINING)


CASES = (
    # Short studies vary more.
    Case(4, 500, repeats=5),
    Case(64, 500, repeats=5),
    *(Case(slots, 1_500) for slots in (4, 64, 1_000)),
    *(Case(slots, CONFIGS, simulator=(PROMOTING,)) for slots in (4, 64, 1_000)),
)


@dataclass
class Row:
    """The figures of one simulator in one case: an entry per repeat."""

    slots: int
    trials: int
    simulator: str
    reports: list[int] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    best: list[float] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        return [reports / cpu_s for reports, cpu_s in zip(self.reports, self.cpu_s, strict=True)]

    def add(self, found: dict[str, Any]) -> None:
        """Add the figures of one repeat."""
        if found["trials"] != self.trials:
            raise SystemExit(
                f"{self.simulator} started {found['trials']} trials, not {self.trials}."
            )
        self.reports.append(found["reports"])
        self.cpu_s.append(found["cpu_s"])
        self.best.append(found["best"])


def main() -> None:
    """Measure all cases, print and write the page."""
    started = time.perf_counter()
    python = prepare_python("syne-tune")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.npz"
        table = make_table()
        np.savez(path, allow_pickle=False, **table)
        trace = make_trace(table)
        rows, versions = _measure(python, path, trace)
    _check(rows, trace)
    known = {**collect_facts(COMMAND, time.perf_counter() - started), "peer_versions": versions}
    found = [_summarize(row, rows) for row in rows]
    publish("peers-simulator", _make_page(_make_table(rows), known), known, rows=found)


def _measure(python: Path, path: Path, trace: Trace) -> tuple[list[Row], dict[str, str]]:
    """Run every case; within a repeat, the simulators take turns."""
    rows, versions = [], {}
    for case in CASES:
        mine = [Row(case.slots, case.trials, simulator) for simulator in case.simulator]
        rows += mine
        for repeat in range(case.repeats):
            for row in mine:
                if row.simulator == PEER:
                    found = _run_peer(python, path, case)
                    versions = found["versions"]
                else:
                    found = _run_ours(trace, case, POLICIES[row.simulator])
                row.add(found)
                print(
                    f"{case.slots:,} slots, {case.trials:,} trials, {repeat + 1}/{case.repeats}: "
                    f"{row.simulator}: {row.reports[-1]:,} reports, {row.cpu_s[-1]:.2f} CPU s",
                    file=sys.stderr,
                )
    return rows, versions


def _run_peer(python: Path, path: Path, case: Case) -> dict[str, Any]:
    options = {
        "table": path,
        "slots": case.slots,
        "trials": case.trials,
        "epochs": EPOCHS,
        "first": FIRST,
        "eta": ETA,
        "poll": POLL_S,
    }
    script = Path(__file__).with_name("peers_syne_tune.py")
    flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    done = subprocess.run(
        [str(python), str(script), *flags],
        # Any files it writes are deleted with the table.
        env={**os.environ, "SYNETUNE_FOLDER": str(path.parent)},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _run_ours(trace: Trace, case: Case, policy: str) -> dict[str, Any]:
    simulation = Simulation(
        source="table", policy=policy, slots=case.slots, trials=case.trials, order="file"
    )
    started = time.process_time()
    result = simulation.run(trace=trace)
    return {
        "trials": result.trials_started,
        "reports": result.reports,
        "cpu_s": time.process_time() - started,
        "best": result.best_value,
    }


def _check(rows: list[Row], trace: Trace) -> None:
    """Refuse a result whose best value is not in the table."""
    for row in rows:
        known = {value for run in trace.runs[: row.trials] for value in run.values}
        if not known.issuperset(row.best):
            raise SystemExit(
                f"{row.simulator} found {row.best}: not all of these are in the table."
            )


def _summarize(row: Row, rows: list[Row]) -> dict[str, Any]:
    rates = row.rates
    rounded = {
        "median": round(median(rates)),
        "min": round(min(rates)),
        "max": round(max(rates)),
    }
    ratio = _compute_ratios(row, rows)
    return {
        **asdict(row),
        "reports_per_cpu_s": rounded,
        "ratio": None if ratio is None else dict(zip(rounded, map(_round, ratio), strict=True)),
    }


def _compute_ratios(row: Row, rows: list[Row]) -> tuple[float, float, float] | None:
    """Return our rate divided by the peer's: of the medians, smallest, largest."""
    for peer in rows:
        if (peer.slots, peer.trials, peer.simulator) == (
            row.slots,
            row.trials,
            PEER,
        ) and peer is not row:
            ours, theirs = row.rates, peer.rates
            return (
                median(ours) / median(theirs),
                min(ours) / max(theirs),
                max(ours) / min(theirs),
            )
    return None


def _round(number: float) -> float:
    return round(number, 1 if number < 100 else None)


def _make_table(rows: list[Row]) -> str:
    """Return the figures as a Markdown table."""
    lines: list[tuple[str, ...]] = [
        ("slots", "trials", "simulator", "reports", "reports per CPU second", "times Syne Tune's")
    ]
    for row in rows:
        rates, ratio = row.rates, _compute_ratios(row, rows)
        lines.append(
            (
                f"{row.slots:,}",
                f"{row.trials:,}",
                row.simulator,
                format_range(row.reports),
                f"{median(rates):,.0f} ({format_range(rates)})",
                "" if ratio is None else "{:,} ({:,} to {:,})".format(*map(_round, ratio)),
            )
        )
    return format_table(lines)


def _make_page(table: str, known: dict[str, Any]) -> str:
    theirs = ", ".join(f"{name} {number}" for name, number in known["peer_versions"].items())
    return PAGE.format(
        table=table,
        provenance=format_provenance(known),
        theirs=theirs,
        poll=POLL_S,
        configs=CONFIGS,
        epochs=EPOCHS,
        eta=ETA,
        first=FIRST,
    )


PAGE = """\
# Simulators: Paceline and Syne Tune

Reports handled per second of CPU time, median (least to most) over the repeats. The last column
divides the medians; in brackets our slowest repeat over its fastest, and our fastest over its
slowest. Absolute figures depend on the machine; the ratio is the result.

{table}

{provenance}; in the peer's environment {theirs}

## What was run

* **One table for both**: {configs:,} synthetic configs of {epochs} epochs, epochs of 33 to 89
  seconds. A study takes the first configs in the table's order and runs to its end: no
  deadline, no limit on results, no failures, no costs of starting, saving or stopping.
* **One ASHA for both**: eta {eta}, first rung at epoch {first}, last epoch {epochs}.
  Syne Tune has the stopping form only: a trial that misses the cut ends. Paceline's is
  the promoting form of the paper: such a trial pauses, and may be resumed.
  `asha:drain=false` ends the study when nothing is left to promote: about as many reports as
  Syne Tune handles, and the fair comparison. With `drain=true` it then trains the paused
  trials to the end; most of its reports are between rungs and cheap.
* **One report** is one epoch's result handled by the scheduler, on both sides.
* **Measured**: CPU time (`time.process_time`), garbage collector on. For Syne Tune only the tuning
  loop, in a fresh process each time; for Paceline all of `Simulation.run`, including the
  construction of the simulation and an index of the whole table, about 15 ms.
* **In turns**: within each repeat first Syne Tune, then Paceline.

Switched off in Syne Tune, or replaced through its public interfaces, to measure its fastest setup:
messages (a silent `TunerLogger`, logging disabled, its closing table of all trials not
measured), storing of results and the results file (a `SimulatorCallback` that only counts),
saving of the tuner (`save_tuner=False`), simulated delays (`SimulatorConfig` of zeros),
pandas for the table (`BlackboxTabular`; a `Blackbox` with a dictionary instead), and the model
behind random search that is rebuilt for each suggestion (a queue of configs instead). It polls
for results each {poll:g} s of simulated time, which is just below the shortest epoch; its default
of 5 s is slower.

Syne Tune's cost per report grows with the trials of the study (a rung is sorted at each report that
reaches it, and each round of the loop counts over all trials) and with the slots (each stop
rebuilds the heap of all events to come). So the ratio grows with both, and the {configs:,}
trials of the last rows run with Paceline only: Syne Tune would take many minutes.
"""


if __name__ == "__main__":
    main()
