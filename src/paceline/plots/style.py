"""The style of all figures: colours, axes, units of time, text.

Chosen to be readable on light and dark pages: backgrounds are transparent. Does not know what is
drawn.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import plotly.graph_objects as go

from paceline.core.text import truncate
from paceline.core.values import Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.analysis.timeline import Timeline, TrialTimeline

# Use as `figure.show(config=CONFIG)`. The buttons are listed because the default since plotly 7 has
# one that uploads the figure to a cloud service.
CONFIG: dict[str, Any] = {
    "responsive": True,
    "displaylogo": False,
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "modeBarButtons": [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
}

# The accent colour: the best trial, and everything that can be clicked.
ACCENT = "#1c7ed6"
ALARM = "#e03131"
NEUTRAL = "#868e96"
GRID = "rgba(134,142,150,0.22)"


class Shade(NamedTuple):
    """The colour and dash of trials with one status."""

    key: str
    label: str
    colour: str
    dash: str = "solid"


BEST = Shade("best", "the best", ACCENT)
# In drawing order: later ones are drawn above earlier ones.
SHADES = (
    Shade("stopped", "stopped", "#a1a9b2"),
    Shade("failed", "failed", ALARM),
    Shade("ready", "ready", "#b08968", "dot"),
    Shade("paused", "paused", "#f2a53a", "dot"),
    Shade("finished", "finished", "#2a9d8f"),
    Shade("unfinished", "unfinished", "#845ef7"),
    Shade("running", "running", "#845ef7"),
    BEST,
)
assert {shade.key for shade in SHADES} == {*Status, "unfinished", "best"}


def find_shade_key(trial: TrialTimeline, timeline: Timeline) -> str:
    """Return the key of a trial's shade: what became of it, or `best`."""
    best = timeline.best
    return "best" if best is not None and best.trial == trial.trial else trial.fate


class TimeUnit(NamedTuple):
    """A unit of time for an axis."""

    name: str
    seconds: float


def choose_unit(longest: float) -> TimeUnit:
    """Return the unit that gives an axis of this length, in seconds, short numbers.

    >>> choose_unit(90.0).name, choose_unit(3600.0).name, choose_unit(1e6).name
    ('seconds', 'minutes', 'days')
    """
    if longest <= 180:
        return TimeUnit("seconds", 1.0)
    if longest <= 3 * 3600:
        return TimeUnit("minutes", 60.0)
    if longest <= 4 * 86400:
        return TimeUnit("hours", 3600.0)
    return TimeUnit("days", 86400.0)


def make_clock_axis(unit: TimeUnit, until: float) -> dict[str, Any]:
    """Return the axis of the study's clock, up to this many seconds."""
    axis = dict(AXIS, title={"text": f"study time ({unit.name})"})
    end = until / unit.seconds
    return axis | {"range": [-0.01 * end, 1.01 * end]} if end > 0 else axis


class AxisWindow(NamedTuple):
    """The part of a value axis that is shown first."""

    axis: dict[str, Any]
    # The number of values outside it.
    beyond: int


# Values further from the best than this many times the 95 % quantile are outside.
_FAR = 3.0


def choose_window(values: Iterable[float], sign: float, title: str) -> AxisWindow:
    """Return an axis that shows differences between good values, however bad the others are."""
    axis = dict(AXIS, title={"text": title})
    losses = sorted(sign * value for value in values)
    if len(losses) < 2 or losses[0] == losses[-1]:
        return AxisWindow(axis, 0)
    best, worst = losses[0], losses[-1]
    most = losses[int(0.95 * (len(losses) - 1))]
    if sign > 0 and best > 0 and most / best >= 30:
        low, high = math.log10(best), math.log10(min(worst, most * 10))
        pad = 0.04 * (high - low)
        axis |= {"type": "log", "range": [low - pad, high + pad], "dtick": 1}
        return AxisWindow(axis, sum(loss > most * 10 for loss in losses))
    if most <= best or worst - best <= _FAR * (most - best):
        return AxisWindow(axis, 0)
    limit = most + 0.25 * (most - best)
    pad = 0.04 * (limit - best)
    ends = [sign * (best - pad), sign * (limit + pad)]
    return AxisWindow(axis | {"range": sorted(ends)}, sum(loss > limit for loss in losses))


# Copied for each use: plotly changes its arguments.
AXIS: dict[str, Any] = {
    "gridcolor": GRID,
    "zeroline": False,
    "linecolor": GRID,
    "ticks": "outside",
    "tickcolor": GRID,
    "ticklen": 4,
    "automargin": True,
}


def make_figure(
    traces: list[Any], *, title: str, subtitle: str = "", height: int = 380, **layout: object
) -> go.Figure:
    """Return a figure in the common style."""
    return go.Figure(
        data=traces,
        layout={
            "template": "none",
            "title": {"text": title, "subtitle": {"text": subtitle}, "x": 0, "xref": "paper"},
            "font": {"family": "system-ui, -apple-system, 'Segoe UI', sans-serif", "size": 13},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "height": height,
            "margin": {"l": 56, "r": 16, "t": 76, "b": 48},
            "legend": {
                "orientation": "h",
                "x": 0,
                "y": 1.0,
                "yanchor": "bottom",
                "bgcolor": "rgba(0,0,0,0)",
                "traceorder": "normal",
            },
            "hoverlabel": {"align": "left"},
            **layout,
        },
    )


def make_empty_figure(title: str, sentence: str) -> go.Figure:
    """Return a figure that only has a sentence."""
    hidden = {"visible": False, "range": [0, 1]}
    figure = make_figure([], title=title, height=150, xaxis=hidden, yaxis=dict(hidden))
    figure.add_annotation(text=sentence, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False)
    return figure


def escape_text(text: object, most: int = 60) -> str:
    """Return text that plotly shows literally, without markup and templates, cut to `most`.

    >>> escape_text("<b>%{x}</b>")
    '&lt;b&gt;%\u200b{x}&lt;/b&gt;'
    """
    short = truncate(str(text), most)
    for mark, written in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("%{", "%\u200b{")):
        short = short.replace(mark, written)
    return " ".join(short.split())


def round_number(value: float) -> float | None:
    """Return a number in six digits; None for NaN."""
    return None if math.isnan(value) else float(f"{value:.6g}")
