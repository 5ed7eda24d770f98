"""`paceline checkpoints`: what a study's checkpoints take, why each is kept, and what can go.

Knows how a checkpoint reads in one line. Counts nothing that `api.checkpoints` does not say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from paceline.api.checkpoints import looked_after
from paceline.api.studies import opened
from paceline.cli.options import json_option, store_option, study_argument
from paceline.cli.progress import Bar
from paceline.machine.story import size

if TYPE_CHECKING:
    from paceline.api.checkpoints import CheckpointPage


@click.command()
@study_argument
@click.option("--dry-run", is_flag=True, help="Delete nothing: say what would go.")
@store_option
@json_option
def checkpoints(study: str, dry_run: bool, store: str, as_json: bool) -> None:
    """List a study's checkpoints, and delete what lies among them unnamed.

    A study collects its own checkpoints: each is kept while a paused trial, a trial that may come
    or the best need it. What a crash has left behind, which no log names, goes here.
    """
    with opened(store) as kept, Bar(f"reading {study}") as bar:
        found = looked_after(kept, store, bar.counted(kept.read(study)), collect=not dry_run)
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    from paceline.cli import views

    if found.checkpoints:
        views.show(views.stocked(found))
    for line in _lines(found):
        click.echo(line)


def _lines(found: CheckpointPage) -> list[str]:
    """Return what there is in sentences."""
    if found.place is None:
        return [f"study {found.study!r} was simulated, and has no checkpoints."]
    count = len(found.checkpoints)
    lines = [f"{_count(count, 'checkpoint')}, {size(found.bytes)} in {found.place}"]
    if found.missing:
        lines.append(
            f"{_count(found.missing, 'more is', 'more are')} named in the log and not there: "
            "whoever needs one starts from an earlier one, or over."
        )
    if found.strays:
        did = "deleted" if found.collected else "would go"
        lines.append(
            f"{did}: {_count(len(found.strays), 'file')} that no log names, "
            f"{size(found.stray_bytes)}"
        )
        lines += [f"  {stray.name}  {size(stray.bytes)}" for stray in found.strays]
    else:
        lines.append("nothing lies around: there is nothing to delete.")
    return lines


def _count(number: int, what: str, several: str = "") -> str:
    return f"{number} {what}" if number == 1 else f"{number} {several or what + 's'}"
