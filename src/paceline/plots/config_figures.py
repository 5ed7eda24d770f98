"""The figures of configs and of trial lengths: parallel coordinates and histograms.

Parallel coordinates are drawn as plain lines, which need no WebGL and can name the trial under the
pointer. Folds no log.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from paceline.core.text import format_count, format_duration, truncate_middle
from paceline.plots.config_axes import ConfigAxis, find_axes
from paceline.plots.series import sample_evenly
from paceline.plots.style import (
    ACCENT,
    AXIS,
    GRID,
    SHADES,
    choose_unit,
    escape_text,
    find_shade_key,
    make_empty_figure,
    make_figure,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.analysis.timeline import Timeline, TrialTimeline

MOST_DIMENSIONS = 12
MOST_LINES = 240
_BINS = 24

# (upper share of the ranking, name, colour, opacity, width), worst first.
_RANKS = (
    (1.0, "the worse half", "#a1a9b2", 0.45, 1.0),
    (0.5, "the better half", "#a5c9ea", 0.75, 1.1),
    (0.25, "the best quarter", "#5fa5df", 0.85, 1.3),
    (0.1, "the best tenth", ACCENT, 1.0, 1.8),
)


def draw_configs(timeline: Timeline) -> go.Figure:
    """Draw each config as a line through its values, coloured by the rank of its best value."""
    title, sign = "Configs", timeline.spec.sign
    reported = [trial for trial in timeline.trials if trial.best is not None]
    if not reported:
        return make_empty_figure(title, "No trial has reported a number yet.")
    if len(reported) == 1:
        return make_empty_figure(
            title, "One trial has reported a number: there is nothing to compare yet."
        )
    # An even sample of the ranking, the best first: its best tenth is that of all trials.
    ranked = sorted(reported, key=lambda t: (sign * (t.best or 0.0), t.trial))
    shown = sample_evenly(ranked, MOST_LINES)
    found = find_axes([trial.config for trial in shown], MOST_DIMENSIONS)
    if not found:
        return make_empty_figure(title, "All configs are the same, or differ only in names.")
    values = find_axes([{"best": trial.best} for trial in shown], 1)
    axes = [*found, *values]
    names = [_name_axis(each) for each in found]
    if values:
        names.append(f"best {escape_text(timeline.spec.metric, 24)}")
    notes = []
    if len(shown) < len(reported):
        notes.append(f"{len(shown)} of {format_count(len(reported), 'trial')}, evenly by rank")
    if any(each.has_schedule for each in found):
        notes.append("a schedule is drawn at its first value")
    return make_figure(
        _draw_ranks(shown, axes),
        title=title,
        subtitle="; ".join(notes),
        height=420,
        margin={"l": 16, "r": 16, "t": 76, "b": 34},
        xaxis={
            "tickvals": list(range(len(axes))),
            "ticktext": names,
            "range": [-0.35, len(axes) - 0.65],
            "showgrid": False,
            "showline": False,
            "zeroline": False,
            "automargin": True,
            "fixedrange": True,
        },
        yaxis={"visible": False, "range": [-0.06, 1.06], "fixedrange": True},
        hovermode="closest",
        shapes=[_draw_axis(at) for at in range(len(axes))],
        annotations=[
            _draw_tick(at, position, truncate_middle(text, 130 // len(axes)))
            for at, axis in enumerate(axes)
            for position, text in axis.ticks
        ],
    )


def _draw_axis(at: int) -> dict[str, Any]:
    ends = {"x0": at, "x1": at, "y0": 0, "y1": 1}
    return {"type": "line", **ends, "layer": "below", "line": {"color": GRID, "width": 2}}


def _draw_tick(at: int, position: float, text: str) -> dict[str, Any]:
    return {
        "x": at,
        "y": position,
        "text": escape_text(text),
        "showarrow": False,
        "xanchor": "left",
        "xshift": 4,
        "font": {"size": 10.5},
        "opacity": 0.85,
    }


def _name_axis(dimension: ConfigAxis) -> str:
    return escape_text(dimension.name, 24) + (" (first)" if dimension.has_schedule else "")


def _draw_ranks(trials: Sequence[TrialTimeline], axes: Sequence[ConfigAxis]) -> list[Any]:
    """Return a trace for each rank group; trials are ordered best first."""
    groups: dict[str, list[int]] = {name: [] for _, name, *_ in _RANKS}
    for index in range(len(trials)):
        # The best trial is in the best group, however few there are.
        share = index / len(trials)
        groups[[name for upto, name, *_ in _RANKS if share < upto][-1]].append(index)
    traces = []
    for _, name, colour, opacity, width in _RANKS:
        if groups[name]:
            line = {"color": colour, "width": width}
            traces.append(_draw_rank(groups[name], trials, axes, name, line))
            traces[-1].opacity = opacity
    best = _draw_rank([0], trials, axes, f"the best: trial {trials[0].trial}", {})
    best.line = {"color": ACCENT, "width": 4}
    return [*traces, best]


def _draw_rank(
    group: Sequence[int],
    trials: Sequence[TrialTimeline],
    axes: Sequence[ConfigAxis],
    name: str,
    line: dict[str, Any],
) -> go.Scatter:
    xs: list[int | None] = []
    ys: list[float | None] = []
    labels: list[list[Any] | None] = []
    for index in group:
        for at, axis in enumerate(axes):
            place = axis.positions[index]
            xs.append(at)
            ys.append(None if place is None else round(place, 4))
            label = escape_text(axis.name, 24) if at < len(axes) - 1 else "best"
            labels.append([trials[index].trial, f"{label}: {escape_text(axis.texts[index], 40)}"])
        xs.append(None)
        ys.append(None)
        labels.append(None)
    return go.Scatter(
        x=xs,
        y=ys,
        mode="lines",
        name=name,
        line=line,
        customdata=labels,
        hovertemplate="trial %{customdata[0]}<br>%{customdata[1]}<extra></extra>",
    )


def draw_epochs_per_trial(timeline: Timeline) -> go.Figure:
    """Draw the distribution of epochs per trial."""
    title = "How far trials got"
    counts = [float(trial.epochs) for trial in timeline.trials]
    if not any(counts):
        return make_empty_figure(title, "No trial has reported yet.")
    size = max(1, math.ceil((max(counts) + 1) / _BINS))
    # The last bin ends at the largest number of epochs.
    end = max(counts) + 0.5
    start = end - size * math.ceil((max(counts) + 1) / size)
    return _draw_histogram(
        timeline,
        counts,
        {"start": start, "end": end, "size": size},
        title=title,
        axis="epochs trained",
        subtitle=f"the median trial has {format_count(int(_find_median(counts)), 'epoch')}",
    )


def draw_time_per_trial(timeline: Timeline) -> go.Figure:
    """Draw the distribution of training time per trial."""
    title = "How long trials trained"
    took = [trial.seconds for trial in timeline.trials]
    if not any(took):
        return make_empty_figure(title, "No trial has reported yet.")
    unit = choose_unit(max(took))
    longest = max(took) / unit.seconds
    shared = "; an epoch that several share counts for each" if timeline.spec.share else ""
    return _draw_histogram(
        timeline,
        [seconds / unit.seconds for seconds in took],
        {"start": 0.0, "end": longest * (1 + 1 / _BINS), "size": longest / _BINS},
        title=title,
        axis=f"time in epochs ({unit.name})",
        subtitle=f"the median trial trained for {format_duration(_find_median(took))}{shared}",
    )


def _draw_histogram(
    timeline: Timeline,
    numbers: Sequence[float],
    bins: dict[str, float],
    *,
    title: str,
    axis: str,
    subtitle: str,
) -> go.Figure:
    keys = [find_shade_key(trial, timeline) for trial in timeline.trials]
    traces = []
    for shade in SHADES:
        mine = [number for number, key in zip(numbers, keys, strict=True) if key == shade.key]
        if mine:
            traces.append(
                go.Histogram(
                    x=[float(f"{number:.6g}") for number in mine],
                    xbins=bins,
                    autobinx=False,
                    name=shade.label,
                    marker={"color": shade.colour},
                    hovertemplate=f"%{{y}} {shade.label}<br>%{{x}}<extra></extra>",
                )
            )
    return make_figure(
        traces,
        title=title,
        subtitle=subtitle,
        height=300,
        barmode="stack",
        bargap=0.06,
        xaxis=dict(AXIS, title={"text": axis}, range=[bins["start"], bins["end"]], showgrid=False),
        yaxis=dict(
            AXIS,
            title={"text": "trials"},
            **({"dtick": 1} if len(numbers) <= 5 else {}),
        ),
        hovermode="closest",
    )


def _find_median(numbers: Sequence[float]) -> float:
    return sorted(numbers)[len(numbers) // 2]
