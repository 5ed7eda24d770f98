"""Measure studies of 300 scores: what a tuner adds to a function that takes no time.

`make bench-score-only` runs Optuna and Paceline by turns, each measurement in a process of its own,
and writes `benchmarks/results/score-only.md`. The objective is a sum of five squares, so that the
whole time is the tuner's: proposals, bookkeeping, the log, and processes where trials have them.
Imports and one small study come before the clock starts.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from itertools import product
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
    from optuna.trial import Trial

COMMAND = "make bench-score-only"
TRIALS, WARM_UP, SLOTS = 300, 15, 2
REPEATS = 5

# Where the study is kept, and the sampler: what is measured on each line of the page.
LINES = {
    ("memory", "tpe"): {"inline": "≤ 1", "processes": "≤ 1.5"},
    ("memory", "random"): {},
    ("SQLite", "tpe"): {"inline": "≤ 0.2", "processes": "≤ 0.2"},
    ("SQLite", "random"): {"inline": "≤ 0.2", "processes": "≤ 0.2"},
}
TUNERS = ("optuna", "inline", "processes")

# By name: the range, and whether it is logarithmic.
RANGES = {
    "a": (-1.0, 1.0, False),
    "b": (-5.0, 5.0, False),
    "c": (1e-6, 1.0, True),
    "d": (1e-6, 1.0, True),
    "e": (0.0, 10.0, False),
}


def score(a: float, b: float, c: float, d: float, e: float) -> float:
    """Return a sum of squares whose least value is 0."""
    logs = math.log10(c / 1e-3) ** 2 + math.log10(d / 1e-2) ** 2
    return (a - 0.3) ** 2 + (b + 1.0) ** 2 + logs + (e - 5.0) ** 2


def run_optuna(sampler: str, kept: str, trials: int, folder: str) -> float:
    """Return the best score that Optuna finds."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial: Trial) -> float:
        return score(
            **{
                name: trial.suggest_float(name, low, high, log=log)
                for name, (low, high, log) in RANGES.items()
            }
        )

    samplers: dict[str, Any] = {
        "tpe": optuna.samplers.TPESampler,
        "random": optuna.samplers.RandomSampler,
    }
    storage = f"sqlite:///{folder}/optuna.db" if kept == "SQLite" else None
    study = optuna.create_study(sampler=samplers[sampler](seed=0), storage=storage)
    study.optimize(objective, n_trials=trials)
    return float(study.best_value)


def run_paceline(slots: int | str, sampler: str, kept: str, trials: int, folder: str) -> float:
    """Return the best score that Paceline finds."""
    import paceline as pl

    where: dict[str, Any] = {"files": f"{folder}/files"}
    if kept == "SQLite":
        where |= {"name": "scores", "store": f"{folder}/paceline.db"}
    space = {
        name: (pl.loguniform if log else pl.uniform)(low, high)
        for name, (low, high, log) in RANGES.items()
    }
    result = pl.tune(
        score,
        space=space,
        trials=trials,
        slots=slots,
        generator=sampler,
        progress=False,
        **where,
    )
    return float(result.best_value)


def run(tuner: str, sampler: str, kept: str, trials: int, folder: str) -> float:
    """Return the best score of one study, kept in a folder of its own."""
    own = tempfile.mkdtemp(dir=folder)
    if tuner == "optuna":
        return run_optuna(sampler, kept, trials, own)
    slots = "inline" if tuner == "inline" else SLOTS
    return run_paceline(slots, sampler, kept, trials, own)


def measure(tuner: str, sampler: str, kept: str, folder: str) -> tuple[float, float]:
    """Return the seconds of one study, and its best score."""
    run(tuner, sampler, kept, WARM_UP, folder)
    started = time.perf_counter()
    best = run(tuner, sampler, kept, TRIALS, folder)
    return time.perf_counter() - started, best


def main() -> None:
    """Measure all by turns, print and write the page."""
    started, busy = time.perf_counter(), os.getloadavg()[0]
    found: dict[str, list[tuple[float, float]]] = {}
    # Deleted at the end alone: for minutes after it has deleted many files, ext4 creates new ones
    # slowly.
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(REPEATS):
            for (kept, sampler), tuner in product(LINES, TUNERS):
                name = " ".join((kept, sampler, tuner))
                measured = _measure_in_process(tuner, sampler, kept, folder)
                found.setdefault(name, []).append(measured)
                print(name, *measured, file=sys.stderr)
    known = collect_facts(COMMAND, time.perf_counter() - started)
    known["versions"]["optuna"] = version("optuna")
    page = (
        f"# {TRIALS} scores\n\n{format_table(list(_make_lines(found)))}\n\n"
        f"Seconds of a study of {TRIALS} trials over five parameters, whose objective takes no "
        f"time: median, and least to most, of {REPEATS} runs by turns. The ratio is to Optuna's "
        "median on the same line. Optuna runs in its own process with `n_jobs=1`, and so does "
        f"`slots='inline'`; `slots={SLOTS}` forks a process for each trial. Imports and a study "
        f"of {WARM_UP} trials come before. With SQLite every trial is on the disk before the next "
        f"one starts. The machine's load before the run: {busy:.1f}{_describe_priority()}.\n\n"
        f"{format_provenance(known)}\n"
    )
    publish("score-only", page, known, seconds=found)


def _describe_priority() -> str:
    """Say whether other programs could take the processor away; empty: they could."""
    is_first = os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO)
    return "; all tuners ran with real-time priority" if is_first else ""


def _make_lines(found: dict[str, list[tuple[float, float]]]) -> Any:  # noqa: ANN401
    yield ["kept in", "sampler", "tuner", "seconds", "ratio", "wanted", "best score"]
    names = {"optuna": "Optuna", "inline": "slots='inline'", "processes": f"slots={SLOTS}"}
    for (kept, sampler), wanted in LINES.items():
        base = median(seconds for seconds, _ in found[f"{kept} {sampler} optuna"])
        for tuner in TUNERS:
            seconds, best = zip(*found[f"{kept} {sampler} {tuner}"], strict=True)
            middle = median(seconds)
            yield [
                kept,
                sampler,
                names[tuner],
                f"{middle:.2f} ({format_range(seconds, 2)})",
                f"{middle / base:.2f}",
                wanted.get(tuner, ""),
                f"{median(best):.3g}",
            ]


def _measure_in_process(tuner: str, sampler: str, kept: str, folder: str) -> tuple[float, float]:
    """Measure in a separate process: the function is pickled by value, as that of a script is."""
    command = [sys.executable, "-m", "benchmarks.score_only", tuner, sampler, kept, folder]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    seconds, best = json.loads(done.stdout.splitlines()[-1])
    return seconds, best


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(*sys.argv[1:])))
    else:
        main()
