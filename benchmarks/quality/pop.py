"""POP on the workload of its paper: CIFAR-10, 14 hyperparameters, recorded for this purpose.

Knows the policies and figures of the paper, and how to compare: means over paired orders, the share
of the perfect forecaster's gain, slots, and the spread over orders.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.page import format_table
from benchmarks.quality.runs import (
    SimulatedRun,
    find_source,
    loss_sign,
    measure_makespans,
    median,
    simulate_runs,
)
from paceline.api.comparison import quantile
from paceline.api.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Sequence

TRACE = "cifar10_cnn14"
SLOTS, ORDERS, TARGETS = 4, 100, (0.74, 0.72)
# The paper's Figure 12: 25 orders on 5 machines, the longest time to target less the shortest.
SPREAD_SLOTS, SPREAD_ORDERS = 5, 25
MANY_SLOTS, MANY_ORDERS = (1, 2, 4, 5, 8, 12, 16, 20, 25), 50
# At least this share of what a perfect forecast gains.
SHARE = 0.6


class Contender(NamedTuple):
    """A policy with its curve model, if it uses forecasts."""

    policy: str
    curves: str = ""

    def __str__(self) -> str:
        return f"{self.policy} ({self.curves})" if self.curves else self.policy


FIFO, BANDIT = Contender("fifo"), Contender("bandit")
TERM, TERM_ORACLE = Contender("early_term", "pfn"), Contender("early_term", "oracle")
POP, POP_ORACLE = Contender("pop", "pfn"), Contender("pop", "oracle")
CONTENDERS = (FIFO, BANDIT, TERM, TERM_ORACLE, POP, POP_ORACLE)
# Times to target over POP's in the paper, and max less min over 25 orders, in hours.
PAPER = {BANDIT: "1.6", TERM: "2.1", FIFO: "6.7 at most (random or grid)"}
PAPER_HOURS = {POP: 4.05, BANDIT: 8.33, TERM: 8.50, FIFO: 25.74}


class TargetTimes(NamedTuple):
    """Times to a target over paired orders."""

    contender: Contender
    target: float
    slots: int
    times: list[float]

    @property
    def mean(self) -> float:
        """The mean time."""
        return fmean(self.times)

    def at(self, share: float) -> float:
        """Return a quantile of the times."""
        return quantile(sorted(self.times), share)


class PopResults(NamedTuple):
    """All figures of this part."""

    races: list[TargetTimes]
    by_slots: list[TargetTimes]
    by_order: list[TargetTimes]


def run() -> PopResults:
    """Run all policies."""
    races = [(contender, target, SLOTS) for target in TARGETS for contender in CONTENDERS]
    many = [(contender, TARGETS[0], slots) for slots in MANY_SLOTS for contender in CONTENDERS]
    spread = [(contender, TARGETS[0], SPREAD_SLOTS) for contender in CONTENDERS]
    return PopResults(
        _measure_times(races, ORDERS, "pop"),
        _measure_times(many, MANY_ORDERS, "pop, 1 to 25 slots"),
        _measure_times(spread, SPREAD_ORDERS, "pop, orders"),
    )


def _measure_times(
    asked: Sequence[tuple[Contender, float, int]], orders: int, what: str
) -> list[TargetTimes]:
    runs = [
        Simulation(
            source=find_source(TRACE),
            policy=contender.policy,
            curves=contender.curves or "last",
            slots=slots,
            target=target,
            seed=seed,
        )
        for contender, target, slots in asked
        for seed in range(orders)
    ]
    done = simulate_runs(runs, what)

    limits = measure_makespans((TRACE, slots) for _, _, slots in asked)

    def time(past: SimulatedRun, target: float, slots: int) -> float:
        return past.time_to(target, loss_sign(TRACE), limits[TRACE, slots])

    return [
        TargetTimes(
            contender, target, slots, [time(past, target, slots) for past in done[at : at + orders]]
        )
        for (contender, target, slots), at in zip(asked, range(0, len(done), orders), strict=True)
    ]


def make_page(found: PopResults) -> str:
    """Return the body of the page."""
    parts = ["# POP on cifar10_cnn14, the workload of its paper", _format_verdicts(found)]
    for target in TARGETS:
        races = {race.contender: race for race in found.races if race.target == target}
        parts += [
            f"## Target {target:g}, {SLOTS} slots, {ORDERS} paired orders",
            _race_table(races),
        ]
    parts += [
        _LIMITS,
        f"## Slots: mean time to {TARGETS[0]:g} over {MANY_ORDERS} orders, in seconds",
        _slot_table(found.by_slots),
        f"## Orders: longest less shortest time to {TARGETS[0]:g}, as in the paper's Figure 12",
        _order_table(found.by_order),
        f"{SPREAD_ORDERS} orders on {SPREAD_SLOTS} slots. A spread in simulated seconds means "
        "nothing beside one in hours; its ratio to POP's does.",
    ]
    return "\n\n".join(parts)


def _format_verdicts(found: PopResults) -> str:
    kept = []
    for target in TARGETS:
        races = {race.contender: race for race in found.races if race.target == target}
        shares = {contender: _share_of_gain(races, contender) for contender in (FIFO, BANDIT, TERM)}
        ahead = all(races[POP].mean < races[contender].mean for contender in shares)
        least = min(shares.values())
        kept.append(
            f"target {target:g}: POP is {'' if ahead else 'not '}ahead of fifo, bandit and "
            f"early_term in the mean, with at least {least:.0%} of the gain that a perfect "
            f"forecast has over each (asked: {SHARE:.0%})"
        )
    return "; ".join(kept).capitalize() + "."


def _share_of_gain(races: dict[Contender, TargetTimes], over: Contender) -> float:
    """Return POP's share of the perfect forecaster's gain over another policy."""
    base = races[over].mean
    return (base - races[POP].mean) / (base - races[POP_ORACLE].mean)


def _race_table(races: dict[Contender, TargetTimes]) -> str:
    head = ["policy (curve model)", "mean, s", "median", "p10", "p90", "mean / POP's"]
    lines = [[*head, "paper", "share of the perfect forecast's gain"]]
    for contender, race in races.items():
        numbers = [race.mean, median(race.times), race.at(0.1), race.at(0.9)]
        share = "" if contender.policy == "pop" else f"{_share_of_gain(races, contender):.0%}"
        ratio = f"{race.mean / races[POP].mean:.2f}"
        lines.append([str(contender), *(f"{each:.1f}" for each in numbers), ratio])
        lines[-1] += [PAPER.get(contender, ""), share]
    return format_table(lines)


_LIMITS = f"""What limits the ratios here? A perfect forecast does not reach the paper's either, so
the forecasts are not the limit: (1) only 3 of 100 runs reach {TARGETS[0]:g}, so most of the
time goes into finding one, and every policy judges a trial for the first time after a tenth
of its epochs; POP can only save what comes after. A rule that knew all of a curve after its first
tenth (`peek10` of the anchors) would be 1.5 times as fast as Bandit to 0.74 in the median, and 1.2
times to 0.72. (2) Bandit and EarlyTerm judge at each tenth here
as POP does; the paper's EarlyTerm judges after 30 of 120 epochs, since its forecasts take minutes.
(3) With values above 0.1 from the start, Bandit's factor of 1.5 stops the runs at chance, a third
of all, at its first decision, as POP does. (4) The paper's 6.7x is its best case over random or
grid search, not its mean."""


def _slot_table(many: Sequence[TargetTimes]) -> str:
    by = {(each.slots, each.contender): each.mean for each in many}
    lines = [["slots", *map(str, CONTENDERS), "bandit / POP", "early_term / POP", "fifo / POP"]]
    for slots in MANY_SLOTS:
        means = [by[slots, contender] for contender in CONTENDERS]
        ratios = [by[slots, contender] / by[slots, POP] for contender in (BANDIT, TERM, FIFO)]
        lines.append([str(slots), *(f"{mean:.1f}" for mean in means)])
        lines[-1] += [f"{ratio:.2f}" for ratio in ratios]
    return format_table(lines)


def _order_table(spread: Sequence[TargetTimes]) -> str:
    widths = {each.contender: max(each.times) - min(each.times) for each in spread}
    head = ["policy (curve model)", "shortest, s", "longest, s", "spread, s", "/ POP's"]
    lines = [[*head, "paper's spread, h", "/ POP's, paper"]]
    for each in spread:
        width, hours = widths[each.contender], PAPER_HOURS.get(each.contender)
        paper_cells = (
            ["", ""] if hours is None else [f"{hours:.2f}", f"{hours / PAPER_HOURS[POP]:.1f}"]
        )
        ends = [f"{min(each.times):.1f}", f"{max(each.times):.1f}", f"{width:.1f}"]
        lines.append([str(each.contender), *ends, f"{width / widths[POP]:.1f}", *paper_cells])
    return format_table(lines)


def to_json(found: PopResults) -> dict[str, list[dict[str, Any]]]:
    """Return the results as JSON values."""
    return {
        name: [
            {
                "policy": each.contender.policy,
                "curves": each.contender.curves or None,
                "target": each.target,
                "slots": each.slots,
                "mean_s": each.mean,
                "median_s": median(each.times),
                "times_s": [round(time, 3) for time in each.times],
            }
            for each in part
        ]
        for name, part in found._asdict().items()
    }
