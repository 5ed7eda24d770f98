"""`paceline demo --simulated`: compare two policies on a bundled trace.

Knows the fixed sequence: two studies on one order of configs, then on many orders. Writes no file
and takes seconds.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import TYPE_CHECKING

import click

from paceline.analysis.story import narrate_trial
from paceline.api.comparison import Comparison, compare
from paceline.api.simulation import Simulation
from paceline.cli.progress import ProgressBar
from paceline.core.text import format_duration
from paceline.core.values import Status
from paceline.engines.sim.traces import read_trace

if TYPE_CHECKING:
    from pathlib import Path

    from paceline.api.simulation import SimResult
    from paceline.core.decisions import Step
    from paceline.engines.sim.traces import Trace
    from paceline.machine.state import StudyState

TRACE = "cifar10_cnn14.jsonl.gz"
SLOTS = 8
TARGET = 0.72
# An average order: of the first thirty seeds, eighteen favour asha less and eleven more.
SEED = 3
ORDERS = 20


def show_simulated() -> None:
    """Simulate two studies of the same trainings and print them side by side."""
    from paceline.cli import tables

    with as_file(files("paceline") / "data" / TRACE) as path:
        trace = read_trace(path)
        tables.show(
            f"{len(trace.runs)} recorded CIFAR-10 trainings of {trace.header.max_epochs} epochs, "
            f"{SLOTS} virtual GPUs, target accuracy {TARGET:g}. fifo runs every training "
            "to its end; asha lets only the best third of each rung go on. Both get the configs in "
            "the same order.",
        )
        fifo, _, _ = _simulate(trace, "fifo")
        asha, log, state = _simulate(trace, "asha")
        tables.show(
            tables.render_side_by_side([fifo, asha]),
            _describe_speedup(fifo, asha),
            _describe_orders(path),
            "",
        )
        number = _find_held_back(state)
        tables.show(f"Every decision has a reason. Trial {number} of the asha study was held back:")
        tables.show(tables.indent(narrate_trial(log, number)), "")
        for line in _suggest_commands(path):
            click.echo(line)


def _simulate(trace: Trace, policy: str) -> tuple[SimResult, list[Step], StudyState]:
    """Simulate one study; return its result, its log and its state at the end."""
    log: list[Step] = []
    states: list[StudyState] = []
    simulation = Simulation(
        source=TRACE, policy=policy, slots=SLOTS, target=TARGET, seed=SEED, order="shuffled"
    )
    with ProgressBar(f"simulating {policy}") as bar:
        show = bar.make_watcher()

        def watch(state: StudyState) -> None:
            states[:] = [state]
            if show is not None:
                show(state)

        result = simulation.run(remember=log.extend, watch=watch, trace=trace)
    return result, log, states[0]


def _describe_speedup(fifo: SimResult, asha: SimResult) -> str:
    return (
        f"On this order asha reaches the target in {format_duration(asha.makespan_s)} where fifo "
        f"needs {format_duration(fifo.makespan_s)}: {fifo.makespan_s / asha.makespan_s:.1f} times "
        "as fast."
    )


def _describe_orders(path: Path) -> str:
    """Compare the two policies on many orders, since one order alone may be luck."""
    comparison = Comparison(
        sources=(str(path),),
        policies=("fifo", "asha"),
        slots=(SLOTS,),
        seeds=ORDERS,
        target=TARGET,
    )
    with ProgressBar("other orders") as bar:
        fifo, asha = compare(
            comparison,
            jobs=1,  # starting processes would take longer than the simulations
            watch=lambda done, total: bar.update(done / total, f"{done} of {total} runs"),
        ).rows
    mean = (fifo.time_mean_s or 0.0) / (asha.time_mean_s or 1.0)
    return (
        f"Over {ORDERS} orders asha is {mean:.1f} times as fast on average; in the slowest tenth "
        f"it needs {format_duration(asha.time_p90_s or 0.0)} instead of "
        f"{format_duration(fifo.time_p90_s or 0.0)}."
    )


def _find_held_back(state: StudyState) -> int:
    """Return the trial that was paused or stopped at the latest epoch."""
    held = [t for t in state.trials if t.status in (Status.PAUSED, Status.STOPPED)]
    return max(held, key=lambda trial: (trial.epoch, -trial.id)).id


def _suggest_commands(path: Path) -> list[str]:
    return [
        "What to try next:",
        f"  paceline compare {path} --policies fifo,asha --slots 4,8,16",
        f"  paceline simulate {path} --policy asha:eta=4 --slots 8 --deadline 2m --name first",
        "  paceline story first 0",
    ]
