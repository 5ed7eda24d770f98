"""The figures of a comparison: when, how good by when, who held the slots, how long trials trained.

Knows how many runs become one line: medians and bands over seeds, means of levels, shares of
trials. HyperDrive's figures 4, 6, 7 and 12, for any policies. Does not know how runs come about.
"""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from paceline.analysis.profiles import CLASSES, RUNNING
from paceline.core.values import NO_LOSS
from paceline.plots.series import levels, means, spread
from paceline.plots.style import AXIS, CONFIG, clock_axis, drawn, empty, plain, rounded, unit_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.analysis.profiles import Raced
    from paceline.plots.style import Unit

# One for each policy, in turn; they can be told apart by who sees no red or no green.
_COLOURS = ("#1c7ed6", "#e8590c", "#2b8a3e", "#9c36b5", "#868e96", "#e64980", "#0c8599", "#b08968")
_DASHES = {RUNNING: "solid", "promising": "solid", "opportunistic": "dot"}
# Points of a line over time, and of a distribution.
_POINTS, _SHARES = 120, 200
# Title, subtitle and legend above each other.
_ROOM = {"l": 56, "r": 16, "t": 108, "b": 48}
# The band holds four of five runs.
_LOW, _HIGH = 0.1, 0.9


def compared_page(raced: Sequence[Raced]) -> str:
    """Return all figures of all places as one HTML page that needs no network."""
    parts = []
    for place, group in groupby(raced, lambda each: each.place):
        lines = list(group)
        parts.append(f"<h1>{plain(place, 200)}</h1>")
        for draw in FIGURES.values():
            script = len(parts) == 1
            parts.append(
                draw(lines).to_html(
                    full_html=False,
                    include_plotlyjs=script,
                    config=CONFIG,
                    div_id=f"figure-{len(parts)}",
                )
            )
    body = "\n".join(parts)
    style = "body{font-family:system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Paceline: policies '
        f"compared</title><style>{style}</style></head>\n<body>{body}</body></html>\n"
    )


def time_to_target(raced: Sequence[Raced]) -> go.Figure:
    """Draw how the time to target is distributed over seeds, for each policy."""
    title = "Time to target"
    if raced[0].target is None:
        return empty(title, "These runs had no target.")
    unit = _unit(raced)
    traces = []
    for each, name, colour in _named(raced):
        never = each.reached.count(False)
        traces.append(
            go.Box(
                x=[rounded(time / unit.seconds) for time in each.times],
                name=name + (f" ({never} never)" if never else ""),
                boxpoints="all",
                jitter=0.4,
                line={"color": colour, "width": 1.5},
                marker={"size": 4},
                showlegend=False,
            )
        )
    return drawn(
        traces,
        title=title,
        subtitle=f"Each point is one of {len(raced[0].times)} orders of configs, the same for all. "
        "Who never reached it counts with the time at which the run ended.",
        height=160 + 60 * len(raced),
        xaxis=clock_axis(unit, _longest(raced)),
        yaxis=AXIS | {"autorange": "reversed"},
    )


def best_by_time(raced: Sequence[Raced]) -> go.Figure:
    """Draw the best value by each time: the median of the runs, and where four of five lie."""
    unit, grid = _unit(raced), _grid(raced)
    traces: list[Any] = []
    for each, name, colour in _named(raced):
        found = [_losses(each, at) for at in grid]
        # Before more than half of the runs have a number there is no median.
        known = [(at, row) for at, row in zip(grid, found, strict=True) if _at(row, 0.5) < NO_LOSS]
        times = [rounded(at / unit.seconds) for at, _ in known]
        low, middle, high = (
            [rounded(each.sign * _at(row, share)) for _, row in known]
            for share in (_LOW, 0.5, _HIGH)
        )
        seen = [at for at, (_, row) in enumerate(known) if _at(row, _HIGH) < NO_LOSS]
        band = [times[at] for at in seen]
        traces.append(
            go.Scatter(
                x=band + band[::-1],
                y=[low[at] for at in seen] + [high[at] for at in reversed(seen)],
                fill="toself",
                fillcolor=colour,
                opacity=0.15,
                line={"width": 0},
                hoverinfo="skip",
                showlegend=False,
            )
        )
        traces.append(go.Scatter(x=times, y=middle, line={"color": colour}, name=name))
    return drawn(
        traces,
        title=f"Best {plain(raced[0].metric)} by time",
        subtitle="Median over seeds; four of five runs lie in the band. A run that has ended keeps "
        "what it found.",
        margin=_ROOM,
        height=440,
        xaxis=clock_axis(unit, grid[-1]),
        yaxis=AXIS | {"title": {"text": plain(raced[0].metric)}},
    )


def slots_by_class(raced: Sequence[Raced]) -> go.Figure:
    """Draw the slots that trials held, by class where the policy has classes."""
    unit, edges = _unit(raced), [0.0, *_grid(raced)]
    middles = [rounded((soon + late) / 2 / unit.seconds) for soon, late in pairwise(edges)]
    traces = []
    for each, name, colour in _named(raced):
        for label in (RUNNING, *CLASSES):
            held = [course.held[label] for course in each.courses if label in course.held]
            if not held:
                continue
            lives = [[(0.0, 1.0), (course.until, -1.0)] for course in each.courses]
            slots, going = _summed(held, edges), _summed(lives, edges)
            shown = [at for at, count in enumerate(going) if count > 0]
            traces.append(
                go.Scatter(
                    x=[middles[at] for at in shown],
                    y=[rounded(slots[at] / going[at]) for at in shown],
                    line={"color": colour, "dash": _DASHES[label]},
                    name=name if label == RUNNING else f"{name}: {label}",
                )
            )
    return drawn(
        traces,
        title="Slots held",
        subtitle=f"Of {raced[0].slots}, mean over the seeds whose runs still go on; by class where "
        "the policy has classes.",
        margin=_ROOM,
        height=400,
        xaxis=clock_axis(unit, edges[-1]),
        yaxis=AXIS | {"title": {"text": "slots"}, "rangemode": "tozero"},
    )


def trial_durations(raced: Sequence[Raced]) -> go.Figure:
    """Draw which share of the trials trained at most so long."""
    longest = max((time for each in raced for time in _trained(each)), default=0.0)
    if not longest:
        return empty("How long trials trained", "No trial finished an epoch.")
    unit = unit_of(longest)
    traces = []
    for each, name, colour in _named(raced):
        times = _trained(each)
        points = spread(list(enumerate(times, 1)), _SHARES)
        traces.append(
            go.Scatter(
                x=[rounded(time / unit.seconds) for _, time in points],
                y=[rounded(count / len(times)) for count, _ in points],
                line={"color": colour, "shape": "hv"},
                name=name,
            )
        )
    return drawn(
        traces,
        title="How long trials trained",
        subtitle="The share of all trials, over all seeds, that trained at most so long.",
        margin=_ROOM,
        height=400,
        xaxis=AXIS | {"title": {"text": f"training time of a trial ({unit.name})"}},
        yaxis=AXIS
        | {"title": {"text": "share of trials"}, "tickformat": ".0%", "range": [0, 1.02]},
    )


# In the order in which a page shows them.
FIGURES: dict[str, Callable[[Sequence[Raced]], go.Figure]] = {
    "times": time_to_target,
    "best": best_by_time,
    "slots": slots_by_class,
    "durations": trial_durations,
}


def _named(raced: Sequence[Raced]) -> list[tuple[Raced, str, str]]:
    """Return each with its name and colour; what all names have in common is left out."""
    columns = zip(*(each.who for each in raced), strict=True)
    shown = [at for at, column in enumerate(columns) if len(set(column)) > 1] or [0]
    return [
        (each, plain(", ".join(each.who[at] for at in shown)), _COLOURS[index % len(_COLOURS)])
        for index, each in enumerate(raced)
    ]


def _longest(raced: Sequence[Raced]) -> float:
    return max(time for each in raced for time in each.times)


def _unit(raced: Sequence[Raced]) -> Unit:
    return unit_of(_longest(raced))


def _grid(raced: Sequence[Raced]) -> list[float]:
    end = _longest(raced)
    return [end * (at + 1) / _POINTS for at in range(_POINTS)] if end > 0 else [1.0]


def _summed(changes: Sequence[list[tuple[float, float]]], edges: list[float]) -> list[float]:
    """Return the sum over runs of what each had on average between neighbouring edges."""
    rows = [means(levels([each], edges[-1]), edges)[0] for each in changes]
    return [sum(column) for column in zip(*rows, strict=True)]


def _losses(each: Raced, at: float) -> list[float]:
    """Return the best losses of all runs by a time, the best first."""
    values = (course.value_at(at) for course in each.courses)
    return sorted(NO_LOSS if value is None else each.sign * value for value in values)


def _at(losses: Sequence[float], share: float) -> float:
    return losses[round(share * (len(losses) - 1))]


def _trained(each: Raced) -> list[float]:
    return sorted(time for course in each.courses for time in course.trained)
