"""The figures of slots: how many are busy with what, and which attempt was where.

Knows how attempts that share a slot lie side by side. Does not fold a log.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from paceline.core.events import Cause
from paceline.plots.series import Levels, averaged, lanes, levels
from paceline.plots.style import (
    AXIS,
    GRID,
    NEUTRAL,
    SHADES,
    clock_axis,
    drawn,
    empty,
    human,
    many,
    plain,
    shade_key,
    slot_time,
    unit_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.analysis.timeline import AttemptPast, Chronicle

# More steps than this cannot be told apart: means are drawn instead.
MOST_STEPS = 800
MOST_BARS = 1200

_CAUSES = {
    Cause.GOAL: "reached its goal",
    Cause.FINISHED: "the training function returned",
    Cause.HALTED: "was ended at once",
    Cause.FAILED: "failed",
    Cause.LOST: "was lost",
    Cause.CROWDED: "found no memory on a slot it shared",
}


def busy_slots(chronicle: Chronicle) -> Levels:
    """Return the busy slots by the shade of the trial they worked for, in the order of SHADES."""
    changes: dict[str, list[tuple[float, float]]] = {shade.key: [] for shade in SHADES}
    for attempt in chronicle.attempts:
        key = shade_key(chronicle.trials[attempt.trials[-1]], chronicle)
        changes[key].append((attempt.began_at, attempt.width))
        if attempt.ended_at is not None:
            changes[key].append((attempt.ended_at, -attempt.width))
    return levels(list(changes.values()), chronicle.now)


def capacity_steps(chronicle: Chronicle) -> Levels:
    """Return the slots there were."""
    before = 0
    changes = []
    for at, slots in chronicle.capacity:
        changes.append((at, float(slots - before)))
        before = slots
    return levels([changes], chronicle.now)


def slots_over_time(chronicle: Chronicle) -> go.Figure:
    """Draw how many slots there were, and what the busy ones worked for."""
    title = "Slots over time"
    busy = busy_slots(chronicle)
    if not chronicle.attempts or chronicle.now <= 0:
        return empty(title, "No attempt has been launched yet.")
    unit = unit_of(chronicle.now)
    shown = averaged(busy, MOST_STEPS)
    xs = [at / unit.seconds for at in shown.times]
    traces = []
    for shade, row in zip(SHADES, shown.rows, strict=True):
        if any(row):
            traces.append(
                go.Scatter(
                    x=xs,
                    y=[round(level, 4) for level in [*row, row[-1]]],
                    name=shade.label,
                    mode="lines",
                    line={"shape": "hv", "width": 0, "color": shade.colour},
                    fillcolor=shade.colour,
                    stackgroup="busy",
                    hovertemplate=f"%{{y:.3g}} {shade.label}<extra></extra>",
                )
            )
    there = capacity_steps(chronicle)
    traces.append(
        go.Scatter(
            x=[at / unit.seconds for at in there.times],
            y=[*there.rows[0], there.rows[0][-1]],
            name="all slots",
            mode="lines",
            line={"shape": "hv", "width": 1.6, "color": NEUTRAL},
            hovertemplate="%{y} slots in all<extra></extra>",
        )
    )
    return drawn(
        traces,
        title=title,
        subtitle=_busy_words(chronicle, shown.bin_s),
        xaxis=clock_axis(unit, chronicle.now),
        yaxis=dict(
            AXIS,
            title={"text": "slots"},
            rangemode="tozero",
            **({"dtick": 1} if max(slots for _, slots in chronicle.capacity) <= 6 else {}),
        ),
        hovermode="x unified",
    )


def attempts_gantt(chronicle: Chronicle) -> go.Figure:
    """Draw every attempt as a bar on its slots."""
    title = "Attempts on their slots"
    if not chronicle.attempts or chronicle.now <= 0:
        return empty(title, "No attempt has been launched yet.")
    unit = unit_of(chronicle.now)
    bars = _bars(chronicle)
    shown = sorted(bars, key=lambda bar: (bar.begin - bar.end, bar.slot))[:MOST_BARS]
    groups: dict[str, list[_Bar]] = defaultdict(list)
    for bar in shown:
        groups[shade_key(chronicle.trials[bar.attempt.trials[-1]], chronicle)].append(bar)
    traces = [
        _bar_trace(groups[shade.key], shade.label, shade.colour, unit.seconds)
        for shade in SHADES
        if groups[shade.key]
    ]
    slots = sorted({bar.slot for bar in bars})
    words = ["hatched: failed or lost"] if any(bar.broken for bar in shown) else []
    if len(shown) < len(bars):
        words.insert(0, f"the longest {len(shown):,} of {many(len(bars), 'attempt')}")
        traces.insert(0, _short_trace(_runs(bars, shown), unit.seconds))
    return drawn(
        traces,
        title=title,
        subtitle="; ".join(words),
        height=min(760, max(220, 130 + 26 * (slots[-1] - slots[0] + 1))),
        xaxis=clock_axis(unit, chronicle.now),
        yaxis=dict(
            AXIS,
            title={"text": "slot"},
            range=[slots[-1] + 0.6, slots[0] - 0.6],
            tickformat="d",
            **({"dtick": 1} if slots[-1] - slots[0] < 24 else {}),
        ),
        barmode="overlay",
        bargap=0,
        hovermode="closest",
    )


class _Bar:
    """An attempt on one of its slots."""

    __slots__ = ("attempt", "begin", "end", "lane", "slot")

    def __init__(self, attempt: AttemptPast, slot: int, now: float) -> None:
        self.attempt = attempt
        self.slot = slot
        self.begin = attempt.began_at
        self.end = now if attempt.ended_at is None else attempt.ended_at
        # Which part of a shared slot it lies on.
        self.lane = 0

    @property
    def broken(self) -> bool:
        return self.attempt.cause in (Cause.FAILED, Cause.LOST, Cause.CROWDED)

    @property
    def height(self) -> float:
        return min(1.0, self.attempt.width)

    @property
    def middle(self) -> float:
        above = min(self.lane * self.height, 1.0 - self.height)
        return self.slot - 0.5 + above + 0.5 * self.height


def _bars(chronicle: Chronicle) -> list[_Bar]:
    bars = [
        _Bar(attempt, slot, chronicle.now)
        for attempt in chronicle.attempts
        for slot in attempt.slots
    ]
    by_slot: dict[int, list[_Bar]] = defaultdict(list)
    for bar in bars:
        by_slot[bar.slot].append(bar)
    for mates in by_slot.values():
        for bar, lane in zip(mates, lanes([(bar.begin, bar.end) for bar in mates]), strict=True):
            bar.lane = lane
    return bars


def _bar_trace(bars: Sequence[_Bar], label: str, colour: str, unit_s: float) -> go.Bar:
    return go.Bar(
        orientation="h",
        base=[round(bar.begin / unit_s, 6) for bar in bars],
        x=[round((bar.end - bar.begin) / unit_s, 6) for bar in bars],
        y=[round(bar.middle, 3) for bar in bars],
        width=[round(0.82 * bar.height, 3) for bar in bars],
        name=label,
        marker={
            "color": colour,
            # Attempts that follow each other on a slot are told apart.
            "line": {"width": 1 if len(bars) < 300 else 0.5, "color": "rgba(255,255,255,0.7)"},
            "pattern": {
                "shape": ["/" if bar.broken else "" for bar in bars],
                "fgcolor": "#ffffff",
                "fillmode": "overlay",
                "size": 5,
                "solidity": 0.35,
            },
        },
        customdata=[[bar.attempt.trials[-1]] for bar in bars],
        hovertext=[_bar_words(bar) for bar in bars],
        hovertemplate="%{hovertext}<extra></extra>",
        textposition="none",
    )


def _runs(bars: Sequence[_Bar], shown: Sequence[_Bar]) -> list[list[_Bar]]:
    """Return those that are not shown, in runs that follow each other on a slot."""
    singled = set(map(id, shown))
    runs: list[list[_Bar]] = []
    for bar in sorted(bars, key=lambda bar: (bar.slot, bar.lane, bar.begin, bar.end)):
        if id(bar) in singled:
            runs.append([])
            continue
        last = runs[-1][-1] if runs and runs[-1] else None
        if last is None or (last.slot, last.lane, last.end) != (bar.slot, bar.lane, bar.begin):
            runs.append([])
        runs[-1].append(bar)
    return [run for run in runs if run]


def _short_trace(runs: Sequence[Sequence[_Bar]], unit_s: float) -> go.Bar:
    """Return a bar for each run, so that a slot with many short attempts does not look idle."""
    firsts = [run[0] for run in runs]
    return go.Bar(
        orientation="h",
        base=[round(bar.begin / unit_s, 6) for bar in firsts],
        x=[round((run[-1].end - run[0].begin) / unit_s, 6) for run in runs],
        y=[round(bar.middle, 3) for bar in firsts],
        width=[round(0.82 * bar.height, 3) for bar in firsts],
        name="many short ones",
        marker={"color": GRID, "line": {"width": 0}},
        hovertext=[
            f"{many(len(run), 'short attempt')}<br>{human(run[0].begin)} to {human(run[-1].end)}"
            for run in runs
        ],
        hovertemplate="%{hovertext}<extra></extra>",
        textposition="none",
    )


def _bar_words(bar: _Bar) -> str:
    attempt = bar.attempt
    for_whom = ", then ".join(map(str, attempt.trials[:4])) + (
        ", …" if len(attempt.trials) > 4 else ""
    )
    trained = attempt.epoch - attempt.start
    epochs = (
        f"epochs {attempt.start + 1} to {attempt.epoch}" if trained else "no epoch was finished"
    )
    end = "is running" if attempt.cause is None else _CAUSES[attempt.cause]
    note = f"<br>{plain(attempt.note, 80)}" if attempt.note else ""
    width = "" if attempt.width == 1 else f", width {attempt.width:.3g}"
    return (
        f"attempt {attempt.attempt} of trial {for_whom}{width}<br>{epochs}<br>"
        f"{human(bar.begin)} to {human(bar.end)} ({human(bar.end - bar.begin)})<br>{end}{note}"
    )


def _busy_words(chronicle: Chronicle, bin_s: float | None) -> str:
    used, offered = chronicle.study.slot_seconds, chronicle.capacity_seconds
    words = slot_time(used)
    if offered > 0:
        words += f", {used / offered:.0%} of what there was"
    words += "; by what became of the trials"
    return words if bin_s is None else f"{words}; means over {human(bin_s)}"
