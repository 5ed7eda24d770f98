"""`paceline logs`: what a trial has printed.

Knows how the output of several attempts is shown and followed.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from paceline.api.permissions import allow as allow_places
from paceline.api.stored import POLL_S, open_existing
from paceline.api.study_files import list_outputs
from paceline.cli.flags import allow_option, store_option, study_argument
from paceline.cli.output import echo
from paceline.core.errors import SpecError
from paceline.core.text import format_numbers, show_controls

if TYPE_CHECKING:
    from paceline.api.study_files import Output
    from paceline.core.ports import Store


@click.command()
@study_argument
@click.argument("trial", type=click.IntRange(min=0))
@click.option("--follow", "-f", is_flag=True, help="Print more as it comes, until Ctrl-C.")
@click.option("--attempt", type=click.IntRange(min=0), help="Only this attempt. [default: all]")
@store_option
@allow_option
def logs(
    study: str,
    trial: int,
    follow: bool,
    attempt: int | None,
    store: str,
    allow: tuple[str, ...],
) -> None:
    """Print what a trial has printed, attempt by attempt.

    A trial that was paused, moved or retried has several attempts. Epochs that it shares with
    another trial are in the output of the attempt that trained for both.
    """
    with open_existing(store) as stored:
        printer = _Printer(has_titles=attempt is None)
        while True:
            found = list_outputs(stored, store, study, trial, allow_places(*allow))
            outputs = _select(found, study, trial, attempt)
            printer.print_new(outputs)
            if not follow or not _may_print_more(stored, study):
                break
            time.sleep(POLL_S)
    if not printer.has_found and outputs:
        raise SpecError(
            f"the output of trial {trial} is not on this machine: look for {outputs[0].path.name} "
            "on the machine, or on the Ray node, that ran the trial."
        )
    if not outputs:
        echo(f"paceline: trial {trial} of study {study!r} has not run yet.", err=True)


def _select(outputs: list[Output], study: str, trial: int, attempt: int | None) -> list[Output]:
    if attempt is None:
        return outputs
    found = [each for each in outputs if each.attempt == attempt]
    if not found:
        numbers = [each.attempt for each in outputs]
        has = format_numbers("attempt", numbers) if numbers else "no attempts yet"
        raise SpecError(
            f"attempt {attempt} did not train for trial {trial} of study {study!r}: it has {has}."
        )
    return found


def _may_print_more(store: Store, study: str) -> bool:
    return store.holder(study) is not None


class _Printer:
    """Prints files from where they were last read."""

    def __init__(self, *, has_titles: bool) -> None:
        self._has_titles = has_titles
        self._read: dict[int, int] = {}
        # Whether any of the files is on this machine.
        self.has_found = False

    def print_new(self, outputs: list[Output]) -> None:
        """Print what the files have beyond what was printed."""
        for output in outputs:
            body = output.read(self._read.get(output.attempt, 0))
            if body is None:
                continue
            self.has_found = True
            if output.attempt not in self._read and self._has_titles:
                click.echo(click.style(f"--- attempt {output.attempt}", dim=True))
            self._read[output.attempt] = self._read.get(output.attempt, 0) + len(body)
            click.echo(show_controls(body.decode(errors="replace"), "\r", colors=True), nl=False)
        sys.stdout.flush()
