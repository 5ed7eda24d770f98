"""`paceline extend`: give a study more trials, epochs or time.

Knows how a study that was started by `paceline run` is found again. Does not know what may be
changed: the driver does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from paceline.api.permissions import allow as allow_named
from paceline.api.stored import open_existing, read_spec
from paceline.cli.flags import DURATION_TEXT, allow_option, store_option, study_argument
from paceline.cli.output import echo
from paceline.cli.progress import ProgressBar
from paceline.cli.run import OutputOptions, load_resumable, output_options, run_stored
from paceline.core.errors import SpecError
from paceline.core.events import ExtendStudy, Opened
from paceline.core.extension import resolve_log

if TYPE_CHECKING:
    from collections.abc import Callable

_OPTIONS: tuple[tuple[str, Any, str], ...] = (
    ("--trials", int, "The most trials to open, with those so far."),
    ("--epochs", int, "The last epoch of a trial: finished trials train on."),
    ("--deadline", DURATION_TEXT, "End after this much active time, with the time so far."),
    ("--target", float, "End when a trial reports this value."),
    ("--slot-hours", float, "End when this many slot-hours are used, with those so far."),
    ("--keep-best", int, "Keep the last checkpoint of this many finished trials, the best ones."),
    ("--slots", str, "GPUs, or cores on a machine without GPUs: 8, cpu:4, gpu:2."),
)


def _add_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, kind, text in reversed(_OPTIONS):
        command = click.option(name, type=kind, help=text)(command)
    return command


@click.command()
@study_argument
@click.argument("file", metavar="[STUDY.PY]", required=False, type=click.Path())
@_add_options
@store_option
@allow_option
@output_options
def extend(
    study: str,
    file: str | None,
    store: str,
    allow: tuple[str, ...],
    **options: Any,  # noqa: ANN401 - _OPTIONS and the fields of OutputOptions
) -> int:
    """Give a study more trials, epochs or time, and go on with it.

    The study may have ended, or be unfinished; one that runs right now is extended by its driver,
    and this command returns at once. The study must have been started by `paceline run`, or give
    its STUDY.PY. To extend a study of a Python program, run the program with the new options.
    """
    output = OutputOptions(*(options.pop(field) for field in OutputOptions._fields))
    given = {name: value for name, value in options.items() if value is not None}
    if not given:
        names = ", ".join(name for name, _, _ in _OPTIONS)
        raise SpecError(f"nothing to extend: give at least one of {names}.")
    with open_existing(store) as stored:
        holder = stored.holder(study)
        if holder is not None:
            return _ask_driver(stored, study, given, holder)
        with ProgressBar(f"reading {study}") as bar:
            log = list(bar.track(stored.read(study)))
    read_spec(log, study)
    opened = resolve_log(log)[0].event
    assert isinstance(opened, Opened)
    if opened.run.kind == "sim":
        raise SpecError(
            f"study {study!r} is simulated: simulate it again with other options instead."
        )
    resumed = load_resumable(opened, file, store, given, allow_named(*allow))
    resumed.known_log = log
    return run_stored(resumed, output)


def _ask_driver(stored: Any, study: str, given: dict[str, Any], holder: str) -> int:  # noqa: ANN401
    if "slots" in given:
        raise SpecError(
            f"study {study!r} is running ({holder}): change its slots with `paceline slots`."
        )
    stored.post(study, ExtendStudy(given))
    echo(f"asked study {study!r} to go on with the new limits ({holder}).")
    return 0
