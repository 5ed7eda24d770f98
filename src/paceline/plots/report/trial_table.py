"""The table of trials, as data for the script of the report's page.

Holds columns, and what each cell sorts by and shows. The script writes text as text, never as HTML.
Does not know how the table looks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from paceline.core.text import format_config, format_duration, format_value, truncate
from paceline.plots.config_axes import ConfigAxis, find_axes
from paceline.plots.style import SHADES, find_shade_key, round_number

if TYPE_CHECKING:
    from paceline.analysis.timeline import Timeline, TrialTimeline

# More rows make the page slow, more stories make it large.
MOST_ROWS = 5000
MOST_STORIES = 1000
# Hyperparameters with a column of their own; an expanded row shows them all.
MOST_COLUMNS = 6
_CELL = 32

# A value, or a pair of what it sorts by and what it shows; None is an empty cell.
Cell = float | int | str | None | tuple[float | str | None, str]


class TableColumn(Struct, frozen=True, kw_only=True):
    """A column of the table."""

    name: str
    # The direction of the first click on its heading.
    first: str = "ascending"
    number: bool = True
    status: bool = False


class TableRow(Struct, frozen=True):
    """A trial."""

    trial: int
    shade: str
    cells: list[Cell]
    # The whole config as text.
    config: str


class TrialTable(Struct, frozen=True, kw_only=True):
    """All trials, best first, and the stories of the first of them."""

    columns: list[TableColumn]
    rows: list[TableRow]
    stories: dict[str, tuple[str, ...]]
    # The text in place of a story that is left out; the script replaces TRIAL by its number.
    untold: str
    shades: dict[str, str]
    # The column that the table is sorted by at first.
    by: int


def make_table(timeline: Timeline, story_command: str | None) -> TrialTable:
    """Return the trials of a study as a table; the command shows the stories that it leaves out."""
    spec = timeline.spec
    ranked = sorted(
        timeline.trials,
        key=lambda t: (math.inf if t.best is None else spec.sign * t.best, t.trial),
    )[:MOST_ROWS]
    found = find_axes([trial.config for trial in ranked], MOST_COLUMNS)
    best_first = "ascending" if spec.mode == "min" else "descending"
    columns = [
        TableColumn(name="trial"),
        TableColumn(name="status", number=False, status=True),
        TableColumn(name="epochs", first="descending"),
        TableColumn(name=f"best {spec.metric}", first=best_first),
        TableColumn(name="at epoch"),
        TableColumn(name="time in epochs", first="descending"),
        TableColumn(name="attempts", first="descending"),
        *(TableColumn(name=each.name, number=_is_numeric(each)) for each in found),
    ]
    rows = [
        TableRow(
            trial.trial,
            find_shade_key(trial, timeline),
            [*_make_cells(trial), *(_make_cell(trial, each, at) for each in found)],
            format_config(trial.config),
        )
        for at, trial in enumerate(ranked)
    ]
    return TrialTable(
        columns=columns,
        rows=rows,
        stories={str(trial.trial): trial.story for trial in ranked[:MOST_STORIES]},
        untold="The story is left out here."
        if story_command is None
        else f"The story is left out here; run: {story_command} TRIAL",
        shades={shade.key: shade.colour for shade in SHADES},
        by=3,
    )


def _make_cells(trial: TrialTimeline) -> list[Cell]:
    attempts: Cell = trial.attempts
    if trial.failures:
        attempts = (trial.attempts, f"{trial.attempts} ({trial.failures} failed)")
    return [
        trial.trial,
        trial.fate,
        trial.epochs,
        None if trial.best is None else round_number(trial.best),
        trial.best_epoch or None,
        (trial.seconds, format_duration(trial.seconds)) if trial.epochs else None,
        attempts,
    ]


def _is_numeric(axis: ConfigAxis) -> bool:
    return all(text == "none" or _parse_number(text) is not None for text in axis.texts)


def _make_cell(trial: TrialTimeline, axis: ConfigAxis, at: int) -> Cell:
    first = axis.texts[at]
    if axis.positions[at] is None:
        return None
    value: Any = trial.config.get(axis.name)
    # A schedule is shown whole, and sorted by its first value.
    text = format_value(value) if isinstance(value, dict) else first
    number = _parse_number(first)
    return (first if number is None else number, truncate(text, _CELL))


def _parse_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
