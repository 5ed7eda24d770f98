"""Stored studies in Python, without their functions: `pl.load` and `pl.studies`.

Knows how to make a result of a log. Reads only: a study that runs right now is shown as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.analysis.summary import make_study_row
from paceline.api.locations import find_checkpoint_files
from paceline.api.permissions import allow as allow_places
from paceline.api.results import Result
from paceline.api.stored import fold_log, open_existing, read_log, read_spec
from paceline.core.events import Opened
from paceline.core.text import format_count, format_number
from paceline.live.html_tables import escape, render_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from paceline.analysis.summary import StudyRow


class StoredStudy(Struct, frozen=True, kw_only=True):
    """A study of a store, in short."""

    name: str
    # running, unfinished or ended.
    status: str
    # Why it ended, as `Result.end`; None: it has not ended.
    end: str | None
    metric: str
    # The best value and the number of its trial; None: no trial has reported a number.
    best_value: float | None
    best_trial: int | None
    trials: int
    store: str

    def load(self) -> Result:
        """Return the result of this study as it is now."""
        return load(self.name, self.store)

    def __repr__(self) -> str:
        status = self.status if self.end is None else f"{self.status} ({self.end})"
        best = f"no {self.metric}"
        if self.best_value is not None:
            best = f"{self.metric} {format_number(self.best_value)} (trial {self.best_trial})"
        return f"<{self.name!r}: {status}, {best}, {format_count(self.trials, 'trial')}>"

    def _repr_html_(self) -> str:
        return StoredStudies([self])._repr_html_()


class StoredStudies(list[StoredStudy]):
    """The studies of a store: a list, and a table in a notebook."""

    def _repr_html_(self) -> str:
        heads = ("study", "status", "metric", "best", "trial", "trials")
        return render_table(heads, map(_list_cells, self))


def _list_cells(study: StoredStudy) -> list[str]:
    status = {"running": "running now", "ended": f"ended: {study.end}"}
    trial = "-" if study.best_trial is None else study.best_trial
    cells = (
        *(study.name, status.get(study.status, study.status), study.metric),
        *(format_number(study.best_value), trial, study.trials),
    )
    return [escape(cell) for cell in cells]


def load(name: str, store: str | Path, *, allow: Sequence[str | Path] = ()) -> Result:
    """Return the result of a stored study: trials, figures, stories, checkpoints.

    Needs no training function. A study that runs right now, or was interrupted, gives what it has
    found so far. Checkpoints are read from the folder of the store; `allow` has other folders and
    addresses that the log may name. Raises StudyNotFound.
    """
    url = str(store)
    with open_existing(url) as stored:
        log = list(read_log(stored, name))
    read_spec(log)
    opened = log[0].event
    assert isinstance(opened, Opened)
    files = find_checkpoint_files(opened, url, allow_places(*allow))
    return Result(fold_log(log), log, files, url)


def studies(store: str | Path) -> StoredStudies:
    """Return the studies of a store, oldest first."""
    url = str(store)
    with open_existing(url) as stored:
        rows = [
            make_study_row(fold_log(read_log(stored, name)), stored.holder(name))
            for name in stored.studies()
        ]
    return StoredStudies(_describe(row, url) for row in rows)


def _describe(row: StudyRow, url: str) -> StoredStudy:
    return StoredStudy(
        name=row.name,
        status="running" if row.driver is not None else row.status,
        end=row.end,
        metric=row.metric,
        best_value=row.best_value,
        best_trial=row.best_trial,
        trials=row.trials,
        store=url,
    )
