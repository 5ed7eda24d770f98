"""The simulator against life: a study trains here, and is simulated from the trace it exports.

`make bench-life` runs an ASHA study of real processes on two slots several times, lets each export
its own trace, simulates that, and compares when the study ended and when it reached its target:
printed, and in `benchmarks/results/life.md` and `.json`. The simulation is told the policy, the
slots, the order of the trials and how often workers save; costs are those that the study measured
of itself. Times count from when the slots are there: a simulation has no driver to start.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from msgspec.structs import replace

import paceline as pl
from benchmarks.page import facts, markdown, provenance, publish
from paceline.api.stored import export
from paceline.core.events import CapacityChanged, Reported

COMMAND = "make bench-life"
WANTED = 0.10
REPEATS, TRIALS, EPOCHS, SLOTS = 5, 24, 9, 2
# Of each study's trials, one to three get there, in their last epochs.
TARGET = 0.2
# As often as the local engine saves: so many times the cost of a save.
SAVE_SHARE = 20
SPACE = {
    "floor": pl.uniform(0.05, 0.6),
    "speed": pl.uniform(0.3, 1.2),
    "epoch_s": pl.uniform(0.05, 0.15),
}


def train(trial: Any) -> None:  # noqa: ANN401
    """Burn a core for as long as the config says, and descend along a power law."""
    kept = trial.keep(weights=bytearray(200_000))
    for epoch in trial.epochs():
        until = time.process_time() + trial["epoch_s"]
        while time.process_time() < until:
            kept[epoch] = sum(range(5000)) % 256
        floor = trial["floor"]
        trial.report(loss=floor + (1.0 - floor) * (epoch + 2) ** -trial["speed"])


def compared(seed: int, trials: int = TRIALS, epochs: int = EPOCHS) -> dict[str, float | None]:
    """Live, export, simulate; return the seconds of both."""
    result = pl.tune(
        train,
        space=SPACE,
        metric="loss",
        mode="min",
        epochs=epochs,
        policy="asha",
        generator="random",
        trials=trials,
        slots=f"cpu:{SLOTS}",
        seed=seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "life.jsonl.gz"
        export(result.log, path)
        trace = pl.read_trace(path)
    simulation = pl.Simulation(
        source="life",
        policy="asha",
        slots=SLOTS,
        order="file",
        save_every_s=SAVE_SHARE * (trace.header.save_s or 0.0),
    )
    whole = simulation.run(trace=trace)
    sought = replace(simulation, target=TARGET).run(trace=trace)
    return {
        "life_makespan_s": result.clock_s - _began(result),
        "simulated_makespan_s": whole.makespan_s,
        "life_target_s": _reached(result),
        "simulated_target_s": sought.time_to_target_s,
        "save_s": trace.header.save_s,
        "restore_s": trace.header.restore_s,
        "setup_s": median(run.setup_s or 0.0 for run in trace.runs),
        "trials": len(result.trials),
        "reports": sum(len(trial.values) for trial in result.trials),
        "simulated_reports": whole.reports,
    }


def off(figures: dict[str, float | None], what: str) -> float | None:
    """Return by how much of life's time the simulation is off; None where either has none."""
    life, simulated = figures[f"life_{what}_s"], figures[f"simulated_{what}_s"]
    return None if life is None or simulated is None else simulated / life - 1.0


def _reached(result: pl.Result) -> float | None:
    for step in result.log:
        event = step.event
        if isinstance(event, Reported) and (event.metrics["loss"] or 1.0) <= TARGET:
            return event.at - _began(result)
    return None


def _began(result: pl.Result) -> float:
    return next(step.event.at for step in result.log if isinstance(step.event, CapacityChanged))


def main() -> None:
    """Compare as often as is asked for, print and write."""
    started = time.perf_counter()
    lines = [["repeat", "makespan", "simulated", "off", "to target", "simulated", "off"]]
    rows = []
    for seed in range(REPEATS):
        figures = compared(seed)
        rows.append(figures)
        lines.append([str(seed + 1), *_said(figures, "makespan"), *_said(figures, "target")])
        print(" ".join(lines[-1]), file=sys.stderr)
    offs = [off(row, what) for row in rows for what in ("makespan", "target")]
    # Where one got to the target and the other did not, there is no telling how far off it is.
    worst = max(math.inf if each is None else abs(each) for each in offs)
    known = facts(COMMAND, time.perf_counter() - started)
    page = (
        f"# The simulator against life\n\n{markdown(lines)}\n\n"
        f"An ASHA study of {TRIALS} trials of up to {EPOCHS} epochs, each 50 to 150 ms of CPU "
        f"time, on {SLOTS} slots, and its own trace simulated; times count from when the slots "
        f"are there. Off at most {worst:.1%}; wanted: at "
        f"most {WANTED:.0%} (HyperDrive's simulator: 13 %). Costs as measured by each study "
        f"itself: a start {_ms(rows, 'setup_s')}, a save {_ms(rows, 'save_s')}, going on from one "
        f"{_ms(rows, 'restore_s')} more than a start (medians).\n\n{provenance(known)}\n"
    )
    publish("life", page, known, wanted=WANTED, worst=worst, rows=rows)


def _said(figures: dict[str, float | None], what: str) -> list[str]:
    life, simulated = figures[f"life_{what}_s"], figures[f"simulated_{what}_s"]
    apart = off(figures, what)
    if life is None or simulated is None or apart is None:
        return ["never" if life is None else f"{life:.2f} s", "never", ""]
    return [f"{life:.2f} s", f"{simulated:.2f} s", f"{apart:+.1%}"]


def _ms(rows: list[dict[str, float | None]], what: str) -> str:
    return f"{1000 * median(row[what] or 0.0 for row in rows):.1f} ms"


if __name__ == "__main__":
    main()
