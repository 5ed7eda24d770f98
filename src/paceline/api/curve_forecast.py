"""One curve and its futures: what a curve model says of a recorded run, or of a study's trial.

Knows where a curve comes from, how long an epoch of it takes, and what a forecast means for a
target and a deadline. Does not know how anything is shown.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.analysis.forecast_fan import Fan, FanRow
from paceline.api.registry import build, parse_part
from paceline.api.stored import folded
from paceline.core.errors import SpecError
from paceline.core.forecast_quantiles import confidence, horizons
from paceline.core.ports import History, Other
from paceline.core.values import LEVELS, Config, Mode, bounds_of, loss_of
from paceline.engines.sim.traces import read_trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paceline.core.decisions import Step
    from paceline.core.forecast_quantiles import Confidence
    from paceline.core.values import Forecast

_BANDS = tuple(LEVELS.index(level) for level in (0.025, 0.1, 0.5, 0.9, 0.975))


class Known(Struct, frozen=True, kw_only=True):
    """A curve as far as it is known, and what surrounds it."""

    source: str
    trial: int
    metric: str
    mode: Mode
    # The last epoch it can reach.
    epochs: int
    # None where the metric was not a number.
    values: list[float | None]
    # What came later, where that is recorded.
    later: list[float | None]
    epoch_s: float
    config: Config
    target: float | None
    # Time left; None: no deadline.
    left_s: float | None
    bounds: tuple[float, float] | None = None
    # Other curves of the same source, those that go furthest first.
    others: list[Other] = []


def known_of_trace(path: str, number: int, at: int | None) -> Known:
    """Return a recorded run up to an epoch; half of it where none is given."""
    trace = read_trace(path)
    runs = {run.id: run for run in trace.runs}
    if number not in runs:
        raise SpecError(f"{path} has no run {number}: its runs are 0 to {len(runs) - 1}.")
    run, header = runs[number], trace.header
    sign = 1.0 if header.mode == "min" else -1.0
    values = [None if math.isnan(value) else value for value in run.values]
    at = _place(max(1, len(values) // 2) if at is None else at, len(values))
    return Known(
        source=path,
        trial=number,
        metric=header.metric,
        mode=header.mode,
        epochs=header.max_epochs,
        values=values[:at],
        later=values[at:],
        epoch_s=sum(run.seconds[:at]) / at,
        config=run.config,
        target=header.target,
        left_s=None,
        others=_others(
            Other([loss_of(value, sign) for value in other.values], other.config)
            for other in trace.runs
            if other is not run
        ),
    )


def known_of_study(steps: Iterable[Step], number: int, at: int | None) -> Known:
    """Return a study's trial as far as it has come, or up to an epoch."""
    state = folded(steps)
    spec = state.spec
    if not 0 <= number < len(state.trials):
        last = len(state.trials) - 1
        found = "no trials yet" if last < 0 else f"trials 0 to {last}"
        raise SpecError(f"study {spec.name!r} has no trial {number}: it has {found}.")
    trial = state.trials[number]
    values = list(trial.metric(spec.metric))
    if not values:
        raise SpecError(f"trial {number} of study {spec.name!r} has not reported anything yet.")
    at = _place(len(values) if at is None else at, len(values))
    deadline = state.deadline_s
    return Known(
        source=spec.name,
        trial=number,
        metric=spec.metric,
        mode=spec.mode,
        epochs=spec.epochs,
        values=values[:at],
        later=values[at:],
        epoch_s=sum(trial.seconds[:at]) / at,
        config=trial.config,
        target=None if spec.budget.target is None else spec.budget.target.value,
        left_s=None if deadline is None else max(0.0, deadline - state.now),
        bounds=spec.bounds,
        others=_others(
            Other(list(other.losses), other.config)
            for other in state.trials
            if other is not trial and other.epoch
        ),
    )


def fan_of(
    known: Known,
    curves: str,
    *,
    target: float | None = None,
    left_s: float | None = None,
    within: tuple[float, float] | None = None,
) -> Fan:
    """Forecast a curve up to its last epoch, and the chance to reach the target in the time left.

    A target, time or range of values given here goes before the curve's own.
    """
    target = known.target if target is None else target
    left_s = known.left_s if left_s is None else left_s
    sign = 1.0 if known.mode == "min" else -1.0
    at = len(known.values)
    if at >= known.epochs:
        raise SpecError(
            f"trial {known.trial} is at its last epoch, {known.epochs}: nothing is left to "
            "forecast. Give an earlier one with --at."
        )
    asked = horizons(at, known.epochs)
    model = build("curve model", parse_part(curves))
    history = History(
        losses=[loss_of(value, sign) for value in known.values],
        horizons=asked,
        epochs=known.epochs,
        config=known.config,
        bounds=known.bounds if within is None else bounds_of(within, known.mode),
        others=known.others[: model.others],
    )
    (forecast,) = model.forecast([history])
    if forecast is None:
        raise SpecError(f"curve model {curves!r} has no forecast for this curve.")
    by = known.epochs
    if left_s is not None and known.epoch_s > 0.0:
        by = min(by, at + int(left_s / known.epoch_s))
    sure = None if target is None else _sure(forecast, sign * target, at, by)
    return Fan(
        source=known.source,
        trial=known.trial,
        metric=known.metric,
        mode=known.mode,
        curves=curves,
        epoch=at,
        epochs=known.epochs,
        values=known.values,
        rows=[_row(forecast, epoch, sign) for epoch in asked],
        target=target,
        deadline_s=left_s,
        by_epoch=by,
        chance=None if sure is None else sure.chance,
        expected_s=sure.epochs * known.epoch_s if sure and sure.chance else None,
    )


def _others(others: Iterable[Other]) -> list[Other]:
    return sorted(others, key=lambda other: -len(other.losses))


def _place(at: int, length: int) -> int:
    if not 1 <= at <= length:
        raise SpecError(f"--at {at} cannot be meant: this curve has epochs 1 to {length}.")
    return at


def _sure(forecast: Forecast, loss: float, at: int, by: int) -> Confidence:
    chances = [(epoch, forecast.chance(epoch, loss)) for epoch in forecast.epochs if epoch <= by]
    return confidence(chances, at)


def _row(forecast: Forecast, epoch: int, sign: float) -> FanRow:
    row: Sequence[float] = forecast.row(epoch)
    low_95, low_80, median, high_80, high_95 = sorted(sign * row[at] for at in _BANDS)
    return FanRow(
        epoch=epoch, low_95=low_95, low_80=low_80, median=median, high_80=high_80, high_95=high_95
    )
