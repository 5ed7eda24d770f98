"""The figures of values: learning curves, and the best value over time.

If there are too many curves, picks the most informative ones. Folds no log.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from paceline.core.text import format_count, format_duration
from paceline.plots.series import sample_evenly, thin_points
from paceline.plots.style import (
    ACCENT,
    ALARM,
    AXIS,
    NEUTRAL,
    SHADES,
    Shade,
    TimeUnit,
    choose_unit,
    choose_window,
    escape_text,
    find_shade_key,
    make_clock_axis,
    make_empty_figure,
    make_figure,
    round_number,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.analysis.timeline import Timeline, TrialTimeline

# Curves, and points of each, that can be distinguished on a screen.
MOST_CURVES = 200
MOST_POINTS = 200
# If not all curves are drawn: the shares of the best and of the longest; the rest is a sample.
_BEST_SHARE, _LONGEST_SHARE = 0.5, 0.3
# The share of a study's time that counts as its start.
_START = 0.01
# A deadline is drawn if it is at most this many times the elapsed time.
_FAR = 3.0


def draw_learning_curves(timeline: Timeline) -> go.Figure:
    """Draw the metric by epoch, one line per trial."""
    title, spec = "Learning curves", timeline.spec
    metric = escape_text(spec.metric)
    reported = [trial for trial in timeline.trials if any(not math.isnan(v) for v in trial.values)]
    if not reported:
        return make_empty_figure(title, _explain_empty(timeline))
    shown = pick_curves(reported, spec.sign, MOST_CURVES)
    groups: dict[str, list[TrialTimeline]] = {shade.key: [] for shade in SHADES}
    for trial in shown:
        groups[find_shade_key(trial, timeline)].append(trial)
    counts = Counter(find_shade_key(trial, timeline) for trial in reported)
    traces = []
    for shade in SHADES:
        if groups[shade.key]:
            traces += _draw_curves(groups[shade.key], shade, counts[shade.key])
    view = choose_window(
        (v for t in shown for v in t.values if not math.isnan(v)), spec.sign, metric
    )
    notes = []
    if len(shown) < len(reported):
        notes.append(
            f"{len(shown)} of {format_count(len(reported), 'trial')}: the best, the longest, and "
            "an even sample"
        )
    if view.beyond:
        notes.append(
            f"{format_count(view.beyond, 'value')} beyond the edge (double-click to see all)"
        )
    return make_figure(
        traces,
        title=title,
        subtitle="; ".join(notes),
        height=460,
        xaxis=_make_epoch_axis(max(trial.epochs for trial in shown)),
        yaxis=view.axis,
        hovermode="closest",
    )


def _make_epoch_axis(last: int) -> dict[str, Any]:
    """Return the axis of epochs, counted from 1."""
    room = 0.02 * (last - 1) or 1.0
    axis = dict(AXIS, title={"text": "epoch"}, range=[1 - room, last + room])
    return axis | {"dtick": 1} if last <= 12 else axis


def pick_curves(trials: Sequence[TrialTimeline], sign: float, most: int) -> list[TrialTimeline]:
    """Return the trials to draw: the best, the longest, and an even sample of the rest."""
    if len(trials) <= most:
        return list(trials)
    ranked = sorted(trials, key=lambda t: (math.inf if t.best is None else sign * t.best, t.trial))
    top = int(most * _BEST_SHARE)
    rest = sorted(ranked[top:], key=lambda t: (-t.epochs, t.trial))
    long = int(most * _LONGEST_SHARE)
    others = sorted(rest[long:], key=lambda t: t.trial)
    picked = [*ranked[:top], *rest[:long], *sample_evenly(others, most - top - long)]
    return sorted(picked, key=lambda t: t.trial)


def draw_best_over_time(timeline: Timeline) -> go.Figure:
    """Draw the best value so far, with the target and the deadline."""
    title, spec, budget = "Best value over time", timeline.spec, timeline.spec.budget
    if not timeline.best_changes:
        return make_empty_figure(title, _explain_empty(timeline))
    deadline = budget.deadline_s
    # A deadline far beyond the end would squeeze the curve.
    near = deadline is not None and deadline <= _FAR * timeline.now
    until = max(timeline.now, deadline or 0.0) if near else timeline.now
    unit = choose_unit(until)
    # The first values are best by default: the axis is chosen for those after them.
    values = [change.value for change in timeline.best_changes]
    later = [change.value for change in timeline.best_changes if change.at > _START * timeline.now]
    cut = len(set(later)) > 1 and len(later) < len(values)
    inside = later if cut else values
    view = choose_window(inside, spec.sign, escape_text(spec.metric))
    target = None if budget.target is None else budget.target.value
    if target is not None or cut:
        _extend_range(view.axis, inside if target is None else [*inside, target])
    notes = [_describe_best(timeline)]
    if cut:
        notes.append("its start is beyond the edge")
    if deadline is not None and not near:
        notes.append(f"the deadline is at {format_duration(deadline)}")
    figure = make_figure(
        _draw_best(timeline, unit),
        title=title,
        subtitle="; ".join(notes),
        xaxis=make_clock_axis(unit, until),
        yaxis=view.axis,
        hovermode="closest",
    )
    # Labels are placed where the line is not: it ends near the target, on this side.
    above, below = ("top", "bottom") if spec.mode == "max" else ("bottom", "top")
    if target is not None:
        figure.add_hline(y=target, **_style_limit(f"target {target:.6g}", f"{above} left", NEUTRAL))
    if deadline is not None and near:
        look = _style_limit(f"deadline {format_duration(deadline)}", f"{below} left", ALARM)
        figure.add_vline(x=deadline / unit.seconds, **look)
    return figure


def _draw_best(timeline: Timeline, unit: TimeUnit) -> list[Any]:
    """Return the line of the best value, and a point at each change."""
    changes = timeline.best_changes
    xs = [change.at / unit.seconds for change in changes]
    ys = [round_number(change.value) for change in changes]
    line = go.Scatter(
        x=[*xs, timeline.now / unit.seconds],
        y=[*ys, ys[-1]],
        mode="lines",
        line={"shape": "hv", "color": ACCENT, "width": 2.5},
        hoverinfo="skip",
        showlegend=False,
    )
    points = go.Scatter(
        x=xs,
        y=ys,
        mode="markers",
        marker={"color": ACCENT, "size": 7},
        customdata=[[change.trial] for change in changes],
        text=[
            f"{change.value:.6g}<br>trial {change.trial}, epoch {change.epoch}<br>"
            f"after {format_duration(change.at)}"
            for change in changes
        ],
        hovertemplate="%{text}<extra></extra>",
        showlegend=False,
    )
    return [line, points]


def _extend_range(axis: dict[str, Any], values: Sequence[float]) -> None:
    """Give an axis a range that holds all of these values and room for labels."""
    log = axis.get("type") == "log"
    inside = [math.log10(value) if log else value for value in values if value > 0 or not log]
    low, high = axis.get("range") or (min(inside), max(inside))
    low, high = min(low, *inside), max(high, *inside)
    room = 0.09 * (high - low) or abs(high) or 1.0
    axis["range"] = [low - room, high + room]


def _draw_curves(trials: list[TrialTimeline], shade: Shade, count: int) -> list[Any]:
    """Return one trace for all curves of a shade, with gaps between them, and marks."""
    xs: list[int | None] = []
    ys: list[float | None] = []
    numbers: list[int | None] = []
    for trial in trials:
        for at in thin_points(trial.values, MOST_POINTS):
            xs.append(at + 1)
            ys.append(round_number(trial.values[at]))
            numbers.append(trial.trial)
        xs.append(None)
        ys.append(None)
        numbers.append(None)
    best = shade.key == "best"
    label = f"{shade.label}: trial {trials[0].trial}" if best else f"{shade.label} ({count:,})"
    thin = 1.2 if len(trials) < 80 else 0.9
    lines = go.Scatter(
        x=xs,
        y=ys,
        mode="lines",
        name=label,
        legendgroup=shade.key,
        line={
            "color": shade.colour,
            "width": 3 if best else thin,
            "dash": shade.dash,
        },
        opacity=1.0 if best else max(0.55, 0.9 - 0.004 * len(trials)),
        connectgaps=False,
        customdata=numbers,
        hovertemplate=(
            f"trial %{{customdata}}, {shade.label}<br>epoch %{{x}}: %{{y:.6g}}<extra></extra>"
        ),
    )
    if best:
        marked = [(trial, trial.best_epoch) for trial in trials]
        return [lines, _draw_marks(marked, shade, "its best", {"size": 11})]
    if shade.key == "failed":
        marked = [(trial, _last_epoch(trial)) for trial in trials]
        return [lines, _draw_marks(marked, shade, "failed", {"size": 7, "symbol": "x-thin-open"})]
    # A curve of one report needs a marker: a line would not show it.
    marked = [(trial, _last_epoch(trial)) for trial in trials if trial.epochs == 1]
    return [lines, _draw_marks(marked, shade, shade.label, {"size": 4})] if marked else [lines]


def _draw_marks(
    marked: list[tuple[TrialTimeline, int]], shade: Shade, label: str, marker: dict[str, Any]
) -> go.Scatter:
    """Return a marker at one epoch of each trial."""
    return go.Scatter(
        x=[epoch for _, epoch in marked],
        y=[round_number(trial.values[epoch - 1]) for trial, epoch in marked],
        mode="markers",
        legendgroup=shade.key,
        showlegend=False,
        marker={"color": shade.colour, **marker},
        customdata=[trial.trial for trial, _ in marked],
        hovertemplate=f"trial %{{customdata}}, {label}<br>epoch %{{x}}: %{{y:.6g}}<extra></extra>",
    )


def _last_epoch(trial: TrialTimeline) -> int:
    return max(at for at, value in enumerate(trial.values, 1) if not math.isnan(value))


def _style_limit(text: str, place: str, colour: str) -> dict[str, Any]:
    """Return the style of the line of a budget limit."""
    return {
        "line": {"color": colour, "dash": "dash", "width": 1.3},
        "annotation_text": text,
        "annotation_position": place,
    }


def _describe_best(timeline: Timeline) -> str:
    change = timeline.best_changes[-1]
    metric = escape_text(timeline.spec.metric)
    return (
        f"{metric} {change.value:.6g} after {format_duration(change.at)}, by trial {change.trial}"
    )


def _explain_empty(timeline: Timeline) -> str:
    metric = escape_text(timeline.spec.metric)
    if not timeline.trials:
        return "No trial has been opened yet."
    if all(not trial.epochs for trial in timeline.trials):
        return "No trial has reported yet."
    return f"No trial has reported a number: {metric} was NaN or infinite in every epoch."
