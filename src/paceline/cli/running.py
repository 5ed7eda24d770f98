"""A study on this machine, as the command line runs it: the live view, the summary, the report.

Knows what is shown when, and on which stream. Does not know where the study comes from: `run`,
`resume` and `demo` bring theirs.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from paceline.api.driving import Watch
    from paceline.api.results import Result
    from paceline.api.study import Study


def run_live(
    study: Study,
    *,
    report: str | Path | None = None,
    as_json: bool = False,
    quiet: bool = False,
) -> Result:
    """Run a study to its end, show how it goes, sum it up, and write a report where one is wanted.

    Standard output shows the live view where it is a terminal, else lines; then the summary. With
    `as_json` it holds one object, and lines go to standard error; `quiet` leaves them out. Raises
    StudyFailed where nothing came of it, StudyInterrupted after Ctrl-C, StudyTerminated after
    SIGTERM.
    """
    with _watching(as_json, quiet) as watch:
        result = study.run(watch)
    store = study.options.get("store")
    if report is not None:
        # Imported here: the figures' library takes longer than most commands.
        from paceline.plots.report import write_report

        report = write_report(result.log, report, store=store)
    told = replace(result.summary(), store=store, report=None if report is None else str(report))
    if as_json:
        click.echo(msgspec.json.encode(told))
    else:
        from paceline.cli import views

        views.show(views.summed_up(told))
    return result


def _watching(as_json: bool, quiet: bool) -> AbstractContextManager[Watch]:
    if quiet:
        return nullcontext(lambda state, steps: None)
    from paceline.view.showing import progress_on

    return progress_on(sys.stderr if as_json else sys.stdout)
