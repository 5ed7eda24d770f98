"""The figure of a forecast: the known curve, and the intervals of its future."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from paceline.plots.style import ACCENT, ALARM, AXIS, CONFIG, NEUTRAL, escape_text, make_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.analysis.forecast_fan import Fan

_BANDS = (
    ("low_95", "high_95", "95 % interval", "rgba(28,126,214,0.14)"),
    ("low_80", "high_80", "80 % interval", "rgba(28,126,214,0.26)"),
)
# Title, subtitle and legend above each other: the legend covers nothing.
_MARGIN = {"l": 56, "r": 16, "t": 104, "b": 48}
# Up to this many points are marked.
_FEW = 30


def draw_fan(fan: Fan, later: Sequence[float | None] = ()) -> go.Figure:
    """Draw a curve, the intervals of its forecast, the target, and later values if known."""
    epochs = [row.epoch for row in fan.rows]
    traces: list[Any] = [
        go.Scatter(
            x=epochs + epochs[::-1],
            y=[getattr(row, high) for row in fan.rows]
            + [getattr(row, low) for row in reversed(fan.rows)],
            fill="toself",
            fillcolor=colour,
            line={"width": 0},
            hoverinfo="skip",
            name=name,
        )
        for low, high, name, colour in _BANDS
    ]
    medians = [row.median for row in fan.rows]
    traces.append(
        go.Scatter(x=epochs, y=medians, line={"color": ACCENT, "dash": "dot"}, name="median")
    )
    known = list(range(1, fan.epoch + 1))
    mode = "lines+markers" if fan.epoch < _FEW else "lines"
    line = {"color": ACCENT, "width": 2.5}
    traces.append(go.Scatter(x=known, y=list(fan.values), mode=mode, line=line, name="known"))
    if later:
        after = list(range(fan.epoch + 1, fan.epoch + 1 + len(later)))
        traces.append(
            go.Scatter(x=after, y=list(later), line={"color": NEUTRAL}, name="later values")
        )
    return make_figure(
        traces,
        title=f"Trial {fan.trial} of {escape_text(fan.source)}",
        subtitle=_describe(fan),
        height=520,
        xaxis=AXIS | {"title": {"text": "epoch"}},
        yaxis=AXIS | {"title": {"text": escape_text(fan.metric)}},
        shapes=_draw_limits(fan),
        margin=_MARGIN,
    )


def render_fan_page(fan: Fan, later: Sequence[float | None] = ()) -> str:
    """Return the figure as one HTML page that needs no network; the figure fills the window."""
    figure = draw_fan(fan, later).update_layout(height=None, autosize=True)
    page: str = figure.to_html(include_plotlyjs=True, config=CONFIG, default_height="96vh")
    return page


def _describe(fan: Fan) -> str:
    note = f"{fan.curves}, after epoch {fan.epoch} of {fan.epochs}"
    if fan.chance is not None:
        note += f"; chance to reach {fan.target:g} by epoch {fan.by_epoch}: {fan.chance:.0%}"
    return escape_text(note, 200)


def _draw_limits(fan: Fan) -> list[dict[str, Any]]:
    line = {"color": ALARM, "dash": "dash", "width": 1}
    shapes: list[dict[str, Any]] = []
    if fan.target is not None:
        shapes.append({"type": "line", "xref": "paper", "x0": 0, "x1": 1, "line": line})
        shapes[-1] |= {"y0": fan.target, "y1": fan.target}
    if fan.by_epoch < fan.epochs:
        shapes.append({"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": line})
        shapes[-1] |= {"x0": fan.by_epoch, "x1": fan.by_epoch}
    return shapes
