"""Run every policy on every recorded trace: time to target, regret at deadlines, and two bounds.

The bounds: the fastest single run of a trace on one slot, and each forecasting policy with the
curve model that knows the future.
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.page import format_table
from benchmarks.quality.pop import Contender
from benchmarks.quality.runs import (
    SimulatedRun,
    find_source,
    list_recorded_traces,
    load_trace,
    measure_makespans,
    median,
    simulate_runs,
)
from benchmarks.quality.scale import fastest_run_time, load_scale
from paceline.api.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Sequence

SLOTS, ORDERS = (4, 5, 8, 16), 5
# Shares of F, the makespan of fifo.
SHARES = (0.05, 0.1, 0.25)
CONTENDERS = (
    Contender("fifo"),
    Contender("median"),
    Contender("bandit"),
    Contender("asha_stop"),
    Contender("asha"),
    Contender("sha"),
    Contender("hyperband"),
    Contender("hypersched"),
    Contender("early_term", "pfn"),
    Contender("early_term", "oracle"),
    Contender("pop", "pfn"),
    Contender("pop", "oracle"),
)
# These policies use the deadline, so each deadline is a run of its own.
DEADLINE_POLICIES = {"hypersched", "pop"}


class TraceSetup(NamedTuple):
    """A trace with a number of slots."""

    trace: str
    slots: int


class Row(NamedTuple):
    """One policy on one trace and number of slots."""

    place: TraceSetup
    contender: Contender
    makespan_s: float
    # Time to target of each order; F if it was never reached.
    times: list[float]
    # Mean regret at each deadline.
    regrets: list[float]
    # Share of slot time used up to F, in runs without a target; None if not measured.
    used: float | None

    @property
    def never(self) -> int:
        """Orders in which the target was not reached by F."""
        return sum(time >= self.makespan_s for time in self.times)


def run(slots: tuple[int, ...] = SLOTS, orders: int = ORDERS) -> list[Row]:
    """Run every policy on every trace and number of slots."""
    # All runs of a trace in sequence, since they share many forecasts.
    places = [TraceSetup(trace, count) for trace in list_recorded_traces() for count in slots]
    spans = measure_makespans(places)
    asked = [(place, contender, spans[place]) for place in places for contender in CONTENDERS]
    runs = [_make_simulations(*one, orders) for one in asked]
    done = iter(simulate_runs([each for row in runs for each in row], "traces"))
    return [
        _make_row(*one, [[next(done) for _ in range(orders)] for _ in range(len(row) // orders)])
        for one, row in zip(asked, runs, strict=True)
    ]


def _make_simulations(
    place: TraceSetup, contender: Contender, span: float, orders: int
) -> list[Simulation]:
    """Return the runs of a row: with the target, then without it to each deadline or to F."""
    target = load_trace(place.trace).header.target
    shares = SHARES if contender.policy in DEADLINE_POLICIES else (1.0,)
    return [
        Simulation(
            source=find_source(place.trace),
            policy=contender.policy,
            curves=contender.curves or "last",
            slots=place.slots,
            target=aim,
            deadline_s=share * span,
            seed=seed,
        )
        for aim, share in ((target, 1.0), *((None, share) for share in shares))
        for seed in range(orders)
    ]


def _make_row(
    place: TraceSetup, contender: Contender, span: float, groups: Sequence[Sequence[SimulatedRun]]
) -> Row:
    target = load_trace(place.trace).header.target
    assert target is not None, f"{place.trace} has no target in its header"
    scale = load_scale(place.trace)
    aimed, *others = groups
    by_share = others if contender.policy in DEADLINE_POLICIES else others * len(SHARES)
    used = None
    if contender.policy not in DEADLINE_POLICIES:
        used = fmean(past.slot_seconds for past in others[0]) / (place.slots * span)
    return Row(
        place,
        contender,
        span,
        [past.time_to(target, scale.sign, span) for past in aimed],
        [
            fmean(scale.regret(past.profile.value_at(share * span)) for past in group)
            for share, group in zip(SHARES, by_share, strict=True)
        ],
        used,
    )


def make_page(rows: Sequence[Row]) -> str:
    """Return the body of the page."""
    count = len({row.place.trace for row in rows})
    parts = [f"# Policies on {count} recorded traces", _METHOD.format(orders=len(rows[0].times))]
    asked = sorted({row.place.slots for row in rows})
    for slots in asked:
        here = [row for row in rows if row.place.slots == slots]
        parts += [
            f"## {slots} slots: summary over {count} traces",
            format_table(_summary_table(here)),
        ]
    for slots in asked:
        here = [row for row in rows if row.place.slots == slots]
        parts += [f"## {slots} slots: median time to target in simulated seconds"]
        parts += [format_table(_time_table(here))]
    return "\n\n".join(parts)


_METHOD = """Medians over {orders} orders, the same for all. Time to target: until the first report
that reaches the target in the trace's header, which about a tenth of its runs ever reach. An order
that does not reach it within F, the median makespan of fifo, counts as F and as never (n✗). Regret
at 5, 10 and 25 % of F: (best possible - found) / (best possible - median final), 0 for the best
value in the whole trace, 1 for the final value of a median run. The table gives the median over
traces: where all runs end close together, regret is large and would dominate a mean. `pop` and
`hypersched` know the deadline, and have one run for each. Slot time used: in runs without a
target, up to F. *Fastest*: the fastest single run on one slot, which is unknown in advance.
(oracle): with a curve model that knows the future, the bound for this policy with any other."""


def _summary_table(rows: Sequence[Row]) -> list[list[str]]:
    lines = [["policy (curve model)", "time to target, times the fastest (geometric mean)"]]
    lines[0] += ["worst trace, times its best policy", "never", "slot time used"]
    lines[0] += [f"regret at {share:.0%}" for share in SHARES]
    best = {
        place: min(median(row.times) for row in rows if row.place == place)
        for place in {row.place for row in rows}
    }
    for contender in CONTENDERS:
        own = [row for row in rows if row.contender == contender]
        logs = [math.log(median(row.times) / _fastest_time(row.place)) for row in own]
        worst = max(median(row.times) / best[row.place] for row in own)
        never = sum(row.never for row in own)
        lines.append([str(contender), f"{math.exp(fmean(logs)):.2f}", f"{worst:.1f}"])
        used = [row.used for row in own if row.used is not None]
        lines[-1] += [
            f"{never} of {sum(len(row.times) for row in own)}",
            f"{fmean(used):.0%}" if used else "",
        ]
        lines[-1] += [
            f"{median([row.regrets[at] for row in own]):.3f}" for at in range(len(SHARES))
        ]
    return lines


def _fastest_time(place: TraceSetup) -> float:
    target = load_trace(place.trace).header.target
    assert target is not None
    return fastest_run_time(place.trace, target)


def _time_table(rows: Sequence[Row]) -> list[list[str]]:
    lines = [["trace, target", "F", "fastest", *map(str, CONTENDERS)]]
    for place in dict.fromkeys(row.place for row in rows):
        own = {row.contender: row for row in rows if row.place == place}
        target = load_trace(place.trace).header.target
        span = own[CONTENDERS[0]].makespan_s
        lines.append([f"{place.trace} {target:g}", f"{span:.4g}", f"{_fastest_time(place):.4g}"])
        lines[-1] += [_format_time(own[contender]) for contender in CONTENDERS]
    return lines


def _format_time(row: Row) -> str:
    return f"{median(row.times):.4g}" + (f" {row.never}✗" if row.never else "")


def to_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the results as JSON values."""
    return [
        {
            **row.place._asdict(),
            "policy": row.contender.policy,
            "curves": row.contender.curves or None,
            "makespan_s": row.makespan_s,
            "fastest_s": _fastest_time(row.place),
            "median_s": median(row.times),
            "never": row.never,
            "regret": dict(zip((f"{share:.0%}" for share in SHARES), row.regrets, strict=True)),
            "used": row.used,
        }
        for row in rows
    ]
