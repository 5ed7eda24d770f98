"""The what-if table: which policy, how many slots, how long.

Knows every combination of source, policy, allocator, curve model, slots and seed, how to simulate
them, and how to sum the seeds up. The same seed is the same order of configs for every
policy, so rows can be compared run by run. Does not know how anything is shown.
"""

from __future__ import annotations

import math
import time
from functools import lru_cache
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from paceline.analysis.profiles import Course, Follower, Raced
from paceline.api.parallel import on_all_cores
from paceline.api.simulation import SimResult, Simulation
from paceline.api.sources import trace_of
from paceline.core.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from paceline.api.parallel import Watch
    from paceline.core.decisions import Step
    from paceline.engines.sim.traces import Trace


class Comparison(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to compare. Whatever is not listed here is the same for all runs: `base`."""

    sources: tuple[str, ...]
    policies: tuple[str, ...]
    allocators: tuple[str, ...] = ("fixed",)
    curves: tuple[str, ...] = ("pfn",)
    slots: tuple[int, ...] = (4,)
    # How many: the seeds are 0, 1, …
    seeds: int = 10
    # "trace": each trace's own, where its header has one. None: no target.
    target: float | Literal["trace"] | None = "trace"
    base: Simulation = Simulation(source="")

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise SpecError(f"seeds={self.seeds} leaves nothing to run: give 1 or more.")
        for name in ("sources", "policies", "allocators", "curves", "slots"):
            if not getattr(self, name):
                raise SpecError(f"{name} is empty: give at least one.")


class CompareRow(Struct, frozen=True, kw_only=True):
    """One trace, policy, allocator, curve model and number of slots, over all seeds."""

    trace: str
    source: str
    policy: str
    allocator: str
    curves: str
    slots: int
    seeds: int
    target: float | None
    # Runs that reached the target, and runs that ended before; None without a target.
    reached: int | None
    never: int | None
    # Time to the target. A run that never reached it counts with the time at which it ended.
    time_median_s: float | None
    time_mean_s: float | None
    time_p10_s: float | None
    time_p90_s: float | None
    makespan_median_s: float
    # None: more than half of the runs saw no number.
    best_median: float | None
    slot_seconds_mean: float
    busy_mean: float


class CompareResult(Struct, frozen=True, kw_only=True):
    """The what-if table. Its JSON is a contract: `docs/json.md`."""

    rows: list[CompareRow]
    runs: int
    seeds: int
    # The only figure that differs between two runs of the same comparison.
    wall_s: float


def compare(
    comparison: Comparison, *, jobs: int | None = None, watch: Watch | None = None
) -> CompareResult:
    """Simulate every combination, on all cores or as many as `jobs`, and sum up the seeds."""
    started = time.perf_counter()
    runs = list(_runs(comparison))
    return _table(on_all_cores(simulate, runs, jobs=jobs, watch=watch), comparison, started)


def race(
    comparison: Comparison, *, jobs: int | None = None, watch: Watch | None = None
) -> tuple[CompareResult, list[Raced]]:
    """Compare, and keep of every run what the figures show: a few kilobytes each."""
    started = time.perf_counter()
    runs = list(_runs(comparison))
    done = on_all_cores(_followed, runs, jobs=jobs, watch=watch)
    table = _table([result for result, _ in done], comparison, started)
    count = comparison.seeds
    groups = [done[at : at + count] for at in range(0, len(done), count)]
    return table, [_raced(*each) for each in zip(table.rows, groups, strict=True)]


def _table(results: Sequence[SimResult], comparison: Comparison, started: float) -> CompareResult:
    count = comparison.seeds
    return CompareResult(
        rows=[_row(results[at : at + count]) for at in range(0, len(results), count)],
        runs=len(results),
        seeds=count,
        wall_s=time.perf_counter() - started,
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Return the quantile of sorted values, by straight lines between neighbours.

    >>> quantile([1.0, 2.0, 4.0], 0.5), quantile([1.0, 2.0, 4.0], 0.75)
    (2.0, 3.0)
    """
    place = share * (len(values) - 1)
    below = math.floor(place)
    if place == below:
        return values[below]  # its neighbour may be infinite, and infinity times 0 is no number
    return values[below] + (values[below + 1] - values[below]) * (place - below)


@lru_cache(maxsize=64)
def _trace(source: str) -> Trace | None:
    return trace_of(source)


def simulate(
    simulation: Simulation, remember: Callable[[Sequence[Step]], None] | None = None
) -> SimResult:
    """Simulate one run. A trace is read once in a process, however many runs there are."""
    return simulation.run(trace=_trace(simulation.source), remember=remember)


def _followed(simulation: Simulation) -> tuple[SimResult, Course]:
    follower = Follower()
    result = simulate(simulation, follower.take)
    return result, follower.course()


def _raced(row: CompareRow, done: Sequence[tuple[SimResult, Course]]) -> Raced:
    first = done[0][0]
    slots = "slot" if row.slots == 1 else "slots"
    place = f"{row.trace}, {row.slots} {slots}"
    return Raced(
        place=place if row.target is None else f"{place}, target {row.target:g}",
        who=(row.policy, row.curves, row.allocator),
        metric=first.metric,
        sign=1.0 if first.mode == "min" else -1.0,
        slots=row.slots,
        target=row.target,
        times=[result.makespan_s for result, _ in done],
        reached=[result.time_to_target_s is not None for result, _ in done],
        courses=[course for _, course in done],
    )


def _runs(comparison: Comparison) -> Iterator[Simulation]:
    """Yield every run, a row's seeds one after the other; what cannot be meant is said first."""
    for place, source in enumerate(comparison.sources):
        trace = _trace(source)
        target = comparison.target
        if target == "trace":
            target = None if trace is None else trace.header.target
        for slots, allocator, curves, policy in product(
            comparison.slots, comparison.allocators, comparison.curves, comparison.policies
        ):
            run = replace(
                comparison.base,
                source=source,
                policy=policy,
                allocator=allocator,
                curves=curves,
                slots=slots,
                target=target,
            )
            if place == 0:
                run.check(trace=trace)
            yield from (replace(run, seed=seed) for seed in range(comparison.seeds))


def _row(results: Sequence[SimResult]) -> CompareRow:
    first = results[0]
    trace = _trace(first.source)
    asked = first.target is not None
    reached = sum(result.time_to_target_s is not None for result in results)
    makespans = sorted(result.makespan_s for result in results)
    # A run that reaches the target ends there, so that its makespan is its time to the target.
    times = makespans if asked else None
    # Worst last, so that runs without a number stand there too.
    sign = 1.0 if first.mode == "min" else -1.0
    best = sorted(
        math.inf if result.best_value is None else sign * result.best_value for result in results
    )
    middle = quantile(best, 0.5) if math.isfinite(best[len(best) // 2]) else None
    return CompareRow(
        trace=first.source if trace is None else trace.header.name,
        source=first.source,
        policy=first.policy,
        allocator=first.allocator,
        curves=first.curves,
        slots=first.slots,
        seeds=len(results),
        target=first.target,
        reached=reached if asked else None,
        never=len(results) - reached if asked else None,
        time_median_s=quantile(times, 0.5) if times else None,
        time_mean_s=fmean(times) if times else None,
        time_p10_s=quantile(times, 0.1) if times else None,
        time_p90_s=quantile(times, 0.9) if times else None,
        makespan_median_s=quantile(makespans, 0.5),
        best_median=None if middle is None else sign * middle,
        slot_seconds_mean=fmean(result.slot_seconds for result in results),
        busy_mean=fmean(result.busy_fraction for result in results),
    )
