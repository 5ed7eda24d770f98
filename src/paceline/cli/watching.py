"""`paceline watch`: the live view of a study that another process drives, here or elsewhere.

Knows what is said when it is over. How a log is followed and how a study looks is known elsewhere.
"""

from __future__ import annotations

import sys

import click

from paceline.api.studies import opened, page_of
from paceline.cli.options import store_option, study_argument
from paceline.cli.ordering import not_running
from paceline.cli.studies import SHOWN
from paceline.core.decisions import EndCause
from paceline.core.errors import StudyFailed


@click.command()
@study_argument
@store_option
def watch(study: str, store: str) -> None:
    """Watch a running study, from this machine or another.

    Shows what `paceline run` shows, read from the store, until the study ends, and then what
    `paceline show` does. Ctrl-C ends the watching; the study goes on.
    """
    from paceline.api.following import follow
    from paceline.cli import views
    from paceline.view.showing import progress_on

    try:
        with opened(store) as kept, progress_on(sys.stdout) as show:
            state = follow(kept, study, show)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"no longer watching; study {study!r} goes on") from None
    if state.end is None:
        raise not_running(study, store)
    if state.end.cause is EndCause.FAILED:
        raise StudyFailed(state.end.why)
    views.show(views.paged(page_of(state, SHOWN)))
