"""The table of trials, as the page's script reads it.

Knows columns, what a cell sorts by and what it shows. Text stays text: the script writes it as
such. Does not know how the table looks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from paceline.analysis.story import written
from paceline.plots.dimensions import Dimension, dimensions
from paceline.plots.style import SHADES, human, rounded, shade_key

if TYPE_CHECKING:
    from paceline.analysis.timeline import Chronicle, TrialPast

# More rows than this make a page slow, and more stories make it large.
MOST_ROWS = 5000
MOST_STORIES = 1000
# Hyperparameters with a column of their own; a row that is opened shows them all.
MOST_COLUMNS = 6
_CELL = 32

# A value, or a pair of what it sorts by and what it shows; None: there is none.
Cell = float | int | str | None | tuple[float | str | None, str]


class Column(Struct, frozen=True, kw_only=True):
    """A column of the table."""

    name: str
    # Which way it is sorted by the first click.
    first: str = "ascending"
    number: bool = True
    status: bool = False


class Row(Struct, frozen=True):
    """A trial."""

    trial: int
    shade: str
    cells: list[Cell]
    # All of it, in words.
    config: str


class Table(Struct, frozen=True, kw_only=True):
    """All trials, best first, and the stories of the first of them."""

    columns: list[Column]
    rows: list[Row]
    stories: dict[str, tuple[str, ...]]
    # What stands in place of a story that is left out; TRIAL is its number.
    untold: str
    shades: dict[str, str]
    # The column it is sorted by at first.
    by: int


def table_of(chronicle: Chronicle, story_command: str | None) -> Table:
    """Return the trials of a study as a table; the command tells the stories it leaves out."""
    spec = chronicle.spec
    ranked = sorted(
        chronicle.trials,
        key=lambda t: (math.inf if t.best is None else spec.sign * t.best, t.trial),
    )[:MOST_ROWS]
    found = dimensions([trial.config for trial in ranked], MOST_COLUMNS)
    best_first = "ascending" if spec.mode == "min" else "descending"
    columns = [
        Column(name="trial"),
        Column(name="status", number=False, status=True),
        Column(name="epochs", first="descending"),
        Column(name=f"best {spec.metric}", first=best_first),
        Column(name="at epoch"),
        Column(name="time in epochs", first="descending"),
        Column(name="attempts", first="descending"),
        *(Column(name=each.name, number=_numeric(each)) for each in found),
    ]
    rows = [
        Row(
            trial.trial,
            shade_key(trial, chronicle),
            [*_facts(trial), *(_cell(trial, each, at) for each in found)],
            written(trial.config),
        )
        for at, trial in enumerate(ranked)
    ]
    return Table(
        columns=columns,
        rows=rows,
        stories={str(trial.trial): trial.story for trial in ranked[:MOST_STORIES]},
        untold="Its story is left out here."
        if story_command is None
        else f"Told by: {story_command} TRIAL",
        shades={shade.key: shade.colour for shade in SHADES},
        by=3,
    )


def _facts(trial: TrialPast) -> list[Cell]:
    attempts: Cell = trial.attempts
    if trial.failures:
        attempts = (trial.attempts, f"{trial.attempts} ({trial.failures} failed)")
    return [
        trial.trial,
        trial.status.value,
        trial.epochs,
        None if trial.best is None else rounded(trial.best),
        trial.best_epoch or None,
        (trial.seconds, human(trial.seconds)) if trial.epochs else None,
        attempts,
    ]


def _numeric(dimension: Dimension) -> bool:
    return all(word == "none" or _number(word) is not None for word in dimension.words)


def _cell(trial: TrialPast, dimension: Dimension, at: int) -> Cell:
    word = dimension.words[at]
    if dimension.places[at] is None:
        return None
    value: Any = trial.config.get(dimension.name)
    # A schedule is shown whole, and sorts by its first value like all others.
    text = written({"": value})[1:] if isinstance(value, dict) else word
    number = _number(word)
    if len(text) > _CELL:
        text = text[: _CELL - 1] + "…"
    return (word if number is None else number, text)


def _number(word: str) -> float | None:
    try:
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
