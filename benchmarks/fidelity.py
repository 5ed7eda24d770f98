"""Compare the simulator with a live study, simulated from the trace that the study exports.

`make bench-fidelity` runs an ASHA study of real processes on two slots several times, exports and
simulates its trace, and compares when the study ended and when it reached its target. The page is
`benchmarks/results/fidelity.md`, with its figures in `.json`. The simulation gets the policy, the
slots, the order of the trials and how often workers save; the study measured the costs itself.
Times count from the moment the slots exist: a simulation has no driver to start.
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
from benchmarks.page import collect_facts, format_provenance, format_table, publish
from paceline.api.stored import export_trace
from paceline.core.events import CapacityChanged, Reported

COMMAND = "make bench-fidelity"
WANTED = 0.10
REPEATS, TRIALS, EPOCHS, SLOTS = 5, 24, 9, 2
# One to three trials of each study reach it, in their last epochs.
TARGET = 0.2
# The local engine saves once per this many times the cost of a save.
SAVE_SHARE = 20
SPACE = {
    "floor": pl.uniform(0.05, 0.6),
    "speed": pl.uniform(0.3, 1.2),
    "epoch_s": pl.uniform(0.05, 0.15),
}


def train(trial: Any) -> None:  # noqa: ANN401
    """Use CPU time as the config says, and report a power law."""
    kept = trial.keep(weights=bytearray(200_000))
    for epoch in trial.epochs():
        until = time.process_time() + trial["epoch_s"]
        while time.process_time() < until:
            kept[epoch] = sum(range(5000)) % 256
        floor = trial["floor"]
        trial.report(loss=floor + (1.0 - floor) * (epoch + 2) ** -trial["speed"])


def compare(seed: int, trials: int = TRIALS, epochs: int = EPOCHS) -> dict[str, float | None]:
    """Run a study, export and simulate it; return the seconds of both."""
    result = pl.tune(
        train,
        space=SPACE,
        metric="loss",
        mode="min",
        epochs=epochs,
        policy="asha:drain=true",
        generator="random",
        trials=trials,
        slots=f"cpu:{SLOTS}",
        seed=seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.jsonl.gz"
        export_trace(result.log, path)
        trace = pl.read_trace(path)
    simulation = pl.Simulation(
        source="life",
        policy="asha:drain=true",
        slots=SLOTS,
        order="file",
        save_every_s=SAVE_SHARE * (trace.header.save_s or 0.0),
    )
    whole = simulation.run(trace=trace)
    sought = replace(simulation, target=TARGET).run(trace=trace)
    return {
        "life_makespan_s": result.clock_s - _start_time(result),
        "simulated_makespan_s": whole.makespan_s,
        "life_target_s": _time_to_target(result),
        "simulated_target_s": sought.time_to_target_s,
        "save_s": trace.header.save_s,
        "restore_s": trace.header.restore_s,
        "setup_s": median(run.setup_s or 0.0 for run in trace.runs),
        "trials": len(result.trials),
        "reports": sum(len(trial.values) for trial in result.trials),
        "simulated_reports": whole.reports,
    }


def relative_error(figures: dict[str, float | None], what: str) -> float | None:
    """Return the relative error of the simulated time; None if either time is missing."""
    life, simulated = figures[f"life_{what}_s"], figures[f"simulated_{what}_s"]
    return None if life is None or simulated is None else simulated / life - 1.0


def _time_to_target(result: pl.Result) -> float | None:
    for step in result.log:
        event = step.event
        if isinstance(event, Reported) and (event.metrics["loss"] or 1.0) <= TARGET:
            return event.at - _start_time(result)
    return None


def _start_time(result: pl.Result) -> float:
    return next(step.event.at for step in result.log if isinstance(step.event, CapacityChanged))


def main() -> None:
    """Run the requested number of comparisons, print and write the page."""
    started = time.perf_counter()
    lines = [["repeat", "makespan", "simulated", "off", "to target", "simulated", "off"]]
    rows = []
    for seed in range(REPEATS):
        figures = compare(seed)
        rows.append(figures)
        lines.append(
            [str(seed + 1), *_format_times(figures, "makespan"), *_format_times(figures, "target")]
        )
        print(" ".join(lines[-1]), file=sys.stderr)
    offs = [relative_error(row, what) for row in rows for what in ("makespan", "target")]
    # If only one of them reached the target, the error is undefined.
    worst = max(math.inf if each is None else abs(each) for each in offs)
    known = collect_facts(COMMAND, time.perf_counter() - started)
    page = (
        f"# The simulator compared with live studies\n\n{format_table(lines)}\n\n"
        f"An ASHA study of {TRIALS} trials of up to {EPOCHS} epochs, each 50 to 150 ms of CPU "
        f"time, on {SLOTS} slots, compared with a simulation of its own trace. Times count from "
        f"the moment the slots exist. Largest error {worst:.1%}; wanted: at most {WANTED:.0%} "
        "(HyperDrive's simulator: 13 %). Costs measured by the studies (medians): a start "
        f"{_format_ms(rows, 'setup_s')}, a save {_format_ms(rows, 'save_s')}, a restore "
        f"{_format_ms(rows, 'restore_s')} more than a start.\n\n{format_provenance(known)}\n"
    )
    publish("fidelity", page, known, wanted=WANTED, worst=worst, rows=rows)


def _format_times(figures: dict[str, float | None], what: str) -> list[str]:
    life, simulated = figures[f"life_{what}_s"], figures[f"simulated_{what}_s"]
    apart = relative_error(figures, what)
    if life is None or simulated is None or apart is None:
        return ["never" if life is None else f"{life:.2f} s", "never", ""]
    return [f"{life:.2f} s", f"{simulated:.2f} s", f"{apart:+.1%}"]


def _format_ms(rows: list[dict[str, float | None]], what: str) -> str:
    return f"{1000 * median(row[what] or 0.0 for row in rows):.1f} ms"


if __name__ == "__main__":
    main()
