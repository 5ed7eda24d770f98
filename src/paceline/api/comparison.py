"""Compare simulated studies: one row for each source, policy, allocator, curve model and slots.

Knows how to simulate all combinations with all seeds, and how to sum up the seeds. A seed gives
every policy the same order of configs, so rows can be compared run by run. Does not know how a row
is shown.
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

from paceline.analysis.profiles import PolicyRuns, ProfileRecorder, RunProfile
from paceline.api.completion import count_cut_runs
from paceline.api.options import AllocatorOption, CurvesOption, PolicyOption
from paceline.api.parallel import run_parallel
from paceline.api.simulation import SimResult, Simulation
from paceline.api.sources import find_trace
from paceline.core.errors import SpecError
from paceline.core.text import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from paceline.api.parallel import Watch
    from paceline.core.decisions import Step
    from paceline.engines.sim.traces import Trace


# Its values are the defaults of a comparison too.
_BASE = Simulation(source="")


class Comparison(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lists to compare. All other options are the same for all runs: `base`."""

    sources: tuple[str, ...]
    policies: tuple[PolicyOption, ...]
    allocators: tuple[AllocatorOption, ...] = (_BASE.allocator,)
    curves: tuple[CurvesOption, ...] = (_BASE.curves,)
    slots: tuple[int, ...] = (_BASE.slots,)
    # The number of seeds: 0, 1, …
    seeds: int = 10
    # "trace": the target in each trace's header, if any. None: no target.
    target: float | Literal["trace"] | None = "trace"
    base: Simulation = _BASE

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise SpecError(f"seeds={self.seeds} is invalid: must be at least 1.")
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
    # Runs that reached the target, and runs that did not; None without a target.
    reached: int | None
    never: int | None
    # Time to the target. A run that did not reach it counts with the time at which it ended.
    time_median_s: float | None
    time_mean_s: float | None
    time_p10_s: float | None
    time_p90_s: float | None
    makespan_median_s: float
    # None: more than half of the runs reported no number.
    best_median: float | None
    slot_seconds_mean: float
    busy_mean: float
    # Runs of the trace that forecasts completed, a new draw for each seed; and the lowest and the
    # highest best value of the seeds.
    completed: int = 0
    best_low: float | None = None
    best_high: float | None = None


class CompareResult(Struct, frozen=True, kw_only=True):
    """The table of a comparison. Its JSON is a contract: `docs/json.md`."""

    rows: list[CompareRow]
    runs: int
    seeds: int
    # The only number that differs between two runs of the same comparison.
    wall_s: float


def compare(
    comparison: Comparison, *, jobs: int | None = None, watch: Watch | None = None
) -> CompareResult:
    """Simulate every combination in `jobs` processes, by default on all cores; sum up the seeds."""
    started = time.perf_counter()
    runs = list(_list_runs(comparison))
    return _make_table(run_parallel(simulate, runs, jobs=jobs, watch=watch), comparison, started)


def race(
    comparison: Comparison, *, jobs: int | None = None, watch: Watch | None = None
) -> tuple[CompareResult, list[PolicyRuns]]:
    """Compare, and return each run's profile for the figures too: a few kilobytes each."""
    started = time.perf_counter()
    runs = list(_list_runs(comparison))
    done = run_parallel(_profile, runs, jobs=jobs, watch=watch)
    table = _make_table([result for result, _ in done], comparison, started)
    count = comparison.seeds
    groups = [done[at : at + count] for at in range(0, len(done), count)]
    return table, [_join_runs(*each) for each in zip(table.rows, groups, strict=True)]


def _make_table(
    results: Sequence[SimResult], comparison: Comparison, started: float
) -> CompareResult:
    count = comparison.seeds
    return CompareResult(
        rows=[
            _make_row(results[at : at + count], comparison.base)
            for at in range(0, len(results), count)
        ],
        runs=len(results),
        seeds=count,
        wall_s=time.perf_counter() - started,
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, linear between neighbours.

    >>> quantile([1.0, 2.0, 4.0], 0.5), quantile([1.0, 2.0, 4.0], 0.75)
    (2.0, 3.0)
    """
    place = share * (len(values) - 1)
    below = math.floor(place)
    if place == below:
        return values[below]  # its neighbour may be infinite, and infinity times 0 is NaN
    return values[below] + (values[below + 1] - values[below]) * (place - below)


@lru_cache(maxsize=64)
def _load_trace(source: str) -> Trace | None:
    return find_trace(source)


def simulate(
    simulation: Simulation, remember: Callable[[Sequence[Step]], None] | None = None
) -> SimResult:
    """Simulate one run. Each process reads a trace once."""
    return simulation.run(trace=_load_trace(simulation.source), remember=remember)


def _profile(simulation: Simulation) -> tuple[SimResult, RunProfile]:
    recorder = ProfileRecorder()
    result = simulate(simulation, recorder.take)
    return result, recorder.profile()


def _join_runs(row: CompareRow, done: Sequence[tuple[SimResult, RunProfile]]) -> PolicyRuns:
    first = done[0][0]
    place = f"{row.trace}, {format_count(row.slots, 'slot')}"
    return PolicyRuns(
        place=place if row.target is None else f"{place}, target {row.target:g}",
        parts=(row.policy, row.curves, row.allocator),
        metric=first.metric,
        sign=1.0 if first.mode == "min" else -1.0,
        slots=row.slots,
        target=row.target,
        times=[result.makespan_s for result, _ in done],
        reached=[result.time_to_target_s is not None for result, _ in done],
        profiles=[profile for _, profile in done],
    )


def _list_runs(comparison: Comparison) -> Iterator[Simulation]:
    """Yield every run, the seeds of a row one after the other; check the first source's runs."""
    for number, source in enumerate(comparison.sources):
        trace = _load_trace(source)
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
            if number == 0:
                run.check(trace=trace)
            draws = run.complete and run.draw is None
            for seed in range(comparison.seeds):
                yield replace(run, seed=seed, draw=seed) if draws else replace(run, seed=seed)


def _make_row(results: Sequence[SimResult], base: Simulation) -> CompareRow:
    first = results[0]
    trace = _load_trace(first.source)
    has_target = first.target is not None
    reached = sum(result.time_to_target_s is not None for result in results)
    makespans = sorted(result.makespan_s for result in results)
    # A run that reaches the target ends there, so that its makespan is its time to the target.
    times = makespans if has_target else None
    # Worst last, with the runs that reported no number.
    sign = 1.0 if first.mode == "min" else -1.0
    best = sorted(
        math.inf if result.best_value is None else sign * result.best_value for result in results
    )
    found = [result.best_value for result in results if result.best_value is not None]
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
        reached=reached if has_target else None,
        never=len(results) - reached if has_target else None,
        time_median_s=quantile(times, 0.5) if times else None,
        time_mean_s=fmean(times) if times else None,
        time_p10_s=quantile(times, 0.1) if times else None,
        time_p90_s=quantile(times, 0.9) if times else None,
        makespan_median_s=quantile(makespans, 0.5),
        best_median=None if middle is None else sign * middle,
        slot_seconds_mean=fmean(result.slot_seconds for result in results),
        busy_mean=fmean(result.busy_fraction for result in results),
        completed=count_cut_runs(trace, base.epochs) if trace and base.complete else 0,
        best_low=min(found, default=None),
        best_high=max(found, default=None),
    )
