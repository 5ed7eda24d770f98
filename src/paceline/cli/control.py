"""`paceline watch`, `stop` and `slots`: watch and control a study that another process runs.

Knows how a change of slots is written. Commands go through the study's inbox, which its driver
reads several times a second.
"""

from __future__ import annotations

import re
import sys

import click

from paceline.api.stored import (
    count_slots,
    fold_log,
    make_page,
    open_existing,
    read_log,
    send_command,
)
from paceline.cli.flags import store_option, study_argument
from paceline.cli.inspect import SHOWN
from paceline.cli.output import echo
from paceline.cli.run import resume_command
from paceline.core.decisions import EndCause
from paceline.core.errors import SpecError, StudyFailed
from paceline.core.events import ChangeSlots, StopStudy
from paceline.core.text import format_count

_CHANGE = re.compile(r"([+=-])(\d+)")


def change(text: str) -> tuple[str, int]:
    """Return the sign and the number of `+1`, `-1` or `=4`."""
    found = _CHANGE.fullmatch(text)
    if found is None or not int(found[2]):
        raise click.BadParameter(
            f"{text!r} is not a change of slots: write +1 for one more, -1 for one less, "
            "=4 for four."
        )
    return found[1], int(found[2])


@click.command()
@study_argument
@store_option
def stop(study: str, store: str) -> None:
    """End a running study now, with its best result.

    Its driver ends all trials, prints the summary and exits. A study that was stopped cannot be
    resumed: to interrupt it instead, press Ctrl-C where it runs.
    """
    with open_existing(store) as stored:
        holder = send_command(stored, study, StopStudy())
        if holder is None:
            end = fold_log(read_log(stored, study)).end
            if end is None:
                raise explain_not_running(study, store)
            echo(f"study {study!r} has ended already: {end.why}.")
            return
    echo(f"asked study {study!r} to stop ({holder}).")


@click.command(context_settings={"ignore_unknown_options": True})
@study_argument
@click.argument("slots", metavar="+N|-N|=N", type=change)
@store_option
def slots(study: str, slots: tuple[str, int], store: str) -> None:
    """Give a running study more slots, or fewer.

    +2 adds two slots, -1 removes one, =4 sets the number to four. A trial on a removed slot saves
    at the end of its epoch and goes on later. A study keeps at least one slot, and never gets more
    slots than there are GPUs.
    """
    sign, number = slots
    with open_existing(store) as stored:
        before = count_slots(stored, study)
        by = {"+": number, "-": -number, "=": number - before}[sign]
        if by == 0 or before + by < before == 1:
            echo(
                f"study {study!r} has {format_count(before, 'slot')} already, and keeps at "
                "least one."
            )
            return
        holder = send_command(stored, study, ChangeSlots(by))
        if holder is None:
            end = fold_log(read_log(stored, study)).end
            if end is not None:
                raise SpecError(f"study {study!r} has ended ({end.why}): it has no slots.")
            raise explain_not_running(study, store)
    after = max(before + by, 1)
    echo(f"asked study {study!r} to go from {before} to {format_count(after, 'slot')} ({holder}).")


def explain_not_running(study: str, store: str) -> SpecError:
    """Return the error for an unfinished study that has no driver."""
    return SpecError(
        f"study {study!r} is unfinished, but not running: resume it with "
        f"`{resume_command(store, study)}`."
    )


@click.command()
@study_argument
@store_option
def watch(study: str, store: str) -> None:
    """Watch a running study, from this machine or another.

    Shows the live view of `paceline run`, read from the store, until the study ends; then the page
    of `paceline show`. Ctrl-C ends only the view: the study goes on.
    """
    from paceline.api.stored import follow
    from paceline.cli import tables
    from paceline.live.watcher import show_progress

    try:
        with open_existing(store) as stored, show_progress(sys.stdout) as show:
            state = follow(stored, study, show)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped watching; study {study!r} goes on") from None
    if state.end is None:
        raise explain_not_running(study, store)
    if state.end.cause is EndCause.FAILED:
        raise StudyFailed(f"study {study!r} failed: {state.end.why}.")
    tables.show(tables.render_study(make_page(state, SHOWN)))
