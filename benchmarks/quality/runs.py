"""Simulated runs as the quality tables need them: many, each as the course it took.

Knows the traces there are, and how to run simulations on all cores. Judges nothing.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.page import ROOT
from paceline.analysis.profiles import Course, Follower
from paceline.api.comparison import quantile, simulate
from paceline.api.parallel import on_all_cores
from paceline.api.simulation import Simulation
from paceline.core.decisions import Launch
from paceline.core.events import Ended
from paceline.engines.sim.traces import Trace, read_trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paceline.core.decisions import Step

TRACES = Path(os.environ.get("PACELINE_TRACES", ROOT.parent / "shared" / "traces"))


class Past(NamedTuple):
    """One simulated run: its course, the slot time it used, and the widest trial at its end."""

    course: Course
    slot_seconds: float
    widest: float

    def time_to(self, target: float, sign: float, limit: float) -> float:
        """Return when the target was reached; where it never was by the limit, the limit."""
        for at, value in self.course.leads:
            if sign * value <= sign * target:
                return min(at, limit)
        return limit


def follow(simulation: Simulation) -> Past:
    """Simulate one run and keep its course."""
    follower = Follower()
    held: dict[int, float] = {}

    def take(steps: Sequence[Step]) -> None:
        follower.take(steps)
        for step in steps:
            if isinstance(step.event, Ended):
                held.pop(step.event.attempt, None)
            launches = (each for each in step.decisions if isinstance(each, Launch))
            held.update((launch.attempt, launch.width) for launch in launches)

    result = simulate(simulation, take)
    return Past(follower.course(), result.slot_seconds, max(held.values(), default=0.0))


def pasts(simulations: Sequence[Simulation], what: str) -> list[Past]:
    """Simulate many runs on all cores, in their order, and say on stderr how far it is."""
    said = -1

    def watch(done: int, all_: int) -> None:
        nonlocal said
        tenth = 10 * done // all_
        if tenth > said:
            said = tenth
            print(f"{what}: {done} of {all_} runs", file=sys.stderr, flush=True)

    return on_all_cores(follow, simulations, watch=watch)


def source_of(trace: str) -> str:
    """Return where a trace lies."""
    return str(TRACES / f"{trace}.jsonl.gz")


@cache
def trace_of(trace: str) -> Trace:
    """Return a recorded trace."""
    return read_trace(source_of(trace))


def sign_of(trace: str) -> float:
    """Return what turns the trace's metric into a loss."""
    return 1.0 if trace_of(trace).header.mode == "min" else -1.0


def recorded() -> list[str]:
    """Return the names of all traces that were recorded; not those that a surrogate made up."""
    names = sorted(path.name.removesuffix(".jsonl.gz") for path in TRACES.glob("*.jsonl.gz"))
    return [name for name in names if "surrogate" not in name]


def median(numbers: Sequence[float]) -> float:
    """Return the middle of some numbers."""
    return quantile(sorted(numbers), 0.5)


def makespans(places: Iterable[tuple[str, int]], orders: int = 10) -> dict[tuple[str, int], float]:
    """Return F, the median time that fifo needs for the whole trace, by trace and slots."""
    asked = list(dict.fromkeys(places))
    runs = [
        Simulation(source=source_of(trace), policy="fifo", slots=slots, seed=seed)
        for trace, slots in asked
        for seed in range(orders)
    ]
    ends = [past.course.until for past in pasts(runs, "fifo to its end")]
    return {
        place: median(ends[at : at + orders])
        for place, at in zip(asked, range(0, len(ends), orders), strict=True)
    }
