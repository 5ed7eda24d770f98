"""`paceline rm`: delete a study, its checkpoints and its output.

Knows what it asks and prints. Does not know which files are a study's own.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from paceline.api.permissions import allow as allow_places
from paceline.api.stored import open_existing
from paceline.api.study_files import delete_study, find_places
from paceline.cli.flags import allow_option, store_option, study_argument
from paceline.cli.output import echo
from paceline.core.errors import SpecError
from paceline.core.text import format_count

if TYPE_CHECKING:
    from paceline.api.study_files import StudyPlaces


@click.command()
@study_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--keep-files", is_flag=True, help="Delete only the log.")
@store_option
@allow_option
def rm(study: str, yes: bool, keep_files: bool, store: str, allow: tuple[str, ...]) -> int:
    """Delete a study: its log, checkpoints and output.

    Asks first. A study that is running is left alone. Other studies that took over its results keep
    them. Deletes nothing outside the folder of the store, unless you --allow it.
    """
    with open_existing(store) as stored:
        places = find_places(stored, store, study, allow_places(*allow), keep_files=keep_files)
        what = _describe(study, places)
        if not yes:
            if not sys.stdin.isatty():
                raise SpecError(f"this would delete {what}: add --yes to do it.")
            if not click.confirm(f"Delete {what}?"):
                echo("nothing was deleted.")
                return 1
        left = delete_study(stored, study, places)
    echo(f"deleted {what}.")
    for each in left:
        echo(f"paceline: could not delete {each}.", err=True)
    return 1 if left else 0


def _describe(study: str, places: StudyPlaces) -> str:
    text = f"study {study!r} with {format_count(places.trials, 'trial')}"
    if places.files:
        text += f", {format_count(len(places.files), 'file')} in {places.folder}"
    if places.storage is not None:
        text += f", and its checkpoints in {places.storage.url}"
    return text
