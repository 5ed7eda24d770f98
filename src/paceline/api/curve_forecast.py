"""Forecast one learning curve, of a recorded run or of a study's trial.

Knows where the curve comes from, how long an epoch takes, and the chance to reach a target before a
deadline. Does not know how a forecast is shown.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.analysis.forecast_fan import Fan, FanRow
from paceline.api.registry import build_part, parse_part
from paceline.api.stored import fold_log
from paceline.core.curve_requests import forecast_curves
from paceline.core.errors import SpecError
from paceline.core.forecast_quantiles import (
    LEVELS,
    choose_horizons,
    compute_confidence,
)
from paceline.core.ports import History, Other
from paceline.core.values import NO_LOSS, Config, Mode, to_loss, to_loss_bounds
from paceline.engines.sim.traces import read_trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paceline.core.decisions import Step
    from paceline.core.forecast_quantiles import Forecast, TargetConfidence

# Words in the names of metrics that are shares of one, as long as all known values are, too.
_SHARES = frozenset(
    {"acc", "accuracy", "auc", "auroc", "f1", "precision", "recall", "top1", "top5"}
)
_BANDS = tuple(LEVELS.index(level) for level in (0.025, 0.1, 0.5, 0.9, 0.975))


class KnownCurve(Struct, frozen=True, kw_only=True):
    """The known epochs of a curve, and the facts that a forecast needs."""

    source: str
    trial: int
    metric: str
    mode: Mode
    # The last epoch of a trial.
    epochs: int
    # None where the metric was not a number.
    values: list[float | None]
    # The later values, if they are recorded.
    later: list[float | None]
    epoch_s: float
    config: Config
    target: float | None
    # Time left; None: no deadline.
    left_s: float | None
    bounds: tuple[float, float] | None = None
    # Other curves of the same source, longest first.
    others: list[Other] = []


def read_trace_curve(path: str, number: int, at: int | None) -> KnownCurve:
    """Return a recorded run up to an epoch.

    By default it is the first half, to compare the forecast with the rest; of a run that was cut
    short, all of it.
    """
    trace = read_trace(path)
    runs = {run.id: run for run in trace.runs}
    if number not in runs:
        raise SpecError(f"{path} has no run {number}: its runs are 0 to {len(runs) - 1}.")
    run, header = runs[number], trace.header
    sign = 1.0 if header.mode == "min" else -1.0
    values = [None if math.isnan(value) else value for value in run.values]
    if at is None:
        at = len(values) if run.cut else max(1, len(values) // 2)
    at = _check_epoch(at, len(values))
    return KnownCurve(
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
        bounds=None if header.range is None else to_loss_bounds(header.range, header.mode),
        others=_sort_others(
            Other([to_loss(value, sign) for value in other.values], other.config)
            for other in trace.runs
            if other is not run
        ),
    )


def read_study_curve(steps: Iterable[Step], number: int, at: int | None) -> KnownCurve:
    """Return the curve of a study's trial up to an epoch; by default all of it."""
    state = fold_log(steps)
    spec = state.spec
    if not 0 <= number < len(state.trials):
        last = len(state.trials) - 1
        found = "no trials yet" if last < 0 else f"trials 0 to {last}"
        raise SpecError(f"study {spec.name!r} has no trial {number}: it has {found}.")
    trial = state.trials[number]
    values = list(trial.metric(spec.metric))
    if not values:
        raise SpecError(f"trial {number} of study {spec.name!r} has no report yet.")
    at = _check_epoch(len(values) if at is None else at, len(values))
    deadline = state.deadline_s
    return KnownCurve(
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
        others=_sort_others(
            Other(list(other.losses), other.config)
            for other in state.trials
            if other is not trial and other.epoch
        ),
    )


def forecast_curve(
    known: KnownCurve,
    curves: str,
    *,
    target: float | None = None,
    left_s: float | None = None,
    within: tuple[float, float] | None = None,
) -> Fan:
    """Forecast a curve up to its last epoch, and its chance to reach the target in the time left.

    A target, time or range given here replaces the curve's own.
    """
    target = known.target if target is None else target
    left_s = known.left_s if left_s is None else left_s
    sign = 1.0 if known.mode == "min" else -1.0
    at = len(known.values)
    if at >= known.epochs:
        raise SpecError(
            f"trial {known.trial} is at its last epoch, {known.epochs}: there is nothing left to "
            "forecast. Give an earlier epoch with --at."
        )
    later = choose_horizons(at, known.epochs)
    bounds = known.bounds if within is None else to_loss_bounds(within, known.mode)
    is_assumed = bounds is None and _is_share(known, sign)
    if is_assumed:
        bounds = to_loss_bounds((0.0, 1.0), known.mode)
    model = build_part("curve model", parse_part(curves))
    history = History(
        losses=[to_loss(value, sign) for value in known.values],
        horizons=later,
        epochs=known.epochs,
        config=known.config,
        bounds=bounds,
        others=known.others[: model.others],
    )
    (forecast,) = forecast_curves(model, [history])
    if forecast is None:
        raise SpecError(f"curve model {curves!r} has no forecast for this curve.")
    by = known.epochs
    if left_s is not None and known.epoch_s > 0.0:
        by = min(by, at + int(left_s / known.epoch_s))
    sure = None if target is None else _measure_confidence(forecast, sign * target, at, by)
    return Fan(
        source=known.source,
        trial=known.trial,
        metric=known.metric,
        mode=known.mode,
        curves=curves,
        epoch=at,
        epochs=known.epochs,
        values=known.values,
        rows=[_make_row(forecast, epoch, sign) for epoch in later],
        target=target,
        deadline_s=left_s,
        by_epoch=by,
        chance=None if sure is None else sure.chance,
        expected_s=sure.epochs * known.epoch_s if sure and sure.chance else None,
        range=None if bounds is None else to_loss_bounds(bounds, known.mode),
        is_range_assumed=is_assumed,
    )


def _is_share(known: KnownCurve, sign: float) -> bool:
    """Return whether a metric is a share of one, such as an accuracy, by its name and values."""
    words = re.split("[^a-z0-9]+", known.metric.lower())
    values = [value for value in known.values if value is not None]
    losses = [loss for other in known.others for loss in other.losses if loss < NO_LOSS]
    values += [sign * loss for loss in losses]
    return bool(_SHARES & {*words}) and all(0.0 <= value <= 1.0 for value in values)


def _sort_others(others: Iterable[Other]) -> list[Other]:
    return sorted(others, key=lambda other: -len(other.losses))


def _check_epoch(at: int, length: int) -> int:
    if not 1 <= at <= length:
        raise SpecError(f"--at {at} is invalid: must be from 1 to {length}.")
    return at


def _measure_confidence(forecast: Forecast, loss: float, at: int, by: int) -> TargetConfidence:
    chances = [(epoch, forecast.chance(epoch, loss)) for epoch in forecast.epochs if epoch <= by]
    return compute_confidence(chances, at)


def _make_row(forecast: Forecast, epoch: int, sign: float) -> FanRow:
    row: Sequence[float] = forecast.row(epoch)
    low_95, low_80, median, high_80, high_95 = sorted(sign * row[at] for at in _BANDS)
    return FanRow(
        epoch=epoch, low_95=low_95, low_80=low_80, median=median, high_80=high_80, high_95=high_95
    )
