"""Compare the simulator with live studies, each simulated from the trace that it exports.

`make bench-fidelity` runs studies of real processes several times, exports and simulates their
traces, and compares when each study ended and when it reached its target: one on two cores, and
five that try trials on several slots, on a share of one, with common prefixes, with a killed
worker, and all of these together. Their epochs sleep as long as the config and the slots say, so
that two cores suffice. The page is `benchmarks/results/fidelity.md`, with its figures in `.json`.

A simulation gets the options of its study and nothing else, but for the time of the killed worker:
costs and speeds are in the trace, as the study measured them. Times count from the moment the slots
exist: a simulation has no driver to start. Arguments: cases to run, by default all, and the number
of repeats, such as `elastic packed 1`; only a run of all of them writes the page.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from msgspec import Struct
from msgspec.structs import replace

import paceline as pl
from benchmarks.page import collect_facts, format_provenance, format_table, publish
from paceline.api.stored import export_trace
from paceline.core.decisions import Amend, Launch
from paceline.core.events import CapacityChanged, Cause, Ended, Reported
from paceline.engines.process.local.devices import LocalDevices

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COMMAND = "make bench-fidelity"
WANTED = 0.05
REPEATS = 5
# Two trials on one slot take this much longer each.
INTERFERENCE = 0.4
# Seconds between two looks at the neighbours on a slot.
_TICK_S = 0.01


def train_busy(trial: Any) -> None:  # noqa: ANN401
    """Use CPU time as the config says, and report a power law."""
    kept = trial.keep(weights=bytearray(200_000))
    for epoch in trial.epochs():
        until = time.process_time() + trial["epoch_s"]
        while time.process_time() < until:
            kept[epoch] = sum(range(5000)) % 256
        floor = trial["floor"]
        trial.report(loss=floor + (1.0 - floor) * (epoch + 2) ** -trial["speed"])


def train_asleep(trial: Any) -> None:  # noqa: ANN401
    """Sleep as long as an epoch takes on these slots; kill itself once where the study says so."""
    kept = trial.keep(weights=bytearray(200_000))
    with _Slot() as slot:
        for epoch in trial.epochs():
            work = trial["epoch_s"] / trial.size
            if _must_die(trial, epoch):
                slot.work(work / 2)
                os.kill(os.getpid(), signal.SIGKILL)
            slot.work(work)
            kept[epoch] = 1
            trial.report(loss=1.0 / (epoch + 2) + trial["epoch_s"])


class _Slot:
    """The slot of this process: it is slower while other processes are on it."""

    def __init__(self) -> None:
        self._place = Path(os.environ["FIDELITY_FOLDER"]) / os.environ["FIDELITY_SLOT"]
        self._sign = self._place / str(os.getpid())

    def __enter__(self) -> _Slot:
        self._place.mkdir(parents=True, exist_ok=True)
        self._sign.touch()
        return self

    def __exit__(self, *unused: object) -> None:
        self._sign.unlink(missing_ok=True)

    def work(self, seconds: float) -> None:
        now = time.monotonic()
        while seconds > 0.0:
            speed = 1.0 / (1.0 + INTERFERENCE * (self._count() - 1))
            time.sleep(min(_TICK_S, seconds / speed))
            before, now = now, time.monotonic()
            seconds -= (now - before) * speed

    def _count(self) -> int:
        others = [name for name in os.listdir(self._place) if name != self._sign.name]
        return 1 + sum(Path("/proc", name).exists() for name in others)


def _must_die(trial: Any, epoch: int) -> bool:  # noqa: ANN401
    if os.environ["FIDELITY_KILL"] != str(epoch) or trial.rank:
        return False
    done = Path(os.environ["FIDELITY_FOLDER"]) / "killed"
    if done.exists():
        return False
    done.touch()
    return True


class Case(Struct, frozen=True, kw_only=True):
    """A study, and how it is simulated."""

    name: str
    # What the page says about it.
    about: str
    space: dict[str, Any]
    epochs: int
    trials: int
    slots: int
    # Options of both the study and its simulation.
    options: dict[str, Any]
    train: Callable[[Any], None] = train_asleep
    generator: str = "random"
    target: float | None = None
    # The first worker to train this epoch is killed in the middle of it.
    kill: int | None = None


_LENGTHS = pl.uniform(0.1, 0.3)
# The length of an epoch changes twice, and trials share its values.
_STAGES = pl.piecewise(
    [
        (0, pl.choice([0.1, 0.2])),
        (10, pl.choice([0.1, 0.15, 0.2])),
        (20, pl.choice([0.1, 0.15, 0.2, 0.25])),
    ]
)
CASES = [
    Case(
        name="cores",
        about="ASHA, 24 trials of up to 9 epochs, each 50 to 150 ms of CPU time, on 2 slots",
        space={
            "floor": pl.uniform(0.05, 0.6),
            "speed": pl.uniform(0.3, 1.2),
            "epoch_s": pl.uniform(0.05, 0.15),
        },
        epochs=9,
        trials=24,
        slots=2,
        options={"policy": "asha:drain=true", "share": False},
        train=train_busy,
        # One to three trials of each study reach it, in their last epochs.
        target=0.2,
    ),
    Case(
        name="elastic",
        about="3 trials of 40 epochs on 8 slots, widths by `fluid` up to 8",
        space={"epoch_s": pl.uniform(0.3, 1.2)},
        epochs=40,
        trials=3,
        slots=8,
        options={"policy": "fifo", "allocator": "fluid", "span": 8, "share": False},
    ),
    Case(
        name="packed",
        about=f"7 trials of 20 epochs on 2 slots, two on a slot by `fluid`; beside another, an "
        f"epoch takes {1 + INTERFERENCE:g} times as long",
        space={"epoch_s": _LENGTHS},
        epochs=20,
        trials=7,
        slots=2,
        options={"policy": "fifo", "allocator": "fluid", "pack": 2, "share": False},
    ),
    Case(
        name="shared",
        about="8 trials of 30 epochs in three stages on 2 slots, common stages trained once",
        space={"epoch_s": _STAGES},
        generator="grid",
        epochs=30,
        trials=8,
        slots=2,
        options={"policy": "fifo", "share": True},
    ),
    Case(
        name="killed",
        about="6 trials of 20 epochs on 2 slots; a worker is killed in its epoch 15",
        space={"epoch_s": _LENGTHS},
        epochs=20,
        trials=6,
        slots=2,
        options={"policy": "fifo", "share": False},
        kill=15,
    ),
    Case(
        name="together",
        about="12 trials of 30 epochs in three stages on 3 slots: common stages trained once, "
        "widths from half a slot to 2 by `fluid`, a worker killed in its epoch 15",
        space={"epoch_s": _STAGES},
        generator="grid",
        epochs=30,
        trials=12,
        slots=3,
        options={"policy": "fifo", "allocator": "fluid", "span": 2, "pack": 2, "share": True},
        kill=15,
    ),
]


def compare(case: Case, seed: int) -> dict[str, Any]:
    """Run a study, export and simulate it; return the seconds of both."""
    with tempfile.TemporaryDirectory() as folder:
        with _tell_workers(Path(folder), case):
            result = pl.tune(
                case.train,
                space=case.space,
                metric="loss",
                mode="min",
                epochs=case.epochs,
                generator=case.generator,
                trials=case.trials,
                slots=f"cpu:{case.slots}",
                seed=seed,
                plan=None,
                progress=False,
                **case.options,
            )
        path = Path(folder) / "study.jsonl.gz"
        export_trace(result.log, path)
        trace = pl.read_trace(path)
    start = _start_time(result)
    simulation = pl.Simulation(
        source="life",
        slots=case.slots,
        order="file",
        kills=tuple((at - start, trial) for at, trial in _list_kills(result)),
        **case.options,
    )
    whole = simulation.run(trace=trace)
    sought = None
    if case.target is not None:
        sought = replace(simulation, target=case.target).run(trace=trace).time_to_target_s
    return {
        "case": case.name,
        "life_makespan_s": result.clock_s - start,
        "simulated_makespan_s": whole.makespan_s,
        "life_target_s": _time_to_target(result, case.target),
        "simulated_target_s": sought,
        "save_s": trace.header.save_s,
        "restore_s": trace.header.restore_s,
        "setup_s": median(run.setup_s or 0.0 for run in trace.runs),
        "speeds": [(each.width, each.speed, each.epochs) for each in trace.header.speeds],
        "kills": simulation.kills,
        "trials": len(result.trials),
        "reports": sum(len(trial.values) for trial in result.trials),
        "simulated_reports": whole.reports,
    }


@contextmanager
def _tell_workers(folder: Path, case: Case) -> Iterator[None]:
    """Tell workers their slot, where others write theirs, and who is killed."""
    inner = LocalDevices.variables
    kill = "" if case.kill is None else str(case.kill - 1)

    def variables(
        self: LocalDevices, slots: Sequence[int], width: float, rank: int
    ) -> dict[str, str]:
        return {
            **inner(self, slots, width, rank),
            "FIDELITY_FOLDER": str(folder),
            "FIDELITY_SLOT": f"slot-{slots[rank]}",
            "FIDELITY_KILL": kill,
        }

    with patch.object(LocalDevices, "variables", variables):
        yield


def relative_error(figures: dict[str, Any], what: str) -> float | None:
    """Return the relative error of the simulated time; None if either time is missing."""
    life, simulated = figures[f"life_{what}_s"], figures[f"simulated_{what}_s"]
    return None if life is None or simulated is None else float(simulated / life - 1.0)


def _list_kills(result: pl.Result) -> list[tuple[float, int]]:
    """Return when workers were killed, and the trials they trained."""
    trials: dict[int, int] = {}
    kills = []
    for step in result.log:
        event = step.event
        if isinstance(event, Ended) and event.cause in (Cause.FAILED, Cause.CROWDED):
            kills.append((event.at, trials[event.attempt]))
        for decision in step.decisions:
            if isinstance(decision, Launch | Amend):
                trials[decision.attempt] = decision.trial
    return kills


def _time_to_target(result: pl.Result, target: float | None) -> float | None:
    for step in result.log:
        event = step.event
        if target is not None and isinstance(event, Reported):
            loss = event.metrics["loss"]
            if loss is not None and loss <= target:
                return event.at - _start_time(result)
    return None


def _start_time(result: pl.Result) -> float:
    return next(step.event.at for step in result.log if isinstance(step.event, CapacityChanged))


def main(arguments: Sequence[str]) -> None:
    """Run the requested comparisons, print them, and write the page if all were run."""
    started = time.perf_counter()
    wanted = [case for case in CASES if case.name in arguments] or CASES
    repeats = next((int(each) for each in arguments if each.isdigit()), REPEATS)
    rows = []
    for case in wanted:
        for seed in range(repeats):
            rows.append(compare(case, seed))
            print(_format_row(rows[-1]), file=sys.stderr, flush=True)
    if wanted != CASES or repeats != REPEATS:
        return
    lines = [["study", "makespan", "simulated", "off, by repeat", "largest"]]
    for case in CASES:
        lines += _format_case(case, [row for row in rows if row["case"] == case.name])
    worst = max(_find_worst(row) for row in rows)
    known = collect_facts(COMMAND, time.perf_counter() - started)
    listed = "\n".join(f"* `{case.name}`: {case.about}." for case in CASES)
    page = (
        f"# The simulator compared with live studies\n\n{format_table(lines)}\n\n{listed}\n\n"
        f"Each study is run {REPEATS} times and compared with a simulation of its own trace, with "
        "the same options. Times count from the moment the slots exist; the first columns are "
        f"medians. Largest error {worst:.1%}; wanted: at most {WANTED:.0%} (HyperDrive's "
        "simulator: 13 %). Costs measured by the studies (medians): a start "
        f"{_format_ms(rows, 'setup_s')}, a save {_format_ms(rows, 'save_s')}, a restore "
        f"{_format_ms(rows, 'restore_s')} more than a start.\n\n{format_provenance(known)}\n"
    )
    publish("fidelity", page, known, wanted=WANTED, worst=worst, rows=rows)


def _find_worst(row: dict[str, Any]) -> float:
    """Return the largest error of a repeat; infinite if only one of both reached the target."""
    offs = [relative_error(row, "makespan")]
    if (row["life_target_s"], row["simulated_target_s"]) != (None, None):
        offs.append(relative_error(row, "target"))
    return max(math.inf if each is None else abs(each) for each in offs)


def _format_case(case: Case, rows: list[dict[str, Any]]) -> list[list[str]]:
    lines = []
    for what, name in (("makespan", case.name), ("target", f"{case.name}, to its target")):
        offs = [relative_error(row, what) for row in rows]
        if what == "target" and case.target is None:
            continue
        life, simulated = (
            [row[f"{kind}_{what}_s"] or math.inf for row in rows] for kind in ("life", "simulated")
        )
        shown = ", ".join("never" if off is None else f"{off:+.1%}" for off in offs)
        worst = max(math.inf if off is None else abs(off) for off in offs)
        lines.append(
            [name, f"{median(life):.2f} s", f"{median(simulated):.2f} s", shown, f"{worst:.1%}"]
        )
    return lines


def _format_row(row: dict[str, Any]) -> str:
    speeds = " ".join(f"{width:.3g}={speed:.3g}({n})" for width, speed, n in row["speeds"])
    return (
        f"{row['case']:9} life {row['life_makespan_s']:.2f} s simulated "
        f"{row['simulated_makespan_s']:.2f} s {relative_error(row, 'makespan'):+.1%} {speeds}"
    )


def _format_ms(rows: list[dict[str, Any]], what: str) -> str:
    return f"{1000 * median(row[what] or 0.0 for row in rows):.1f} ms"


if __name__ == "__main__":
    main(sys.argv[1:])
