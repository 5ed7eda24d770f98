"""The figures of values: learning curves, and the best value over time.

Knows which curves tell most where there are too many to draw. Does not fold a log.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from paceline.plots.series import spread, thinned
from paceline.plots.style import (
    ACCENT,
    ALARM,
    AXIS,
    NEUTRAL,
    SHADES,
    Shade,
    Unit,
    clock_axis,
    drawn,
    empty,
    human,
    many,
    plain,
    rounded,
    shade_key,
    unit_of,
    window,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.analysis.timeline import Chronicle, TrialPast

# So many curves, and so many points of each, can be told apart on a screen.
MOST_CURVES = 200
MOST_POINTS = 200
# Of the curves that are drawn where not all can be: the best, then the longest of the rest, and
# then an even sample of what remains.
_BEST_SHARE, _LONGEST_SHARE = 0.5, 0.3
# The share of a study's time that its start takes.
_START = 0.01
# A deadline is drawn up to so many times the time that has passed.
_FAR = 3.0


def learning_curves(chronicle: Chronicle) -> go.Figure:
    """Draw the metric by epoch, a line for each trial."""
    title, spec = "Learning curves", chronicle.spec
    metric = plain(spec.metric)
    told = [trial for trial in chronicle.trials if any(not math.isnan(v) for v in trial.values)]
    if not told:
        return empty(title, _nothing(chronicle))
    shown = telling(told, spec.sign, MOST_CURVES)
    groups: dict[str, list[TrialPast]] = {shade.key: [] for shade in SHADES}
    for trial in shown:
        groups[shade_key(trial, chronicle)].append(trial)
    counts = Counter(shade_key(trial, chronicle) for trial in told)
    traces = []
    for shade in SHADES:
        if groups[shade.key]:
            traces += _lines(groups[shade.key], shade, counts[shade.key])
    view = window((v for t in shown for v in t.values if not math.isnan(v)), spec.sign, metric)
    words = []
    if len(shown) < len(told):
        words.append(
            f"{len(shown)} of {many(len(told), 'trial')}: the best, the longest, and an even sample"
        )
    if view.beyond:
        words.append(f"{many(view.beyond, 'value')} beyond the edge (double-click to see all)")
    return drawn(
        traces,
        title=title,
        subtitle="; ".join(words),
        height=460,
        xaxis=_epoch_axis(max(trial.epochs for trial in shown)),
        yaxis=view.axis,
        hovermode="closest",
    )


def _epoch_axis(last: int) -> dict[str, Any]:
    """Return the axis of epochs, which are counted from 1."""
    room = 0.02 * (last - 1) or 1.0
    axis = dict(AXIS, title={"text": "epoch"}, range=[1 - room, last + room])
    return axis | {"dtick": 1} if last <= 12 else axis


def telling(trials: Sequence[TrialPast], sign: float, most: int) -> list[TrialPast]:
    """Return the trials whose curves tell most: the best, the longest, and some of the rest."""
    if len(trials) <= most:
        return list(trials)
    ranked = sorted(trials, key=lambda t: (math.inf if t.best is None else sign * t.best, t.trial))
    top = int(most * _BEST_SHARE)
    rest = sorted(ranked[top:], key=lambda t: (-t.epochs, t.trial))
    long = int(most * _LONGEST_SHARE)
    others = sorted(rest[long:], key=lambda t: t.trial)
    picked = [*ranked[:top], *rest[:long], *spread(others, most - top - long)]
    return sorted(picked, key=lambda t: t.trial)


def best_over_time(chronicle: Chronicle) -> go.Figure:
    """Draw the best value so far, with the target and the deadline."""
    title, spec, budget = "Best value over time", chronicle.spec, chronicle.spec.budget
    if not chronicle.leads:
        return empty(title, _nothing(chronicle))
    deadline = budget.deadline_s
    # A deadline that the study did not need by far would leave its line no room.
    near = deadline is not None and deadline <= _FAR * chronicle.now
    until = max(chronicle.now, deadline or 0.0) if near else chronicle.now
    unit = unit_of(until)
    # The first values beat nothing: what came after them is what one wants to tell apart.
    values = [lead.value for lead in chronicle.leads]
    later = [lead.value for lead in chronicle.leads if lead.at > _START * chronicle.now]
    cut = len(set(later)) > 1 and len(later) < len(values)
    inside = later if cut else values
    view = window(inside, spec.sign, plain(spec.metric))
    target = None if budget.target is None else budget.target.value
    if target is not None or cut:
        _make_room(view.axis, inside if target is None else [*inside, target])
    words = [_lead_words(chronicle)]
    if cut:
        words.append("its start is beyond the edge")
    if deadline is not None and not near:
        words.append(f"the deadline is at {human(deadline)}")
    figure = drawn(
        _lead_traces(chronicle, unit),
        title=title,
        subtitle="; ".join(words),
        xaxis=clock_axis(unit, until),
        yaxis=view.axis,
        hovermode="closest",
    )
    # Words stand where the line is not: it ends near the target, on this side of it.
    above, below = ("top", "bottom") if spec.mode == "max" else ("bottom", "top")
    if target is not None:
        figure.add_hline(y=target, **_limit(f"target {target:.6g}", f"{above} left", NEUTRAL))
    if deadline is not None and near:
        look = _limit(f"deadline {human(deadline)}", f"{below} left", ALARM)
        figure.add_vline(x=deadline / unit.seconds, **look)
    return figure


def _lead_traces(chronicle: Chronicle, unit: Unit) -> list[Any]:
    """Return the line of the best value, and a point where it changed."""
    leads = chronicle.leads
    xs = [lead.at / unit.seconds for lead in leads]
    ys = [rounded(lead.value) for lead in leads]
    line = go.Scatter(
        x=[*xs, chronicle.now / unit.seconds],
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
        customdata=[[lead.trial] for lead in leads],
        text=[
            f"{lead.value:.6g}<br>trial {lead.trial}, epoch {lead.epoch}<br>after {human(lead.at)}"
            for lead in leads
        ],
        hovertemplate="%{text}<extra></extra>",
        showlegend=False,
    )
    return [line, points]


def _make_room(axis: dict[str, Any], values: Sequence[float]) -> None:
    """Give an axis a range with all of these inside, and some room for words."""
    log = axis.get("type") == "log"
    inside = [math.log10(value) if log else value for value in values if value > 0 or not log]
    low, high = axis.get("range") or (min(inside), max(inside))
    low, high = min(low, *inside), max(high, *inside)
    room = 0.09 * (high - low) or abs(high) or 1.0
    axis["range"] = [low - room, high + room]


def _lines(trials: list[TrialPast], shade: Shade, count: int) -> list[Any]:
    """Return one trace for all curves of a shade, with gaps between them; the best has a mark."""
    xs: list[int | None] = []
    ys: list[float | None] = []
    who: list[int | None] = []
    for trial in trials:
        for at in thinned(trial.values, MOST_POINTS):
            xs.append(at + 1)
            ys.append(rounded(trial.values[at]))
            who.append(trial.trial)
        xs.append(None)
        ys.append(None)
        who.append(None)
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
        customdata=who,
        hovertemplate=(
            f"trial %{{customdata}}, {shade.label}<br>epoch %{{x}}: %{{y:.6g}}<extra></extra>"
        ),
    )
    if best:
        marked = [(trial, trial.best_epoch) for trial in trials]
        return [lines, _marks(marked, shade, "its best", {"size": 11})]
    if shade.key == "failed":
        marked = [(trial, _last(trial)) for trial in trials]
        return [lines, _marks(marked, shade, "failed", {"size": 7, "symbol": "x-thin-open"})]
    # A curve of one report is a point: a line would not show it.
    marked = [(trial, _last(trial)) for trial in trials if trial.epochs == 1]
    return [lines, _marks(marked, shade, shade.label, {"size": 4})] if marked else [lines]


def _marks(
    marked: list[tuple[TrialPast, int]], shade: Shade, words: str, marker: dict[str, Any]
) -> go.Scatter:
    """Return a mark at an epoch of each of these trials."""
    return go.Scatter(
        x=[epoch for _, epoch in marked],
        y=[rounded(trial.values[epoch - 1]) for trial, epoch in marked],
        mode="markers",
        legendgroup=shade.key,
        showlegend=False,
        marker={"color": shade.colour, **marker},
        customdata=[trial.trial for trial, _ in marked],
        hovertemplate=f"trial %{{customdata}}, {words}<br>epoch %{{x}}: %{{y:.6g}}<extra></extra>",
    )


def _last(trial: TrialPast) -> int:
    return max(at for at, value in enumerate(trial.values, 1) if not math.isnan(value))


def _limit(words: str, place: str, colour: str) -> dict[str, Any]:
    """Return the look of a line that a budget draws."""
    return {
        "line": {"color": colour, "dash": "dash", "width": 1.3},
        "annotation_text": words,
        "annotation_position": place,
    }


def _lead_words(chronicle: Chronicle) -> str:
    lead = chronicle.leads[-1]
    metric = plain(chronicle.spec.metric)
    return f"{metric} {lead.value:.6g} after {human(lead.at)}, by trial {lead.trial}"


def _nothing(chronicle: Chronicle) -> str:
    metric = plain(chronicle.spec.metric)
    if not chronicle.trials:
        return "No trial has been opened yet."
    if all(not trial.epochs for trial in chronicle.trials):
        return "No trial has reported yet."
    return f"No trial has reported a number: {metric} was NaN or infinite in every epoch."
