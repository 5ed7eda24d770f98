"""Simulate many runs on all cores, and keep a profile of each for the quality tables.

Knows the recorded traces. Does not compare anything.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.page import ROOT
from paceline.analysis.profiles import ProfileRecorder, RunProfile
from paceline.api.comparison import quantile, simulate
from paceline.api.parallel import run_parallel
from paceline.api.simulation import Simulation
from paceline.core.decisions import Launch
from paceline.core.events import Ended
from paceline.engines.sim.traces import Trace, read_trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paceline.core.decisions import Step

TRACES = Path(os.environ.get("PACELINE_TRACES", ROOT.parent / "shared" / "traces"))


class SimulatedRun(NamedTuple):
    """One simulated run: its course, the slot time it used, and the widest trial at its end."""

    profile: RunProfile
    slot_seconds: float
    widest: float

    def time_to(self, target: float, sign: float, limit: float) -> float:
        """Return the time at which the target was reached, at most the limit."""
        for at, value in self.profile.best_changes:
            if sign * value <= sign * target:
                return min(at, limit)
        return limit


def simulate_run(simulation: Simulation) -> SimulatedRun:
    """Simulate one run and keep its course."""
    follower = ProfileRecorder()
    held: dict[int, float] = {}

    def take(steps: Sequence[Step]) -> None:
        follower.take(steps)
        for step in steps:
            if isinstance(step.event, Ended):
                held.pop(step.event.attempt, None)
            launches = (each for each in step.decisions if isinstance(each, Launch))
            held.update((launch.attempt, launch.width) for launch in launches)

    result = simulate(simulation, take)
    return SimulatedRun(follower.profile(), result.slot_seconds, max(held.values(), default=0.0))


def simulate_runs(simulations: Sequence[Simulation], what: str) -> list[SimulatedRun]:
    """Simulate many runs on all cores, in order; print progress on stderr."""
    shown = -1

    def watch(done: int, all_: int) -> None:
        nonlocal shown
        tenth = 10 * done // all_
        if tenth > shown:
            shown = tenth
            print(f"{what}: {done} of {all_} runs", file=sys.stderr, flush=True)

    return run_parallel(simulate_run, simulations, watch=watch)


def find_source(trace: str) -> str:
    """Return the path of a trace."""
    return str(TRACES / f"{trace}.jsonl.gz")


@cache
def load_trace(trace: str) -> Trace:
    """Return a recorded trace."""
    return read_trace(find_source(trace))


def loss_sign(trace: str) -> float:
    """Return the sign that turns the trace's metric into a loss."""
    return 1.0 if load_trace(trace).header.mode == "min" else -1.0


def list_recorded_traces() -> list[str]:
    """Return the names of all recorded traces, without those made by a surrogate."""
    names = sorted(path.name.removesuffix(".jsonl.gz") for path in TRACES.glob("*.jsonl.gz"))
    return [name for name in names if "surrogate" not in name]


def median(numbers: Sequence[float]) -> float:
    """Return the median of some numbers."""
    return quantile(sorted(numbers), 0.5)


def measure_makespans(
    places: Iterable[tuple[str, int]], orders: int = 10
) -> dict[tuple[str, int], float]:
    """Return F, the median makespan of fifo on the whole trace, by trace and slots."""
    asked = list(dict.fromkeys(places))
    runs = [
        Simulation(source=find_source(trace), policy="fifo", slots=slots, seed=seed)
        for trace, slots in asked
        for seed in range(orders)
    ]
    ends = [past.profile.until for past in simulate_runs(runs, "fifo to its end")]
    return {
        place: median(ends[at : at + orders])
        for place, at in zip(asked, range(0, len(ends), orders), strict=True)
    }
