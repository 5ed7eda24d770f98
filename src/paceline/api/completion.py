"""Completed traces: the curves of runs that were cut short, continued by drawn forecasts.

Knows which runs a simulation needs in full, and how a forecast becomes a curve. A draw takes one
quantile of the forecast, the same at all later epochs, so a run that is drawn good stays good; many
draws show how uncertain the result is. Later epochs take the mean time of the known ones.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from paceline.api.registry import build_part, parse_part
from paceline.core.curve_requests import forecast_curves
from paceline.core.errors import SpecError
from paceline.core.forecast_quantiles import LEVELS, choose_horizons
from paceline.core.ports import History
from paceline.core.rng import stream
from paceline.core.values import NO_LOSS, to_loss, to_loss_bounds
from paceline.engines.sim.traces import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.forecast_quantiles import Forecast
    from paceline.engines.sim.traces import TraceRun

# The curve model that continues curves.
COMPLETED_BY = "pfn"
# The draws of which the result of one simulation is the median.
DRAWS = 10


class Completion(Struct, frozen=True, kw_only=True):
    """How forecasts completed a trace, and how far the results of the draws differ.

    The result that has it is that of the draw with the median best value.
    """

    # Runs that were cut short, of all runs of the trace; and the curve model.
    cut: int
    runs: int
    curves: str
    draws: int
    # The lowest and the highest of all draws; None: some draws have none.
    best_range: tuple[float, float] | None
    makespan_range: tuple[float, float]
    epochs_range: tuple[int, int]
    # Draws that reached the target; None without a target.
    reached: int | None


def count_cut_runs(trace: Trace, epochs: int | None = None) -> int:
    """Return how many runs of a trace were cut short before an epoch, by default the last."""
    return sum(map(bool, _list_cut(trace, epochs or trace.header.max_epochs)))


def refuse_cut(trace: Trace, source: str, epochs: int | None) -> None:
    """Raise SpecError if a simulation would need epochs that a policy has cut off."""
    cut = count_cut_runs(trace, epochs)
    if cut:
        raise SpecError(
            f"{source} comes from a study that cut {cut} of its {len(trace.runs)} runs short, so "
            "it does not show what another policy would have found: give --complete "
            "(complete=True) to continue the curves by forecasts, or a trace of a study with "
            "policy fifo."
        )


def complete_trace(trace: Trace, draw: int, epochs: int | None = None) -> Trace:
    """Return a trace with every run up to an epoch, by default the last; each draw is another."""
    last = epochs or trace.header.max_epochs
    forecasts = iter(_forecast_rest(_ById(trace), last))
    sign = 1.0 if trace.header.mode == "min" else -1.0
    runs = [
        _complete_run(run, next(forecasts), last, sign, draw) if is_cut else run
        for run, is_cut in zip(trace.runs, _list_cut(trace, last), strict=True)
    ]
    return Trace(replace(trace.header, cut=0), runs)


class _ById:
    """A trace that is equal to itself alone: a key of the cache, which holds the trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def __hash__(self) -> int:
        return id(self.trace)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and self.trace is other.trace


def _list_cut(trace: Trace, epochs: int) -> list[bool]:
    return [run.cut and len(run.values) < epochs for run in trace.runs]


@lru_cache(maxsize=8)
def _forecast_rest(key: _ById, last: int) -> Sequence[Forecast | None]:
    """Return a forecast up to an epoch for each run that was cut before it; None: it has none."""
    trace, header = key.trace, key.trace.header
    sign = 1.0 if header.mode == "min" else -1.0
    bounds = None if header.range is None else to_loss_bounds(header.range, header.mode)
    histories = [
        History(
            losses=[to_loss(value, sign) for value in run.values],
            horizons=choose_horizons(len(run.values), last),
            epochs=last,
            config=run.config,
            bounds=bounds,
        )
        for run, is_cut in zip(trace.runs, _list_cut(trace, last), strict=True)
        if is_cut
    ]
    return forecast_curves(build_part("curve model", parse_part(COMPLETED_BY)), histories)


def _complete_run(
    run: TraceRun, forecast: Forecast | None, last: int, sign: float, draw: int
) -> TraceRun:
    known = len(run.values)
    mean = math.fsum(run.seconds) / known
    seconds = array("d", [*run.seconds, *[mean] * (last - known)])
    if forecast is None:
        values = array("d", [*run.values, *[run.values[-1]] * (last - known)])
    else:
        level = stream(draw, "completion", run.id).random()
        values = _continue_curve(run.values, forecast, level, sign)
    return replace(run, values=values, seconds=seconds, cut=False)


def _continue_curve(
    known: array[float], forecast: Forecast, level: float, sign: float
) -> array[float]:
    """Return a curve continued along one quantile of its forecast."""
    # From the last number on; a curve that ends without one goes on at the first forecast.
    at, loss = len(known), to_loss(known[-1], sign)
    values = array("d", known)
    for epoch, row in zip(forecast.epochs, forecast.quantiles, strict=True):
        later = _find_quantile(row, level)
        start = later if loss == NO_LOSS else loss
        for step in range(at + 1, epoch + 1):
            values.append(sign * (start + (later - start) * (step - at) / (epoch - at)))
        at, loss = epoch, later
    return values


def _find_quantile(row: Sequence[float], level: float) -> float:
    """Return the loss at a level from 0 to 1, linear between the levels that a forecast states."""
    if level <= LEVELS[0]:
        return row[0]
    if level >= LEVELS[-1]:
        return row[-1]
    at = bisect_right(LEVELS, level)
    share = (level - LEVELS[at - 1]) / (LEVELS[at] - LEVELS[at - 1])
    return row[at - 1] + share * (row[at] - row[at - 1])
