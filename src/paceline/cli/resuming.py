"""`paceline resume`: an unfinished study goes on, in the simulator or on this machine.

Knows how to tell the two apart, and where a study's file is found again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.api.simulation import simulation_of
from paceline.api.studies import folded, opened, spec_of
from paceline.cli.options import store_option, study_argument
from paceline.cli.progress import Bar
from paceline.cli.running import Showing, run_shown, showing_options
from paceline.cli.simulate import finish
from paceline.core.errors import SpecError
from paceline.core.events import Opened
from paceline.store import path_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Step
    from paceline.core.values import Value


@click.command()
@study_argument
@click.argument("file", metavar="[STUDY.PY]", required=False, type=click.Path())
@store_option
@showing_options
def resume(
    study: str,
    file: str | None,
    store: str,
    **options: Any,  # noqa: ANN401 - the fields of a Showing
) -> int:
    """Go on with an unfinished study.

    A study of `paceline run` goes on with its file, which must be where it was as seen from the
    store, or be given. A simulated study is lived through again up to where its log ends, and goes
    on from there; its source must be where it was. A study that has ended is left alone.
    """
    showing = Showing(**options)
    with opened(store) as kept, Bar(f"reading {study}") as bar:
        log = list(bar.counted(kept.read(study)))
    end = folded(log).end
    if end is not None:
        click.echo(f"study {study!r} has ended: {end.why}.", err=showing.as_json)
        return 0
    told = _engine(log)
    if "source" in told:
        return _simulated(study, log, store, showing)
    return _on_this_machine(study, file, store, told, showing)


def _engine(log: Sequence[Step]) -> dict[str, Value]:
    spec_of(log)
    event = log[0].event
    assert isinstance(event, Opened)
    return event.engine


def _simulated(study: str, log: Sequence[Step], store: str, showing: Showing) -> int:
    if showing.report:
        raise SpecError(f"study {study!r} is simulated: --report is for studies that train.")
    with opened(store, lazy=True) as kept, Bar(f"simulating {study}") as bar:
        result = simulation_of(log).resume(
            log, remember=lambda steps: kept.append(study, steps), watch=bar.watch()
        )
    return finish(result, showing.as_json)


def _on_this_machine(
    study: str, file: str | None, store: str, told: dict[str, Value], showing: Showing
) -> int:
    from paceline.cli.loading import load_study

    if told.get("together"):
        raise SpecError(
            f"study {study!r} is several in one: run the program that called pl.together again, "
            "with the same name and store, and they go on."
        )
    given = told.get("given") or {}
    loaded = load_study(file or _found(study, store, told.get("file")))
    return run_shown(loaded.but(**given, name=study, store=store), showing)


def _found(study: str, store: str, file: str | None) -> str:
    """Return where the study's file is now."""
    home = path_of(store)
    ask = f"give the file that holds it: `paceline resume {study} STUDY.PY`"
    if file is None:
        raise SpecError(f"study {study!r} was not started by `paceline run`: {ask}.")
    path = Path(file) if home is None else Path(home.parent, file)
    if not path.exists():
        raise SpecError(f"study {study!r} was in {path}, and that is not here: {ask}.")
    return str(path)
