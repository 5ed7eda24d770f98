"""`paceline demo --simulated`: what a policy is worth, on a trace in the package.

Knows a fixed little programme: two studies on the same order of configs, then the same over many
orders. Writes no file, and ends in seconds.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import TYPE_CHECKING

import click

from paceline.analysis.story import span, trial_story
from paceline.api.comparison import Comparison, compare
from paceline.api.simulation import Simulation
from paceline.cli.progress import Bar
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
# A middling order: of the first thirty, eighteen favour asha less and eleven more.
SEED = 3
ORDERS = 20


def show_simulated() -> None:
    """Tell two simulated studies of the same trainings, side by side."""
    from paceline.cli import tables

    with as_file(files("paceline") / "data" / TRACE) as path:
        trace = read_trace(path)
        tables.show(
            f"{len(trace.runs)} recorded CIFAR-10 trainings of {trace.header.max_epochs} epochs, "
            f"{SLOTS} virtual GPUs, and the wish for accuracy {TARGET:g}. fifo runs every training "
            "to its end; asha lets only the best third of each rung go on. Both get the configs in "
            "the same order.",
        )
        fifo, _, _ = _played(trace, "fifo")
        asha, log, state = _played(trace, "asha")
        tables.show(
            tables.side_by_side([fifo, asha]), _speed_up(fifo, asha), _over_orders(path), ""
        )
        number = _held_back(state)
        tables.show(f"Every decision says why. Trial {number} of the asha study was held back:")
        tables.show(tables.indented(trial_story(log, number)), "")
        for line in _next(path):
            click.echo(line)


def _played(trace: Trace, policy: str) -> tuple[SimResult, list[Step], StudyState]:
    """Simulate one study; return what it found, its log and how it ended."""
    log: list[Step] = []
    states: list[StudyState] = []
    simulation = Simulation(
        source=TRACE, policy=policy, slots=SLOTS, target=TARGET, seed=SEED, order="shuffled"
    )
    with Bar(f"simulating {policy}") as bar:
        show = bar.watch()

        def watch(state: StudyState) -> None:
            states[:] = [state]
            if show is not None:
                show(state)

        result = simulation.run(remember=log.extend, watch=watch, trace=trace)
    return result, log, states[0]


def _speed_up(fifo: SimResult, asha: SimResult) -> str:
    return (
        f"On this order asha gets there in {span(asha.makespan_s)} where fifo needs "
        f"{span(fifo.makespan_s)}: {fifo.makespan_s / asha.makespan_s:.1f} times as fast."
    )


def _over_orders(path: Path) -> str:
    """Say what other orders give: one alone is luck."""
    comparison = Comparison(
        sources=(str(path),),
        policies=("fifo", "asha"),
        slots=(SLOTS,),
        seeds=ORDERS,
        target=TARGET,
    )
    with Bar("other orders") as bar:
        fifo, asha = compare(
            comparison,
            jobs=1,  # starting processes would take longer than all of it
            watch=lambda done, all_: bar.show(done / all_, f"{done} of {all_} runs"),
        ).rows
    mean = (fifo.time_mean_s or 0.0) / (asha.time_mean_s or 1.0)
    return (
        f"Over {ORDERS} orders it is {mean:.1f} times as fast on average, and in the unlucky tenth "
        f"it needs {span(asha.time_p90_s or 0.0)} instead of {span(fifo.time_p90_s or 0.0)}."
    )


def _held_back(state: StudyState) -> int:
    """Return the trial that was held back at the latest epoch."""
    held = [t for t in state.trials if t.status in (Status.WAITING, Status.STOPPED)]
    return max(held, key=lambda trial: (trial.epoch, -trial.id)).id


def _next(path: Path) -> list[str]:
    return [
        "What to try next:",
        f"  paceline compare {path} --policies fifo,asha --slots 4,8,16",
        f"  paceline simulate {path} --policy asha:eta=4 --slots 8 --deadline 2m --name first",
        "  paceline story first 0",
    ]
