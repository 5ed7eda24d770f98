"""The figure of the prefix tree: what trials share over epochs, and where they branch.

Each node is as high as the leaves below it. Counts nothing: `analysis.sharing` does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from paceline.analysis.sharing import describe_changes
from paceline.core.text import format_count, format_duration, format_numbers
from paceline.plots.style import AXIS, CONFIG, escape_text, make_empty_figure, make_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.analysis.sharing import NodeRow, Sharing
    from paceline.analysis.timeline import Timeline

TITLE = "What trials share"
# If there are more nodes, those with the most trials are drawn.
MOST_NODES = 2500
# From few trials to all; from the worst value to the best.
_SHARED = [[0.0, "#d0ebff"], [0.5, "#4dabf7"], [1.0, "#0b4f8a"]]
_ALONE = [[0.0, "#f1f3f5"], [0.6, "#a9dcd5"], [1.0, "#1f7a6f"]]
_PALE = "rgba(134,142,150,0.12)"
_SCALE = {"thickness": 12, "outlinewidth": 0, "len": 0.48}
# The height of a label in pixels.
_LABEL = 15


def draw_tree(timeline: Timeline) -> go.Figure:
    """Draw each node as a bar over its epochs, as high as the leaves below it."""
    sharing = timeline.sharing
    if not sharing.nodes:
        return make_empty_figure(TITLE, "No trial has been opened yet.")
    if not sharing.share:
        return make_empty_figure(
            TITLE, "Nothing is shared in this study: every trial trains alone."
        )
    if all(len(row.trials) == 1 for row in sharing.nodes):
        return make_empty_figure(TITLE, "No two trials have an epoch in common.")
    lanes = _find_lanes(sharing.nodes)
    leaves = max(high for _, high in lanes)
    height = min(1400, max(260, 140 + 14 * leaves))
    shown = sorted(sharing.nodes, key=lambda row: (-len(row.trials), row.node))[:MOST_NODES]
    shown.sort(key=lambda row: row.node)
    notes = _describe_savings(sharing)
    if len(shown) < len(sharing.nodes):
        notes += f"; the {len(shown):,} most shared of {format_count(len(sharing.nodes), 'node')}"
    room = (height - 124) / leaves  # pixels of a lane
    return make_figure(
        _draw_bars(shown, lanes, timeline, room),
        title=TITLE,
        subtitle=escape_text(notes, 240),
        height=height,
        xaxis=dict(
            AXIS,
            title={"text": "epochs"},
            range=[0, timeline.spec.epochs],
            showgrid=False,
        ),
        yaxis=dict(AXIS, range=[leaves, 0], showticklabels=False, showgrid=False, ticks=""),
        barmode="overlay",
        bargap=0,
        hovermode="closest",
        showlegend=False,
    )


def render_tree_page(timeline: Timeline) -> str:
    """Return the figure as one HTML page that needs no network."""
    figure = draw_tree(timeline)
    figure.layout.title.text = f"{escape_text(timeline.spec.name)}: what trials share"
    page: str = figure.to_html(include_plotlyjs=True, config=CONFIG, div_id="tree")
    return page


def _find_lanes(nodes: Sequence[NodeRow]) -> list[tuple[int, int]]:
    """Return the lanes of each node, first and last: one per leaf, a parent spans its children."""
    parents = {row.parent for row in nodes}
    spans: list[tuple[int, int]] = []
    leaves = 0
    for row in nodes:
        spans.append((leaves, leaves))
        leaves += row.node not in parents
    for row in reversed(nodes):  # children come after their parents
        if row.node not in parents:
            spans[row.node] = (spans[row.node][0], spans[row.node][0] + 1)
        if row.parent is not None:
            low, high = spans[row.parent]
            spans[row.parent] = (low, max(high, spans[row.node][1]))
    return spans


def _draw_bars(
    rows: Sequence[NodeRow], lanes: Sequence[tuple[int, int]], timeline: Timeline, room: float
) -> list[go.Bar]:
    """Return the bars: shared nodes by trials, others by best value, and untrained epochs."""
    line = {"width": 1 if room > 3 else 0.2, "color": "rgba(255,255,255,0.8)"}
    shared = [row for row in rows if len(row.trials) > 1]
    alone = [row for row in rows if len(row.trials) == 1]
    bests = [_find_best(row, timeline) for row in alone]
    valued = [(row, best) for row, best in zip(alone, bests, strict=True) if best is not None]
    traces = []
    for some, marker in (
        (shared, _color_by_trials(shared)),
        ([row for row, _ in valued], _color_by_value([best for _, best in valued], timeline)),
    ):
        spans = [(row.first - 1, row.epochs_known) for row in some]
        texts = _make_texts(
            some, timeline, [_make_label(row, lanes[row.node], room) for row in some]
        )
        look = {"marker": {**marker, "line": line}, **_LOOK}
        traces.append(go.Bar(**_place_bars(some, lanes, spans), **texts, **look))
    left = [row for row in rows if row.epochs_known < row.last - row.first + 1]
    if left:
        ends = [row.first - 1 + row.epochs_known for row in left]
        spans = [(end, row.last - end) for row, end in zip(left, ends, strict=True)]
        texts = _make_texts(left, timeline, [""] * len(left))
        pale = {"color": _PALE, "line": line}
        traces.append(go.Bar(**_place_bars(left, lanes, spans), **texts, marker=pale, **_LOOK))
    return traces


def _color_by_trials(rows: Sequence[NodeRow]) -> dict[str, Any]:
    most = max(len(row.trials) for row in rows)
    marks = sorted({2, max(2, round(math.sqrt(most))), most})
    scale = {"tickvals": [math.log(mark) for mark in marks], "ticktext": [f"{m:,}" for m in marks]}
    return {
        "color": [math.log(len(row.trials)) for row in rows],
        "colorscale": _SHARED,
        "cmin": 0.0,
        "cmax": math.log(most),
        "colorbar": {**_SCALE, **scale, "title": {"text": "trials"}, "y": 1.0, "yanchor": "top"},
    }


def _color_by_value(values: Sequence[float], timeline: Timeline) -> dict[str, Any]:
    """Return colours by value; the worst tenth has one colour, so that outliers hide nothing."""
    if not values:
        return {}
    sign, metric = timeline.spec.sign, escape_text(timeline.spec.metric, 12)
    losses = sorted(sign * value for value in values)
    low, high = sorted(sign * loss for loss in (losses[0], losses[int(0.9 * (len(losses) - 1))]))
    return {
        "color": list(values),
        "colorscale": _ALONE,
        "reversescale": sign > 0,
        "cmin": low,
        "cmax": high,
        "colorbar": {**_SCALE, "title": {"text": metric}, "y": 0.0, "yanchor": "bottom"},
    }


def _make_texts(
    rows: Sequence[NodeRow], timeline: Timeline, labels: Sequence[str]
) -> dict[str, list[Any]]:
    return {
        "customdata": [[row.trials[0]] for row in rows],
        "hovertext": [_describe_node(row, timeline) for row in rows],
        "text": list(labels),
    }


_LOOK = {
    "orientation": "h",
    "hovertemplate": "%{hovertext}<extra></extra>",
    "textposition": "inside",
    "textangle": 0,
    "constraintext": "none",
    "cliponaxis": True,
    "insidetextanchor": "start",
}


def _place_bars(
    rows: Sequence[NodeRow],
    lanes: Sequence[tuple[int, int]],
    spans: Sequence[tuple[int, int]],
) -> dict[str, list[float]]:
    heights = [lanes[row.node][1] - lanes[row.node][0] for row in rows]
    return {
        "base": [start for start, _ in spans],
        "x": [length for _, length in spans],
        "y": [lanes[row.node][0] + height / 2 for row, height in zip(rows, heights, strict=True)],
        "width": list(heights),
    }


def _make_label(row: NodeRow, lane: tuple[int, int], room: float) -> str:
    """Return a node's settings if there is room for them."""
    if (lane[1] - lane[0]) * room < _LABEL or not row.epochs_known:
        return ""
    return escape_text(describe_changes(row.changes), 28)


def _describe_node(row: NodeRow, timeline: Timeline) -> str:
    where = f"epochs {row.first}-{row.last}" if row.last > row.first else f"epoch {row.first}"
    lines = [
        f"{where}: {describe_changes(row.changes)}",
        format_numbers("trial", row.trials),
        f"{row.epochs_known} trained, {row.epochs_asked} seen: "
        f"{row.epochs_asked - row.epochs_needed} saved",
    ]
    best = _find_best(row, timeline)
    if best is not None:
        lines.append(f"best {timeline.spec.metric} {best:.6g}")
    return "<br>".join(escape_text(line, 90) for line in lines)


def _find_best(row: NodeRow, timeline: Timeline) -> float | None:
    """Return the best value that was reported on a node."""
    sign = timeline.spec.sign
    losses = [
        sign * value
        for trial in row.trials
        for value in timeline.trials[trial].values[row.first - 1 : row.last]
        if not math.isnan(value)
    ]
    return sign * min(losses) if losses else None


def _describe_savings(sharing: Sharing) -> str:
    if sharing.epochs_saved <= 0:
        return "sharing has saved nothing yet"
    hours = sharing.slot_seconds_saved / 3600
    limit = "" if sharing.merge_rate is None else f"; {sharing.merge_rate:.3g} times is the maximum"
    return (
        f"{hours:.3g} slot-hours and {format_duration(sharing.seconds_saved)} of training saved: "
        f"{sharing.epochs_saved:,} of {format_count(sharing.epochs_asked, 'epoch')}{limit}"
    )
