"""The figures of a comparison: times to target, best values, slots held, training times.

Combines many runs into one line: medians and bands over seeds, means of levels, shares of trials.
HyperDrive's figures 4, 6, 7 and 12, for any policies. Does not run anything.
"""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from paceline.analysis.profiles import CLASSES, RUNNING
from paceline.core.values import NO_LOSS
from paceline.plots.series import compute_means, sample_evenly, sum_levels
from paceline.plots.style import (
    AXIS,
    CONFIG,
    choose_unit,
    escape_text,
    make_clock_axis,
    make_empty_figure,
    make_figure,
    round_number,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.analysis.profiles import PolicyRuns
    from paceline.plots.style import TimeUnit

# One per policy, in turn; distinguishable without seeing red or green.
_COLOURS = ("#1c7ed6", "#e8590c", "#2b8a3e", "#9c36b5", "#868e96", "#e64980", "#0c8599", "#b08968")
_DASHES = {RUNNING: "solid", "promising": "solid", "opportunistic": "dot"}
# Points of a line over time, and of a distribution.
_POINTS, _SHARES = 120, 200
# Title, subtitle and legend above each other.
_ROOM = {"l": 56, "r": 16, "t": 108, "b": 48}
# The band holds four of five runs.
_LOW, _HIGH = 0.1, 0.9


def render_comparison(runs: Sequence[PolicyRuns]) -> str:
    """Return all figures of all traces as one HTML page that needs no network."""
    parts = []
    for place, group in groupby(runs, lambda each: each.place):
        lines = list(group)
        parts.append(f"<h1>{escape_text(place, 200)}</h1>")
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


def draw_time_to_target(runs: Sequence[PolicyRuns]) -> go.Figure:
    """Draw how the time to target is distributed over seeds, for each policy."""
    title = "Time to target"
    if runs[0].target is None:
        return make_empty_figure(title, "These runs had no target.")
    unit = _choose_unit(runs)
    traces = []
    for each, name, colour in _name_runs(runs):
        never = each.reached.count(False)
        traces.append(
            go.Box(
                x=[round_number(time / unit.seconds) for time in each.times],
                name=name + (f" ({never} never)" if never else ""),
                boxpoints="all",
                jitter=0.4,
                line={"color": colour, "width": 1.5},
                marker={"size": 4},
                showlegend=False,
            )
        )
    return make_figure(
        traces,
        title=title,
        subtitle=f"Each point is one of {len(runs[0].times)} orders of configs, the same for all "
        "policies. "
        "A run that never reached the target counts with the time at which it ended.",
        height=160 + 60 * len(runs),
        xaxis=make_clock_axis(unit, _find_longest(runs)),
        yaxis=AXIS | {"autorange": "reversed"},
    )


def draw_best_by_time(runs: Sequence[PolicyRuns]) -> go.Figure:
    """Draw the best value over time: the median of the runs, and a band of four in five."""
    unit, grid = _choose_unit(runs), _make_grid(runs)
    traces: list[Any] = []
    for each, name, colour in _name_runs(runs):
        found = [_sort_losses(each, at) for at in grid]
        # There is no median before half of the runs have a number.
        known = [
            (at, row)
            for at, row in zip(grid, found, strict=True)
            if _pick_quantile(row, 0.5) < NO_LOSS
        ]
        times = [round_number(at / unit.seconds) for at, _ in known]
        low, middle, high = (
            [round_number(each.sign * _pick_quantile(row, share)) for _, row in known]
            for share in (_LOW, 0.5, _HIGH)
        )
        seen = [at for at, (_, row) in enumerate(known) if _pick_quantile(row, _HIGH) < NO_LOSS]
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
    return make_figure(
        traces,
        title=f"Best {escape_text(runs[0].metric)} by time",
        subtitle="Median over seeds; four of five runs are in the band. A run that has ended keeps "
        "what it found.",
        margin=_ROOM,
        height=440,
        xaxis=make_clock_axis(unit, grid[-1]),
        yaxis=AXIS | {"title": {"text": escape_text(runs[0].metric)}},
    )


def draw_slots_by_label(runs: Sequence[PolicyRuns]) -> go.Figure:
    """Draw the slots that trials held, by label if the policy labels trials."""
    unit, edges = _choose_unit(runs), [0.0, *_make_grid(runs)]
    middles = [round_number((soon + late) / 2 / unit.seconds) for soon, late in pairwise(edges)]
    traces = []
    for each, name, colour in _name_runs(runs):
        for label in (RUNNING, *CLASSES):
            held = [profile.held[label] for profile in each.profiles if label in profile.held]
            if not held:
                continue
            durations = [[(0.0, 1.0), (profile.until, -1.0)] for profile in each.profiles]
            slots, going = _sum_means(held, edges), _sum_means(durations, edges)
            shown = [at for at, count in enumerate(going) if count > 0]
            traces.append(
                go.Scatter(
                    x=[middles[at] for at in shown],
                    y=[round_number(slots[at] / going[at]) for at in shown],
                    line={"color": colour, "dash": _DASHES[label]},
                    name=name if label == RUNNING else f"{name}: {label}",
                )
            )
    return make_figure(
        traces,
        title="Slots held",
        subtitle=f"Of {runs[0].slots}, mean over the seeds whose runs have not ended; by label if "
        "the policy labels trials.",
        margin=_ROOM,
        height=400,
        xaxis=make_clock_axis(unit, edges[-1]),
        yaxis=AXIS | {"title": {"text": "slots"}, "rangemode": "tozero"},
    )


def draw_trial_durations(runs: Sequence[PolicyRuns]) -> go.Figure:
    """Draw the cumulative distribution of training time per trial."""
    longest = max((time for each in runs for time in _sort_times(each)), default=0.0)
    if not longest:
        return make_empty_figure("How long trials trained", "No trial finished an epoch.")
    unit = choose_unit(longest)
    traces = []
    for each, name, colour in _name_runs(runs):
        times = _sort_times(each)
        points = sample_evenly(list(enumerate(times, 1)), _SHARES)
        traces.append(
            go.Scatter(
                x=[round_number(time / unit.seconds) for _, time in points],
                y=[round_number(count / len(times)) for count, _ in points],
                line={"color": colour, "shape": "hv"},
                name=name,
            )
        )
    return make_figure(
        traces,
        title="How long trials trained",
        subtitle="The share of all trials, over all seeds, that trained for at most this long.",
        margin=_ROOM,
        height=400,
        xaxis=AXIS | {"title": {"text": f"training time of a trial ({unit.name})"}},
        yaxis=AXIS
        | {"title": {"text": "share of trials"}, "tickformat": ".0%", "range": [0, 1.02]},
    )


# In the order of the page.
FIGURES: dict[str, Callable[[Sequence[PolicyRuns]], go.Figure]] = {
    "times": draw_time_to_target,
    "best": draw_best_by_time,
    "slots": draw_slots_by_label,
    "durations": draw_trial_durations,
}


def _name_runs(runs: Sequence[PolicyRuns]) -> list[tuple[PolicyRuns, str, str]]:
    """Return runs with their names and colours; parts that all runs share are not in the names."""
    columns = zip(*(each.parts for each in runs), strict=True)
    shown = [at for at, column in enumerate(columns) if len(set(column)) > 1] or [0]
    return [
        (
            each,
            escape_text(", ".join(each.parts[at] for at in shown)),
            _COLOURS[index % len(_COLOURS)],
        )
        for index, each in enumerate(runs)
    ]


def _find_longest(runs: Sequence[PolicyRuns]) -> float:
    return max(time for each in runs for time in each.times)


def _choose_unit(runs: Sequence[PolicyRuns]) -> TimeUnit:
    return choose_unit(_find_longest(runs))


def _make_grid(runs: Sequence[PolicyRuns]) -> list[float]:
    end = _find_longest(runs)
    return [end * (at + 1) / _POINTS for at in range(_POINTS)] if end > 0 else [1.0]


def _sum_means(changes: Sequence[list[tuple[float, float]]], edges: list[float]) -> list[float]:
    """Return the sum over runs of their means between neighbouring edges."""
    rows = [compute_means(sum_levels([each], edges[-1]), edges)[0] for each in changes]
    return [sum(column) for column in zip(*rows, strict=True)]


def _sort_losses(each: PolicyRuns, at: float) -> list[float]:
    """Return the best losses of all runs at a time, sorted."""
    values = (profile.value_at(at) for profile in each.profiles)
    return sorted(NO_LOSS if value is None else each.sign * value for value in values)


def _pick_quantile(losses: Sequence[float], share: float) -> float:
    return losses[round(share * (len(losses) - 1))]


def _sort_times(each: PolicyRuns) -> list[float]:
    return sorted(time for profile in each.profiles for time in profile.trained)
