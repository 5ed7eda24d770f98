"""The figures of configs and of trials' lengths: parallel coordinates and distributions.

Knows how trials are ranked into groups. Drawn as plain lines, so that no graphics hardware is
needed and every line can say which trial it is. Does not fold a log.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from paceline.plots.dimensions import Dimension, dimensions
from paceline.plots.series import spread
from paceline.plots.style import (
    ACCENT,
    AXIS,
    GRID,
    SHADES,
    drawn,
    empty,
    human,
    many,
    plain,
    shade_key,
    shortened,
    unit_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.analysis.timeline import Chronicle, TrialPast

MOST_DIMENSIONS = 12
MOST_LINES = 240
_BINS = 24

# (up to which share of the ranking, name, colour, opacity, width), worst first.
_RANKS = (
    (1.0, "the worse half", "#a1a9b2", 0.45, 1.0),
    (0.5, "the better half", "#a5c9ea", 0.75, 1.1),
    (0.25, "the best quarter", "#5fa5df", 0.85, 1.3),
    (0.1, "the best tenth", ACCENT, 1.0, 1.8),
)


def parallel_configs(chronicle: Chronicle) -> go.Figure:
    """Draw every config as a line through its values, coloured by the rank of its best value."""
    title, sign = "Configs", chronicle.spec.sign
    told = [trial for trial in chronicle.trials if trial.best is not None]
    if not told:
        return empty(title, "No trial has reported a number yet.")
    if len(told) == 1:
        return empty(title, "One trial has reported a number: there is nothing to compare yet.")
    # An even sample of the ranking, the best first: a tenth of it is a tenth of them all.
    ranked = sorted(told, key=lambda t: (sign * (t.best or 0.0), t.trial))
    shown = spread(ranked, MOST_LINES)
    found = dimensions([trial.config for trial in shown], MOST_DIMENSIONS)
    if not found:
        return empty(title, "All configs are the same, or differ only in names.")
    values = dimensions([{"best": trial.best} for trial in shown], 1)
    axes = [*found, *values]
    names = [_axis_name(each) for each in found]
    if values:
        names.append(f"best {plain(chronicle.spec.metric, 24)}")
    words = []
    if len(shown) < len(told):
        words.append(f"{len(shown)} of {many(len(told), 'trial')}, evenly by rank")
    if any(each.scheduled for each in found):
        words.append("a schedule stands at its first value")
    return drawn(
        _config_traces(shown, axes),
        title=title,
        subtitle="; ".join(words),
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
        shapes=[_axis_line(at) for at in range(len(axes))],
        annotations=[
            _tick(at, place, shortened(words, 130 // len(axes)))
            for at, axis in enumerate(axes)
            for place, words in axis.ticks
        ],
    )


def _axis_line(at: int) -> dict[str, Any]:
    ends = {"x0": at, "x1": at, "y0": 0, "y1": 1}
    return {"type": "line", **ends, "layer": "below", "line": {"color": GRID, "width": 2}}


def _tick(at: int, place: float, words: str) -> dict[str, Any]:
    return {
        "x": at,
        "y": place,
        "text": plain(words),
        "showarrow": False,
        "xanchor": "left",
        "xshift": 4,
        "font": {"size": 10.5},
        "opacity": 0.85,
    }


def _axis_name(dimension: Dimension) -> str:
    return plain(dimension.name, 24) + (" (first)" if dimension.scheduled else "")


def _config_traces(trials: Sequence[TrialPast], axes: Sequence[Dimension]) -> list[Any]:
    """Return a trace for each rank; trials come best first."""
    groups: dict[str, list[int]] = {name: [] for _, name, *_ in _RANKS}
    for index in range(len(trials)):
        # The best one is in the best group, however few there are.
        share = index / len(trials)
        groups[[name for upto, name, *_ in _RANKS if share < upto][-1]].append(index)
    traces = []
    for _, name, colour, opacity, width in _RANKS:
        if groups[name]:
            line = {"color": colour, "width": width}
            traces.append(_config_trace(groups[name], trials, axes, name, line))
            traces[-1].opacity = opacity
    best = _config_trace([0], trials, axes, f"the best: trial {trials[0].trial}", {})
    best.line = {"color": ACCENT, "width": 4}
    return [*traces, best]


def _config_trace(
    group: Sequence[int],
    trials: Sequence[TrialPast],
    axes: Sequence[Dimension],
    name: str,
    line: dict[str, Any],
) -> go.Scatter:
    xs: list[int | None] = []
    ys: list[float | None] = []
    who: list[list[Any] | None] = []
    for index in group:
        for at, axis in enumerate(axes):
            place = axis.places[index]
            xs.append(at)
            ys.append(None if place is None else round(place, 4))
            label = plain(axis.name, 24) if at < len(axes) - 1 else "best"
            who.append([trials[index].trial, f"{label}: {plain(axis.words[index], 40)}"])
        xs.append(None)
        ys.append(None)
        who.append(None)
    return go.Scatter(
        x=xs,
        y=ys,
        mode="lines",
        name=name,
        line=line,
        customdata=who,
        hovertemplate="trial %{customdata[0]}<br>%{customdata[1]}<extra></extra>",
    )


def epochs_per_trial(chronicle: Chronicle) -> go.Figure:
    """Draw how many trials got how far."""
    title = "How far trials got"
    counts = [float(trial.epochs) for trial in chronicle.trials]
    if not any(counts):
        return empty(title, "No trial has reported yet.")
    size = max(1, math.ceil((max(counts) + 1) / _BINS))
    # The last bin ends with the furthest epoch.
    end = max(counts) + 0.5
    start = end - size * math.ceil((max(counts) + 1) / size)
    return _histogram(
        chronicle,
        counts,
        {"start": start, "end": end, "size": size},
        title=title,
        axis="epochs trained",
        subtitle=f"the middle trial saw {many(int(_middle(counts)), 'epoch')}",
    )


def time_per_trial(chronicle: Chronicle) -> go.Figure:
    """Draw how long trials trained."""
    title = "How long trials trained"
    took = [trial.seconds for trial in chronicle.trials]
    if not any(took):
        return empty(title, "No trial has reported yet.")
    unit = unit_of(max(took))
    longest = max(took) / unit.seconds
    shared = "; an epoch that several share counts for each" if chronicle.spec.share else ""
    return _histogram(
        chronicle,
        [seconds / unit.seconds for seconds in took],
        {"start": 0.0, "end": longest * (1 + 1 / _BINS), "size": longest / _BINS},
        title=title,
        axis=f"time in epochs ({unit.name})",
        subtitle=f"the middle trial trained for {human(_middle(took))}{shared}",
    )


def _histogram(
    chronicle: Chronicle,
    numbers: Sequence[float],
    bins: dict[str, float],
    *,
    title: str,
    axis: str,
    subtitle: str,
) -> go.Figure:
    keys = [shade_key(trial, chronicle) for trial in chronicle.trials]
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
    return drawn(
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


def _middle(numbers: Sequence[float]) -> float:
    return sorted(numbers)[len(numbers) // 2]
