"""How every figure looks: colours, units of time, the window on the values, a word where empty.

Knows plotly's layout and what reads well on light and on dark. Does not know what is drawn.
Backgrounds are transparent, so that a page can put figures on any ground.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import plotly.graph_objects as go

from paceline.analysis.story import span
from paceline.core.values import Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.analysis.timeline import Chronicle, TrialPast

# How to show a figure anywhere: `figure.show(config=CONFIG)`. Buttons are listed, not left to the
# default, which since plotly 7 holds one that uploads the figure to somebody's cloud.
CONFIG: dict[str, Any] = {
    "responsive": True,
    "displaylogo": False,
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "modeBarButtons": [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
}

# The one accent: the best trial, and what can be clicked.
ACCENT = "#1c7ed6"
ALARM = "#e03131"
NEUTRAL = "#868e96"
GRID = "rgba(134,142,150,0.22)"


class Shade(NamedTuple):
    """How trials of one fate are drawn."""

    key: str
    label: str
    colour: str
    dash: str = "solid"


BEST = Shade("best", "the best", ACCENT)
# In drawing order: what matters more lies above.
SHADES = (
    Shade("stopped", "stopped", "#a1a9b2"),
    Shade("failed", "failed", ALARM),
    Shade("ready", "ready", "#b08968", "dot"),
    Shade("waiting", "waiting", "#f2a53a", "dot"),
    Shade("finished", "finished", "#2a9d8f"),
    Shade("running", "running", "#845ef7"),
    BEST,
)
assert {shade.key for shade in SHADES} == {*Status, "best"}


def shade_key(trial: TrialPast, chronicle: Chronicle) -> str:
    """Return the key of the shade a trial is drawn in: its status, or that it is the best."""
    best = chronicle.best
    return "best" if best is not None and best.trial == trial.trial else trial.status.value


class Unit(NamedTuple):
    """A unit of time for an axis."""

    name: str
    seconds: float


def unit_of(longest: float) -> Unit:
    """Return the unit in which an axis of so many seconds has short numbers.

    >>> unit_of(90.0).name, unit_of(3600.0).name, unit_of(1e6).name
    ('seconds', 'minutes', 'days')
    """
    if longest <= 180:
        return Unit("seconds", 1.0)
    if longest <= 3 * 3600:
        return Unit("minutes", 60.0)
    if longest <= 4 * 86400:
        return Unit("hours", 3600.0)
    return Unit("days", 86400.0)


def clock_axis(unit: Unit, until: float) -> dict[str, Any]:
    """Return the axis of the study's clock, up to so many seconds."""
    axis = dict(AXIS, title={"text": f"study time ({unit.name})"})
    end = until / unit.seconds
    return axis | {"range": [-0.01 * end, 1.01 * end]} if end > 0 else axis


class Window(NamedTuple):
    """The part of a value axis that is shown first."""

    axis: dict[str, Any]
    # How many values lie beyond it.
    beyond: int


# Values further from the best than so many times what nineteen in twenty keep are left outside.
_FAR = 3.0


def window(values: Iterable[float], sign: float, title: str) -> Window:
    """Return an axis on which the good values can be told apart, whatever the bad ones are."""
    axis = dict(AXIS, title={"text": title})
    losses = sorted(sign * value for value in values)
    if len(losses) < 2 or losses[0] == losses[-1]:
        return Window(axis, 0)
    best, worst = losses[0], losses[-1]
    most = losses[int(0.95 * (len(losses) - 1))]
    if sign > 0 and best > 0 and most / best >= 30:
        low, high = math.log10(best), math.log10(min(worst, most * 10))
        pad = 0.04 * (high - low)
        axis |= {"type": "log", "range": [low - pad, high + pad], "dtick": 1}
        return Window(axis, sum(loss > most * 10 for loss in losses))
    if most <= best or worst - best <= _FAR * (most - best):
        return Window(axis, 0)
    limit = most + 0.25 * (most - best)
    pad = 0.04 * (limit - best)
    ends = [sign * (best - pad), sign * (limit + pad)]
    return Window(axis | {"range": sorted(ends)}, sum(loss > limit for loss in losses))


# A fresh copy for each use: plotly writes into what it is given.
AXIS: dict[str, Any] = {
    "gridcolor": GRID,
    "zeroline": False,
    "linecolor": GRID,
    "ticks": "outside",
    "tickcolor": GRID,
    "ticklen": 4,
    "automargin": True,
}


def drawn(
    traces: list[Any], *, title: str, subtitle: str = "", height: int = 380, **layout: object
) -> go.Figure:
    """Return a figure in the common look."""
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


def empty(title: str, sentence: str) -> go.Figure:
    """Return a figure that says why there is nothing to see."""
    hidden = {"visible": False, "range": [0, 1]}
    figure = drawn([], title=title, height=150, xaxis=hidden, yaxis=dict(hidden))
    figure.add_annotation(text=sentence, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False)
    return figure


def plain(text: object, most: int = 60) -> str:
    """Return text that plotly shows as it is: no markup, no template, and not too long.

    >>> plain("<b>%{x}</b>")
    '&lt;b&gt;%\u200b{x}&lt;/b&gt;'
    """
    short = str(text)
    if len(short) > most:
        short = short[: most - 1] + "…"
    for mark, written in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("%{", "%\u200b{")):
        short = short.replace(mark, written)
    return " ".join(short.split())


def shortened(text: str, most: int) -> str:
    """Return a name cut in its middle: what tells names apart is often at their ends.

    >>> shortened("cifar_wideresnet40_8", 12)
    'cifar_…t40_8'
    """
    if len(text) <= max(most, 3):
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"


def rounded(value: float) -> float | None:
    """Return a number in as many digits as a screen can tell apart; None where it is none."""
    return None if math.isnan(value) else float(f"{value:.6g}")


def human(seconds: float) -> str:
    """Return a time as a person would say it, in days where there are many hours.

    >>> human(75.0), human(3723.4), human(1_072_752.0)
    ('1m15s', '1h02m', '12d10h')
    """
    if seconds < 48 * 3600:
        return span(seconds)
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days:,}d{hours:02d}h"


def slot_time(seconds: float) -> str:
    """Return slot time: in hours, as it is paid for, unless there are few.

    >>> slot_time(75.0), slot_time(4_263_624.0)
    ('1m15s of slot time', '1,184 slot-hours')
    """
    if seconds < 10 * 3600:
        return f"{span(seconds)} of slot time"
    return f"{seconds / 3600:,.0f} slot-hours"


def many(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> many(1, "trial"), many(1200, "trial")
    ('1 trial', '1,200 trials')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
