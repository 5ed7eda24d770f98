"""POP beside fifo on every recorded trace: how much slower at worst, and what an oracle reaches.

Knows the contenders and the limit. A row is a trace with a number of slots; its figure is the
median time to the trace's target over paired orders, relative to fifo's.
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.page import format_table
from benchmarks.quality.pop import FIFO, POP, POP_ORACLE, Contender
from benchmarks.quality.runs import (
    find_source,
    list_recorded_traces,
    load_trace,
    loss_sign,
    measure_makespans,
    median,
    simulate_runs,
)
from paceline.api.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Sequence

SLOTS, ORDERS = (4, 8), 20
# POP must not be slower than this, times fifo, in any row.
LIMIT = 1.3
QUOTA, PUBLISHED = Contender("pop:quota=true", "pfn"), Contender("pop:published=true", "pfn")
LAST = Contender("pop", "last")
CONTENDERS = (FIFO, POP, POP_ORACLE, QUOTA, PUBLISHED, LAST)


class RaceRow(NamedTuple):
    """The times to target of all contenders on one trace and number of slots."""

    trace: str
    slots: int
    limit_s: float
    times: dict[Contender, list[float]]

    def ratio(self, contender: Contender) -> float:
        """Return the contender's median time relative to fifo's."""
        return median(self.times[contender]) / median(self.times[FIFO])

    def never(self, contender: Contender) -> int:
        """Return the orders in which the contender did not reach the target."""
        return sum(time >= self.limit_s for time in self.times[contender])


def run(slots: tuple[int, ...] = SLOTS, orders: int = ORDERS) -> list[RaceRow]:
    """Run all contenders on all traces."""
    places = [(trace, count) for trace in list_recorded_traces() for count in slots]
    spans = measure_makespans(places)
    runs = [
        Simulation(
            source=find_source(trace),
            policy=contender.policy,
            curves=contender.curves or "last",
            slots=count,
            target=load_trace(trace).header.target,
            deadline_s=spans[trace, count],
            seed=seed,
        )
        for trace, count in places
        for contender in CONTENDERS
        for seed in range(orders)
    ]
    done = iter(simulate_runs(runs, "pop beside fifo"))
    rows = []
    for trace, count in places:
        target, limit = load_trace(trace).header.target, spans[trace, count]
        assert target is not None, f"{trace} has no target in its header"
        times = {
            contender: [next(done).time_to(target, loss_sign(trace), limit) for _ in range(orders)]
            for contender in CONTENDERS
        }
        rows.append(RaceRow(trace, count, limit, times))
    return rows


def make_page(rows: Sequence[RaceRow]) -> str:
    """Return the body of the page."""
    slots = sorted({row.slots for row in rows})
    orders = len(rows[0].times[FIFO])
    traces = len({row.trace for row in rows})
    worst = max(row.ratio(POP) for row in rows)
    slower = sum(row.ratio(POP) > LIMIT for row in rows)
    verdict = (
        f"With `pfn`, POP is slower than fifo by more than {LIMIT:g} times in {slower} of "
        f"{len(rows)} rows; the worst is {worst:.2f} times. With an oracle it does not reach the "
        f"target in {sum(row.never(POP_ORACLE) for row in rows)} of {orders * len(rows)} runs."
    )
    method = (
        f"{traces} recorded traces on {' and '.join(map(str, slots))} slots, {orders} orders, the "
        "same for all. Time to the target in the trace's header, until F, the median makespan of "
        "fifo, which is also the deadline that POP knows; n✗: never in n orders. `quota=true` "
        "keeps the promising pool's slots, `published=true` is the paper without our changes, "
        "`last` is a curve model that hardly forecasts."
    )
    return "\n\n".join(
        [
            "# POP beside fifo on all recorded traces",
            verdict,
            method,
            "## Over all rows, times fifo",
            format_table(_make_summary(rows)),
            "## Median time to target in simulated seconds, and times fifo",
            format_table(_make_table(rows)),
        ]
    )


def _make_summary(rows: Sequence[RaceRow]) -> list[list[str]]:
    lines = [["policy (curve model)", "geometric mean", "worst row", f"rows above {LIMIT:g}"]]
    lines[0].append("never")
    for contender in CONTENDERS[1:]:
        ratios = [row.ratio(contender) for row in rows]
        mean = math.exp(fmean(map(math.log, ratios)))
        above = sum(ratio > LIMIT for ratio in ratios)
        never = sum(row.never(contender) for row in rows)
        runs = sum(len(row.times[contender]) for row in rows)
        lines.append([str(contender), f"{mean:.3f}", f"{max(ratios):.2f}", f"{above}"])
        lines[-1].append(f"{never} of {runs}")
    return lines


def _make_table(rows: Sequence[RaceRow]) -> list[list[str]]:
    lines = [["trace", "slots", "F", *map(str, CONTENDERS)]]
    for row in rows:
        lines.append([row.trace, str(row.slots), f"{row.limit_s:.4g}"])
        for contender in CONTENDERS:
            never = f" {row.never(contender)}✗" if row.never(contender) else ""
            ratio = "" if contender == FIFO else f" ({row.ratio(contender):.2f})"
            lines[-1].append(f"{median(row.times[contender]):.4g}{ratio}{never}")
    return lines


def to_json(rows: Sequence[RaceRow]) -> list[dict[str, Any]]:
    """Return the results as JSON values."""
    return [
        {
            "trace": row.trace,
            "slots": row.slots,
            "makespan_s": row.limit_s,
            "policy": contender.policy,
            "curves": contender.curves or None,
            "median_s": median(row.times[contender]),
            "times_fifo": row.ratio(contender),
            "never": row.never(contender),
        }
        for row in rows
        for contender in CONTENDERS
    ]
