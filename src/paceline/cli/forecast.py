"""`paceline forecast`: one curve and its futures.

Knows whether a curve is a trace's or a study's, and how a fan is written in text. Does not know how
anything is forecast.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from paceline.analysis.story import span
from paceline.api.curve_forecast import fan_of, known_of_study, known_of_trace
from paceline.api.options import DEFAULT_CURVES
from paceline.api.stored import opened
from paceline.cli.flags import bounds, complete_part, duration, json_option, part, store_option
from paceline.core.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.analysis.forecast_fan import Fan

CURVES = DEFAULT_CURVES
# Characters for the widest interval.
_WIDTH = 41


@click.command()
@click.argument("source", metavar="TRACE|STUDY")
@click.argument("trial", type=int)
@click.option("--at", type=int, help="The last epoch seen. [default: all; half of a trace's run]")
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
    help="The least and greatest value the metric can have: 0,1. [default: the study's own]",
)
@click.option("--plot", type=click.Path(dir_okay=False), metavar="FILE", help="Draw it as HTML.")
@store_option
@json_option
def forecast(
    source: str,
    trial: int,
    at: int | None,
    plot: str | None,
    store: str,
    as_json: bool,
    **asked: Any,  # noqa: ANN401 - a curve model, a target, a deadline and a range
) -> None:
    """Show where a curve may go, and its chance to reach the target.

    Of a recorded run the first half is taken as seen, so that what came can be compared.
    """
    if Path(source).is_file():
        known = known_of_trace(source, trial, at)
    else:
        with opened(store) as kept:
            known = known_of_study(kept.read(source), trial, at)
    asked["left_s"] = asked.pop("deadline")
    fan = fan_of(known, **asked)
    if plot is not None:
        from paceline.plots.fan_figure import fan_page  # plotly takes longer than most commands

        try:
            Path(plot).write_text(fan_page(fan, known.later), encoding="utf-8")
        except OSError as error:
            raise SpecError(f"{plot} cannot be written: {error.strerror or error}.") from None
    if as_json:
        click.echo(msgspec.json.encode(fan))
        return
    for line in _lines(fan):
        click.echo(line)
    if plot is not None:
        click.echo(plot)


def _lines(fan: Fan) -> Iterator[str]:
    value = fan.values[-1]
    now = "no number" if value is None else f"{value:.5g}"
    yield f"{fan.metric} of trial {fan.trial} after epoch {fan.epoch} of {fan.epochs}: {now}"
    yield f"{'epoch':>6}  {'median':>10}  {'4 of 5 futures lie in':<25}"
    low = min(row.low_95 for row in fan.rows)
    high = max(row.high_95 for row in fan.rows)
    step = max(1, len(fan.rows) // 10)
    for row in fan.rows[::-1][::step][::-1]:
        bounds = f"{row.low_80:.5g} to {row.high_80:.5g}"
        places = (row.low_95, row.low_80, row.median, row.high_80, row.high_95)
        picture = _picture([_place(each, low, high) for each in places])
        yield f"{row.epoch:>6}  {row.median:>10.5g}  {bounds:<25}  {picture}".rstrip()
    if fan.chance is not None:
        when = fan.expected_s if fan.chance >= 0.0005 else None  # nobody waits for what is 0.0 %
        within = "" if fan.deadline_s is None else f", in {span(fan.deadline_s)}"
        yield (
            f"chance to reach {fan.target:g} by epoch {fan.by_epoch}{within}: {fan.chance:.1%}"
            + ("" if when is None else f"; if so, in about {span(when)}")
        )


def _place(value: float, low: float, high: float) -> int:
    return round((value - low) / (high - low) * (_WIDTH - 1)) if high > low else _WIDTH // 2


def _picture(places: list[int]) -> str:
    """Draw the intervals: dots for 95 %, a line for 80 %, a knob for the median."""
    outer_low, low, median, high, outer_high = places
    cells = [" "] * _WIDTH
    cells[outer_low : outer_high + 1] = "·" * (outer_high + 1 - outer_low)
    cells[low : high + 1] = "─" * (high + 1 - low)
    cells[median] = "●"
    return "".join(cells).rstrip()
