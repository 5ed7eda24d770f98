"""The figure of the plan: what trials have in common, over epochs, and where they part.

Knows how nodes lie beside each other: each as high as the leaves below it. Counts nothing that
`machine.sharing` does not say.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from paceline.analysis.sharing import settings_said, trials_said
from paceline.plots.style import AXIS, CONFIG, drawn, empty, human, many, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.analysis.sharing import NodeRow, Sharing
    from paceline.analysis.timeline import Chronicle

TITLE = "What trials share"
# More than these cannot be told apart: those that most trials pass are drawn.
MOST_NODES = 2500
# From few trials to all of them; from a poor value to the best.
_SHARED = [[0.0, "#d0ebff"], [0.5, "#4dabf7"], [1.0, "#0b4f8a"]]
_ALONE = [[0.0, "#f1f3f5"], [0.6, "#a9dcd5"], [1.0, "#1f7a6f"]]
_PALE = "rgba(134,142,150,0.12)"
_SCALE = {"thickness": 12, "outlinewidth": 0, "len": 0.48}
# A label needs so many pixels of height.
_LABEL = 15


def shared_tree(chronicle: Chronicle) -> go.Figure:
    """Draw every node as a bar over its epochs, as high as the leaves into which it parts."""
    sharing = chronicle.sharing
    if not sharing.nodes:
        return empty(TITLE, "No trial has been opened yet.")
    if not sharing.share:
        return empty(TITLE, "Nothing is shared in this study: every trial trains alone.")
    if all(len(row.trials) == 1 for row in sharing.nodes):
        return empty(TITLE, "No two trials have an epoch in common.")
    lanes = _lanes(sharing.nodes)
    leaves = max(high for _, high in lanes)
    height = min(1400, max(260, 140 + 14 * leaves))
    shown = sorted(sharing.nodes, key=lambda row: (-len(row.trials), row.node))[:MOST_NODES]
    shown.sort(key=lambda row: row.node)
    words = _saved(sharing)
    if len(shown) < len(sharing.nodes):
        words += f"; the {len(shown):,} most shared of {many(len(sharing.nodes), 'node')}"
    room = (height - 124) / leaves  # pixels of a lane
    return drawn(
        _traces(shown, lanes, chronicle, room),
        title=TITLE,
        subtitle=plain(words, 240),
        height=height,
        xaxis=dict(
            AXIS,
            title={"text": "epochs"},
            range=[0, chronicle.spec.epochs],
            showgrid=False,
        ),
        yaxis=dict(AXIS, range=[leaves, 0], showticklabels=False, showgrid=False, ticks=""),
        barmode="overlay",
        bargap=0,
        hovermode="closest",
        showlegend=False,
    )


def tree_page(chronicle: Chronicle) -> str:
    """Return the figure as one HTML page that needs no network."""
    figure = shared_tree(chronicle)
    figure.layout.title.text = f"{plain(chronicle.spec.name)}: what trials share"
    page: str = figure.to_html(include_plotlyjs=True, config=CONFIG, div_id="tree")
    return page


def _lanes(nodes: Sequence[NodeRow]) -> list[tuple[int, int]]:
    """Return between which lanes each node lies: one for each leaf, parents over their children."""
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


def _traces(
    rows: Sequence[NodeRow], lanes: Sequence[tuple[int, int]], chronicle: Chronicle, room: float
) -> list[go.Bar]:
    """Return the bars: by how many share them, alone by their best value, and what is untrained."""
    line = {"width": 1 if room > 3 else 0.2, "color": "rgba(255,255,255,0.8)"}
    shared = [row for row in rows if len(row.trials) > 1]
    alone = [row for row in rows if len(row.trials) == 1]
    bests = [_best(row, chronicle) for row in alone]
    valued = [(row, best) for row, best in zip(alone, bests, strict=True) if best is not None]
    traces = []
    for some, marker in (
        (shared, _by_trials(shared)),
        ([row for row, _ in valued], _by_value([best for _, best in valued], chronicle)),
    ):
        spans = [(row.first - 1, row.epochs_known) for row in some]
        told = _told(some, chronicle, [_label(row, lanes[row.node], room) for row in some])
        look = {"marker": {**marker, "line": line}, **_LOOK}
        traces.append(go.Bar(**_bars(some, lanes, spans), **told, **look))
    left = [row for row in rows if row.epochs_known < row.last - row.first + 1]
    if left:
        ends = [row.first - 1 + row.epochs_known for row in left]
        spans = [(end, row.last - end) for row, end in zip(left, ends, strict=True)]
        told = _told(left, chronicle, [""] * len(left))
        pale = {"color": _PALE, "line": line}
        traces.append(go.Bar(**_bars(left, lanes, spans), **told, marker=pale, **_LOOK))
    return traces


def _by_trials(rows: Sequence[NodeRow]) -> dict[str, Any]:
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


def _by_value(values: Sequence[float], chronicle: Chronicle) -> dict[str, Any]:
    """Colour by value; the worst tenth looks alike, or one that diverged would hide the rest."""
    if not values:
        return {}
    sign, metric = chronicle.spec.sign, plain(chronicle.spec.metric, 12)
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


def _told(
    rows: Sequence[NodeRow], chronicle: Chronicle, labels: Sequence[str]
) -> dict[str, list[Any]]:
    return {
        "customdata": [[row.trials[0]] for row in rows],
        "hovertext": [_words(row, chronicle) for row in rows],
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


def _bars(
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


def _label(row: NodeRow, lane: tuple[int, int], room: float) -> str:
    """Return a node's settings where there is room for them."""
    if (lane[1] - lane[0]) * room < _LABEL or not row.epochs_known:
        return ""
    return plain(settings_said(row.changes), 28)


def _words(row: NodeRow, chronicle: Chronicle) -> str:
    where = f"epochs {row.first}-{row.last}" if row.last > row.first else f"epoch {row.first}"
    lines = [
        f"{where}: {settings_said(row.changes)}",
        trials_said(row.trials),
        f"{row.epochs_known} trained, {row.epochs_asked} seen: "
        f"{row.epochs_asked - row.epochs_needed} saved",
    ]
    best = _best(row, chronicle)
    if best is not None:
        lines.append(f"best {chronicle.spec.metric} {best:.6g}")
    return "<br>".join(plain(line, 90) for line in lines)


def _best(row: NodeRow, chronicle: Chronicle) -> float | None:
    """Return the best value that was reported on a node."""
    sign = chronicle.spec.sign
    losses = [
        sign * value
        for trial in row.trials
        for value in chronicle.trials[trial].values[row.first - 1 : row.last]
        if not math.isnan(value)
    ]
    return sign * min(losses) if losses else None


def _saved(sharing: Sharing) -> str:
    if sharing.epochs_saved <= 0:
        return "nothing was saved by it yet"
    hours = sharing.slot_seconds_saved / 3600
    limit = "" if sharing.merge_rate is None else f"; {sharing.merge_rate:.3g} times is the limit"
    return (
        f"{hours:.3g} slot-hours and {human(sharing.seconds_saved)} of training saved: "
        f"{sharing.epochs_saved:,} of {many(sharing.epochs_asked, 'epoch')}{limit}"
    )
