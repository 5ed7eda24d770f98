"""Every policy on every recorded trace: time to target, and regret at deadlines, beside two bounds.

Knows which policies are asked and how their rows are summed up. The bounds: the fastest single run
of a trace on one slot, and each forecasting policy with the curve model that knows the future.
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.page import markdown
from benchmarks.quality.pop import Who
from benchmarks.quality.runs import Past, makespans, median, pasts, recorded, source_of, trace_of
from benchmarks.quality.scale import fastest, scale_of
from paceline.api.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Sequence

SLOTS, ORDERS = (4, 5, 8, 16), 5
# Shares of F, the makespan of fifo.
SHARES = (0.05, 0.1, 0.25)
WHO = (
    Who("fifo"),
    Who("median"),
    Who("bandit"),
    Who("asha_stop"),
    Who("asha"),
    Who("sha"),
    Who("hyperband"),
    Who("hypersched"),
    Who("early_term", "pfn"),
    Who("early_term", "oracle"),
    Who("pop", "pfn"),
    Who("pop", "oracle"),
)
# These make use of the deadline, so that each deadline is a run of its own.
FAR_SIGHTED = {"hypersched", "pop"}


class Place(NamedTuple):
    """A trace with a number of slots."""

    trace: str
    slots: int


class Row(NamedTuple):
    """One policy at one place."""

    place: Place
    who: Who
    makespan_s: float
    # Time to target of each order, F where it was never reached.
    times: list[float]
    # Mean regret at each deadline.
    regrets: list[float]
    # Share of the slots' time up to F that was used, going for the best value; None: not asked.
    used: float | None

    @property
    def never(self) -> int:
        """Orders in which the target was not reached by F."""
        return sum(time >= self.makespan_s for time in self.times)


def run(slots: tuple[int, ...] = SLOTS, orders: int = ORDERS) -> list[Row]:
    """Return every policy at every place."""
    # A trace's runs one after the other: they ask for many of the same forecasts.
    places = [Place(trace, count) for trace in recorded() for count in slots]
    spans = makespans(places)
    asked = [(place, who, spans[place]) for place in places for who in WHO]
    runs = [_simulations(*one, orders) for one in asked]
    done = iter(pasts([each for row in runs for each in row], "traces"))
    return [
        _row(*one, [[next(done) for _ in range(orders)] for _ in range(len(row) // orders)])
        for one, row in zip(asked, runs, strict=True)
    ]


def _simulations(place: Place, who: Who, span: float, orders: int) -> list[Simulation]:
    """Return the runs of a row: with the target, then without it to each deadline or to F."""
    target = trace_of(place.trace).header.target
    shares = SHARES if who.policy in FAR_SIGHTED else (1.0,)
    return [
        Simulation(
            source=source_of(place.trace),
            policy=who.policy,
            curves=who.curves or "last",
            slots=place.slots,
            target=aim,
            deadline_s=share * span,
            seed=seed,
        )
        for aim, share in ((target, 1.0), *((None, share) for share in shares))
        for seed in range(orders)
    ]


def _row(place: Place, who: Who, span: float, groups: Sequence[Sequence[Past]]) -> Row:
    target = trace_of(place.trace).header.target
    assert target is not None, f"{place.trace} names no target"
    scale = scale_of(place.trace)
    aimed, *others = groups
    by_share = others if who.policy in FAR_SIGHTED else others * len(SHARES)
    used = None
    if who.policy not in FAR_SIGHTED:
        used = fmean(past.slot_seconds for past in others[0]) / (place.slots * span)
    return Row(
        place,
        who,
        span,
        [past.time_to(target, scale.sign, span) for past in aimed],
        [
            fmean(scale.regret(past.course.value_at(share * span)) for past in group)
            for share, group in zip(SHARES, by_share, strict=True)
        ],
        used,
    )


def page(rows: Sequence[Row]) -> str:
    """Return what was found as the body of a page."""
    count = len({row.place.trace for row in rows})
    parts = [f"# Policies on {count} recorded traces", _METHOD.format(orders=len(rows[0].times))]
    asked = sorted({row.place.slots for row in rows})
    for slots in asked:
        here = [row for row in rows if row.place.slots == slots]
        parts += [f"## {slots} slots: summary over {count} traces", markdown(_summary(here))]
    for slots in asked:
        here = [row for row in rows if row.place.slots == slots]
        parts += [f"## {slots} slots: median time to target in simulated seconds"]
        parts += [markdown(_times(here))]
    return "\n\n".join(parts)


_METHOD = """Medians over {orders} orders, the same for all. Time to target: until the first
report that reaches the target in the trace's header, a value that about a tenth of its runs ever
reach; what is not reached within F, the median makespan of fifo, counts as F and as never (n✗).
Regret at 5, 10 and 25 % of F: (best possible - found) / (best possible - median final), 0 for the
best value in the whole trace, 1 for what a median run ends at; of the traces the median is given,
since where all runs end close together regret is large and a mean would be theirs alone. `pop` and
`hypersched` are told the deadline, and have a run for each. Slot time used: going for the best
value, up to F. *Fastest*: the fastest single run on one slot from the start, which nobody can know.
(oracle): with a curve model that knows the future, the bound for this policy with any other."""


def _summary(rows: Sequence[Row]) -> list[list[str]]:
    lines = [["policy (curve model)", "time to target, times the fastest (geometric mean)"]]
    lines[0] += ["worst trace, times its best policy", "never", "slot time used"]
    lines[0] += [f"regret at {share:.0%}" for share in SHARES]
    best = {
        place: min(median(row.times) for row in rows if row.place == place)
        for place in {row.place for row in rows}
    }
    for who in WHO:
        own = [row for row in rows if row.who == who]
        logs = [math.log(median(row.times) / _fastest(row.place)) for row in own]
        worst = max(median(row.times) / best[row.place] for row in own)
        never = sum(row.never for row in own)
        lines.append([str(who), f"{math.exp(fmean(logs)):.2f}", f"{worst:.1f}"])
        used = [row.used for row in own if row.used is not None]
        lines[-1] += [
            f"{never} of {sum(len(row.times) for row in own)}",
            f"{fmean(used):.0%}" if used else "",
        ]
        lines[-1] += [
            f"{median([row.regrets[at] for row in own]):.3f}" for at in range(len(SHARES))
        ]
    return lines


def _fastest(place: Place) -> float:
    target = trace_of(place.trace).header.target
    assert target is not None
    return fastest(place.trace, target)


def _times(rows: Sequence[Row]) -> list[list[str]]:
    lines = [["trace, target", "F", "fastest", *map(str, WHO)]]
    for place in dict.fromkeys(row.place for row in rows):
        own = {row.who: row for row in rows if row.place == place}
        target = trace_of(place.trace).header.target
        span = own[WHO[0]].makespan_s
        lines.append([f"{place.trace} {target:g}", f"{span:.4g}", f"{_fastest(place):.4g}"])
        lines[-1] += [_time(own[who]) for who in WHO]
    return lines


def _time(row: Row) -> str:
    return f"{median(row.times):.4g}" + (f" {row.never}✗" if row.never else "")


def plain(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return what was found as JSON has it."""
    return [
        {
            **row.place._asdict(),
            "policy": row.who.policy,
            "curves": row.who.curves or None,
            "makespan_s": row.makespan_s,
            "fastest_s": _fastest(row.place),
            "median_s": median(row.times),
            "never": row.never,
            "regret": dict(zip((f"{share:.0%}" for share in SHARES), row.regrets, strict=True)),
            "used": row.used,
        }
        for row in rows
    ]
