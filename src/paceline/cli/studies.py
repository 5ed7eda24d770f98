"""Commands on studies that are kept: ls, show, best, story, replay, export.

Knows what each prints and its exit code. Reads logs; writes nothing but the trace it was asked for.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
import msgspec

from paceline.api.studies import StudyList, folded, opened, page_of, replayed
from paceline.api.studies import export as write_export
from paceline.cli.options import json_option, store_option, study_argument
from paceline.cli.progress import Bar
from paceline.machine.glance import best_of, row_of
from paceline.machine.story import study_story, trial_story
from paceline.store import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.core.decisions import Step

# Trials that `show` lists where nobody says how many.
SHOWN = 20


@contextmanager
def _log(store: str, study: str) -> Iterator[Iterator[Step]]:
    """Give a study's log, step by step."""
    with opened(store) as kept, Bar(f"reading {study}") as bar:
        yield bar.counted(kept.read(study))


@click.command()
@store_option
@json_option
def ls(store: str, as_json: bool) -> None:
    """List the studies of a store, oldest first."""
    with opened(store) as kept:
        rows = []
        for name in kept.studies():
            with Bar(f"reading {name}") as bar:
                rows.append(row_of(folded(bar.counted(kept.read(name)))))
    if as_json:
        click.echo(msgspec.json.encode(StudyList(store=shown(store), studies=rows)))
        return
    from paceline.cli import views

    views.show(views.listed(rows) if rows else f"{shown(store)} holds no study yet.")


@click.command()
@study_argument
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    help=f"Trials to show. [default: {SHOWN} in the table, all in JSON]",
)
@store_option
@json_option
def show(study: str, limit: int | None, store: str, as_json: bool) -> None:
    """Show a study and its trials, best first."""
    with _log(store, study) as steps:
        state = folded(steps)
    if as_json:
        click.echo(msgspec.json.encode(page_of(state, limit)))
        return
    from paceline.cli import views

    views.show(views.paged(page_of(state, SHOWN if limit is None else limit)))


@click.command()
@study_argument
@store_option
@json_option
def best(study: str, store: str, as_json: bool) -> int:
    """Show the best config a study has found."""
    with _log(store, study) as steps:
        found = best_of(folded(steps))
    if found is None:
        click.echo(f"paceline: study {study!r} has not reported a number yet.", err=True)
        return 1
    if as_json:
        click.echo(msgspec.json.encode(found))
    else:
        from paceline.cli import views

        views.show(views.found(found))
    return 0


@click.command()
@study_argument
@click.argument("trial", type=click.IntRange(min=0), required=False)
@store_option
def story(study: str, trial: int | None, store: str) -> None:
    """Tell what happened to a study, or to one trial."""
    with _log(store, study) as steps:
        told = study_story(steps) if trial is None else trial_story(steps, trial)
        sentences = list(told)
    for sentence in sentences:
        click.echo(sentence)


@click.command()
@study_argument
@store_option
def replay(study: str, store: str) -> int:
    """Check that a study's log leads to the same decisions.

    Decides every event of the log again. Prints the first difference and exits with 1 if there is
    one.
    """
    with _log(store, study) as steps:
        found = replayed(steps)
    if found.difference is None:
        click.echo(f"identical: {found.decisions} decisions in {found.steps} steps")
        return 0
    from paceline.cli import views

    views.show(views.different(found.difference))
    return 1


@click.command()
@study_argument
@click.argument("trace", type=click.Path(dir_okay=False))
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@store_option
def export(study: str, trace: str, force: bool, store: str) -> None:
    """Write a study's curves as a trace file.

    Each trial becomes one run, with its times as they were measured. Trials without a report are
    left out; of trials with the same config, the one that got furthest is kept.
    """
    with _log(store, study) as steps:
        written = write_export(steps, trace, force=force)
    left = [
        f"{count} {what}"
        for count, what in (
            (written.silent, "without a report"),
            (written.doubled, "with the config of another"),
        )
        if count
    ]
    click.echo(f"{trace}: {written.runs} runs" + (f"; left out: {', '.join(left)}" if left else ""))
