"""`paceline stop` and `paceline slots`: orders to a study that another process drives.

Knows how an order is written. It goes through the study's inbox; the driver looks there several
times a second.
"""

from __future__ import annotations

import re
import sys

import click

from paceline.api.stored import command, folded, opened, page_of, slots_of
from paceline.cli.flags import store_option, study_argument
from paceline.cli.inspect import SHOWN
from paceline.cli.run import resume_command
from paceline.core.decisions import EndCause
from paceline.core.errors import SpecError, StudyFailed
from paceline.core.events import ChangeSlots, StopStudy

_CHANGE = re.compile(r"([+=-])(\d+)")


def change(text: str) -> tuple[str, int]:
    """Return the sign and the number of `+1`, `-1` or `=4`."""
    found = _CHANGE.fullmatch(text)
    if found is None or not int(found[2]):
        raise click.BadParameter(
            f"{text!r} is no change of slots: write +1 for one more, -1 for one less, =4 for four."
        )
    return found[1], int(found[2])


@click.command()
@study_argument
@store_option
def stop(study: str, store: str) -> None:
    """End a running study now, with its best result.

    Its driver ends all trials, sums the study up and exits. An ended study cannot go on: to
    interrupt one, press Ctrl-C where it runs.
    """
    with opened(store) as kept:
        holder = command(kept, study, StopStudy())
        if holder is None:
            end = folded(kept.read(study)).end
            if end is None:
                raise not_running(study, store)
            click.echo(f"study {study!r} has ended already: {end.why}.")
            return
    click.echo(f"study {study!r} is asked to stop ({holder}).")


@click.command(context_settings={"ignore_unknown_options": True})
@study_argument
@click.argument("slots", metavar="+N|-N|=N", type=change)
@store_option
def slots(study: str, slots: tuple[str, int], store: str) -> None:
    """Give a running study more slots, or fewer.

    +2 gives two more, -1 takes one away, =4 makes it four. Whatever runs on a slot that goes saves
    at the end of its epoch and goes on later. One slot always stays; there are never more than
    there are GPUs.
    """
    sign, number = slots
    with opened(store) as kept:
        before = slots_of(kept, study)
        by = {"+": number, "-": -number, "=": number - before}[sign]
        if by == 0 or before + by < before == 1:
            click.echo(f"study {study!r} has {_slots(before)} already, and one always stays.")
            return
        holder = command(kept, study, ChangeSlots(by))
        if holder is None:
            end = folded(kept.read(study)).end
            if end is not None:
                raise SpecError(f"study {study!r} has ended ({end.why}): it needs no slots.")
            raise not_running(study, store)
    after = max(before + by, 1)
    click.echo(f"study {study!r} is asked to go from {before} to {_slots(after)} ({holder}).")


def _slots(count: int) -> str:
    return "1 slot" if count == 1 else f"{count} slots"


def not_running(study: str, store: str) -> SpecError:
    """Return the error for a study that is unfinished, and that nobody drives."""
    return SpecError(
        f"study {study!r} is not running, and unfinished: go on with "
        f"`{resume_command(store, study)}`, or leave it as it is."
    )


@click.command()
@study_argument
@store_option
def watch(study: str, store: str) -> None:
    """Watch a running study, from this machine or another.

    Shows what `paceline run` shows, read from the store, until the study ends, and then what
    `paceline show` does. Ctrl-C ends the watching; the study goes on.
    """
    from paceline.api.stored import follow
    from paceline.cli import tables
    from paceline.live.watcher import progress_on

    try:
        with opened(store) as kept, progress_on(sys.stdout) as show:
            state = follow(kept, study, show)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"no longer watching; study {study!r} goes on") from None
    if state.end is None:
        raise not_running(study, store)
    if state.end.cause is EndCause.FAILED:
        raise StudyFailed(state.end.why)
    tables.show(tables.paged(page_of(state, SHOWN)))
