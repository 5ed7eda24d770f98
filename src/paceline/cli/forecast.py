"""`paceline forecast`: forecast one learning curve of a trace or of a study.

Knows how a forecast is printed as text. Does not know how it is made.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.api.curve_forecast import forecast_curve, read_study_curve, read_trace_curve
from paceline.api.options import SearchOptions
from paceline.api.stored import open_existing, read_log
from paceline.cli.flags import bounds, complete_part, duration, json_option, part, store_option
from paceline.cli.output import echo, echo_json
from paceline.cli.report import require_plotly
from paceline.core.errors import SpecError
from paceline.core.text import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.analysis.forecast_fan import Fan

CURVES = str(SearchOptions().curves)
# Characters for the widest interval.
_WIDTH = 41


@click.command()
@click.argument("source", metavar="TRACE|STUDY")
@click.argument("trial", type=int)
@click.option("--at", type=int, help="The last known epoch. [default: all; half of a complete run]")
@click.option(
    "--curves",
    type=part,
    default=CURVES,
    help=f"The curve model. [default: {CURVES}]",
    shell_complete=complete_part("curve model"),
)
@click.option("--target", type=float, help="The value to reach. [default: the source's own]")
@click.option("--deadline", type=duration, help="Time left. [default: the study's own]")
@click.option(
    "--range",
    "within",
    type=bounds,
    help="The lowest and the highest value of the metric: 0,1. [default: the source's own; 0,1 "
    "for an accuracy]",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write a figure to this HTML file.",
)
@store_option
@json_option
def forecast(
    source: str,
    trial: int,
    at: int | None,
    plot: str | None,
    store: str,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - a curve model, a target, a deadline and a range
) -> None:
    """Forecast a learning curve, and its chance to reach the target.

    Of a trial, and of a recorded run that was cut short, all epochs count as known; of a complete
    recorded run the first half, so that the forecast can be compared with the rest.
    """
    if plot is not None:
        require_plotly()
    if Path(source).is_file():
        known = read_trace_curve(source, trial, at)
    else:
        with open_existing(store) as stored:
            known = read_study_curve(read_log(stored, source), trial, at)
    options["left_s"] = options.pop("deadline")
    fan = forecast_curve(known, **options)
    if plot is not None:
        # Imported here: plotly takes longer to import than most commands run.
        from paceline.plots.fan_figure import render_fan_page

        try:
            Path(plot).write_text(render_fan_page(fan, known.later), encoding="utf-8")
        except OSError as error:
            raise SpecError(f"{plot} cannot be written: {error.strerror or error}.") from None
    if as_json:
        echo_json(fan)
        return
    for line in _format_fan(fan):
        echo(line)
    if plot is not None:
        echo(plot)


def _format_fan(fan: Fan) -> Iterator[str]:
    value = fan.values[-1]
    now = "no number" if value is None else f"{value:.5g}"
    yield f"{fan.metric} of trial {fan.trial} after epoch {fan.epoch} of {fan.epochs}: {now}"
    yield f"{'epoch':>6}  {'median':>10}  {'80 % interval':<25}"
    low = min(row.low_95 for row in fan.rows)
    high = max(row.high_95 for row in fan.rows)
    step = max(1, len(fan.rows) // 10)
    for row in fan.rows[::-1][::step][::-1]:
        bounds = f"{row.low_80:.5g} to {row.high_80:.5g}"
        values = (row.low_95, row.low_80, row.median, row.high_80, row.high_95)
        bar = _draw_bar([_find_column(value, low, high) for value in values])
        yield f"{row.epoch:>6}  {row.median:>10.5g}  {bounds:<25}  {bar}".rstrip()
    if fan.is_range_assumed:
        yield f"assumed: {fan.metric} is from 0 to 1; --range gives another range"
    if fan.chance is not None:
        when = fan.expected_s if fan.chance >= 0.0005 else None  # 0.0 % as printed
        within = "" if fan.deadline_s is None else f", in {format_duration(fan.deadline_s)}"
        yield (
            f"chance to reach {fan.target:g} by epoch {fan.by_epoch}{within}: {fan.chance:.1%}"
            + ("" if when is None else f"; if so, in about {format_duration(when)}")
        )


def _find_column(value: float, low: float, high: float) -> int:
    return round((value - low) / (high - low) * (_WIDTH - 1)) if high > low else _WIDTH // 2


def _draw_bar(columns: list[int]) -> str:
    """Draw the intervals: dots for 95 %, a line for 80 %, a circle for the median."""
    outer_low, low, median, high, outer_high = columns
    cells = [" "] * _WIDTH
    cells[outer_low : outer_high + 1] = "·" * (outer_high + 1 - outer_low)
    cells[low : high + 1] = "─" * (high + 1 - low)
    cells[median] = "●"
    return "".join(cells).rstrip()
