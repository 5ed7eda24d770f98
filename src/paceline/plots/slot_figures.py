"""The figures of slots: the busy slots over time, and the attempts on each slot.

Attempts that share a slot are drawn side by side. Folds no log.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from paceline.core.events import Cause
from paceline.core.text import format_count, format_duration, format_slot_time
from paceline.plots.series import Levels, assign_lanes, average_levels, sum_levels
from paceline.plots.style import (
    AXIS,
    GRID,
    NEUTRAL,
    SHADES,
    choose_unit,
    escape_text,
    find_shade_key,
    make_clock_axis,
    make_empty_figure,
    make_figure,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.analysis.timeline import AttemptTimeline, Timeline

# More steps cannot be distinguished: means are drawn instead.
MOST_STEPS = 800
MOST_BARS = 1200

_CAUSES = {
    Cause.GOAL: "reached its goal",
    Cause.FINISHED: "the training function returned",
    Cause.PRUNED: "the training function raised TrialPruned",
    Cause.HALTED: "was halted",
    Cause.FAILED: "failed",
    Cause.LOST: "was lost",
    Cause.CROWDED: "ran out of memory on a shared slot",
}


def count_busy_slots(timeline: Timeline) -> Levels:
    """Return the busy slots by the shade of their trial, in the order of SHADES."""
    changes: dict[str, list[tuple[float, float]]] = {shade.key: [] for shade in SHADES}
    for attempt in timeline.attempts:
        key = find_shade_key(timeline.trials[attempt.trials[-1]], timeline)
        changes[key].append((attempt.started_at, attempt.width))
        if attempt.ended_at is not None:
            changes[key].append((attempt.ended_at, -attempt.width))
    return sum_levels(list(changes.values()), timeline.now)


def count_slots(timeline: Timeline) -> Levels:
    """Return the number of slots over time."""
    before = 0
    changes = []
    for at, slots in timeline.capacity:
        changes.append((at, float(slots - before)))
        before = slots
    return sum_levels([changes], timeline.now)


def draw_slots(timeline: Timeline) -> go.Figure:
    """Draw the slots over time, the busy ones by the shade of their trial."""
    title = "Slots over time"
    busy = count_busy_slots(timeline)
    if not timeline.attempts or timeline.now <= 0:
        return make_empty_figure(title, "No attempt has been launched yet.")
    unit = choose_unit(timeline.now)
    shown = average_levels(busy, MOST_STEPS)
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
    capacity = count_slots(timeline)
    traces.append(
        go.Scatter(
            x=[at / unit.seconds for at in capacity.times],
            y=[*capacity.rows[0], capacity.rows[0][-1]],
            name="all slots",
            mode="lines",
            line={"shape": "hv", "width": 1.6, "color": NEUTRAL},
            hovertemplate="%{y} slots in all<extra></extra>",
        )
    )
    return make_figure(
        traces,
        title=title,
        subtitle=_describe_use(timeline, shown.bin_s),
        xaxis=make_clock_axis(unit, timeline.now),
        yaxis=dict(
            AXIS,
            title={"text": "slots"},
            rangemode="tozero",
            **({"dtick": 1} if max(slots for _, slots in timeline.capacity) <= 6 else {}),
        ),
        hovermode="x unified",
    )


def draw_attempts(timeline: Timeline) -> go.Figure:
    """Draw every attempt as a bar on its slots."""
    title = "Attempts on their slots"
    if not timeline.attempts or timeline.now <= 0:
        return make_empty_figure(title, "No attempt has been launched yet.")
    unit = choose_unit(timeline.now)
    bars = _make_bars(timeline)
    shown = sorted(bars, key=lambda bar: (bar.begin - bar.end, bar.slot))[:MOST_BARS]
    groups: dict[str, list[_Bar]] = defaultdict(list)
    for bar in shown:
        groups[find_shade_key(timeline.trials[bar.attempt.trials[-1]], timeline)].append(bar)
    traces = [
        _draw_bars(groups[shade.key], shade.label, shade.colour, unit.seconds)
        for shade in SHADES
        if groups[shade.key]
    ]
    slots = sorted({bar.slot for bar in bars})
    notes = ["hatched: failed or lost"] if any(bar.is_broken for bar in shown) else []
    if len(shown) < len(bars):
        notes.insert(0, f"the longest {len(shown):,} of {format_count(len(bars), 'attempt')}")
        traces.insert(0, _draw_runs(_group_hidden(bars, shown), unit.seconds))
    return make_figure(
        traces,
        title=title,
        subtitle="; ".join(notes),
        height=min(760, max(220, 130 + 26 * (slots[-1] - slots[0] + 1))),
        xaxis=make_clock_axis(unit, timeline.now),
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

    def __init__(self, attempt: AttemptTimeline, slot: int, now: float) -> None:
        self.attempt = attempt
        self.slot = slot
        self.begin = attempt.started_at
        self.end = now if attempt.ended_at is None else attempt.ended_at
        # Its part of a shared slot.
        self.lane = 0

    @property
    def is_broken(self) -> bool:
        return self.attempt.cause in (Cause.FAILED, Cause.LOST, Cause.CROWDED)

    @property
    def height(self) -> float:
        return min(1.0, self.attempt.width)

    @property
    def middle(self) -> float:
        above = min(self.lane * self.height, 1.0 - self.height)
        return self.slot - 0.5 + above + 0.5 * self.height


def _make_bars(timeline: Timeline) -> list[_Bar]:
    bars = [
        _Bar(attempt, slot, timeline.now) for attempt in timeline.attempts for slot in attempt.slots
    ]
    by_slot: dict[int, list[_Bar]] = defaultdict(list)
    for bar in bars:
        by_slot[bar.slot].append(bar)
    for bars_of_slot in by_slot.values():
        for bar, lane in zip(
            bars_of_slot, assign_lanes([(bar.begin, bar.end) for bar in bars_of_slot]), strict=True
        ):
            bar.lane = lane
    return bars


def _draw_bars(bars: Sequence[_Bar], label: str, colour: str, unit_s: float) -> go.Bar:
    return go.Bar(
        orientation="h",
        base=[round(bar.begin / unit_s, 6) for bar in bars],
        x=[round((bar.end - bar.begin) / unit_s, 6) for bar in bars],
        y=[round(bar.middle, 3) for bar in bars],
        width=[round(0.82 * bar.height, 3) for bar in bars],
        name=label,
        marker={
            "color": colour,
            # Separates successive attempts on a slot.
            "line": {"width": 1 if len(bars) < 300 else 0.5, "color": "rgba(255,255,255,0.7)"},
            "pattern": {
                "shape": ["/" if bar.is_broken else "" for bar in bars],
                "fgcolor": "#ffffff",
                "fillmode": "overlay",
                "size": 5,
                "solidity": 0.35,
            },
        },
        customdata=[[bar.attempt.trials[-1]] for bar in bars],
        hovertext=[_describe_bar(bar) for bar in bars],
        hovertemplate="%{hovertext}<extra></extra>",
        textposition="none",
    )


def _group_hidden(bars: Sequence[_Bar], shown: Sequence[_Bar]) -> list[list[_Bar]]:
    """Return the bars that are not shown, in runs of successive ones on a slot."""
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


def _draw_runs(runs: Sequence[Sequence[_Bar]], unit_s: float) -> go.Bar:
    """Return a bar for each run, so that a slot with many short attempts does not look idle."""
    firsts = [run[0] for run in runs]
    return go.Bar(
        orientation="h",
        base=[round(bar.begin / unit_s, 6) for bar in firsts],
        x=[round((run[-1].end - run[0].begin) / unit_s, 6) for run in runs],
        y=[round(bar.middle, 3) for bar in firsts],
        width=[round(0.82 * bar.height, 3) for bar in firsts],
        name="many short attempts",
        marker={"color": GRID, "line": {"width": 0}},
        hovertext=[
            f"{format_count(len(run), 'short attempt')}<br>"
            f"{format_duration(run[0].begin)} to {format_duration(run[-1].end)}"
            for run in runs
        ],
        hovertemplate="%{hovertext}<extra></extra>",
        textposition="none",
    )


def _describe_bar(bar: _Bar) -> str:
    attempt = bar.attempt
    trials = ", then ".join(map(str, attempt.trials[:4])) + (
        ", …" if len(attempt.trials) > 4 else ""
    )
    trained = attempt.epoch - attempt.start
    epochs = (
        f"epochs {attempt.start + 1} to {attempt.epoch}" if trained else "no epoch was finished"
    )
    end = "is running" if attempt.cause is None else _CAUSES[attempt.cause]
    note = f"<br>{escape_text(attempt.note, 80)}" if attempt.note else ""
    width = "" if attempt.width == 1 else f", width {attempt.width:.3g}"
    return (
        f"attempt {attempt.attempt} of trial {trials}{width}<br>{epochs}<br>"
        f"{format_duration(bar.begin)} to {format_duration(bar.end)} "
        f"({format_duration(bar.end - bar.begin)})<br>{end}{note}"
    )


def _describe_use(timeline: Timeline, bin_s: float | None) -> str:
    used, offered = timeline.study.slot_seconds, timeline.capacity_seconds
    notes = format_slot_time(used)
    if offered > 0:
        notes += f", {used / offered:.0%} of all slot time"
    notes += "; by status of the trial"
    return notes if bin_s is None else f"{notes}; means over {format_duration(bin_s)}"
