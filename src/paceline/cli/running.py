"""`paceline run`, and how the command line runs any study: live view, summary, report.

Knows what is shown when and on which stream, and what a study is called where nobody says. How a
study file is read and how a study is driven is known elsewhere.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec
from msgspec.structs import replace

from paceline.api.durations import seconds_of
from paceline.cli.completing import complete_part
from paceline.cli.environment import STORE
from paceline.cli.options import bounds, json_option, part
from paceline.cli.report import file_name
from paceline.core.errors import SpecError, StudyTerminated
from paceline.store import path_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from paceline.api.driving import Watch
    from paceline.api.results import Result
    from paceline.api.study import Study


def duration(text: str) -> str:
    """Return a duration as it was written, once it is known to be one."""
    try:
        seconds_of(text)
    except SpecError as error:
        raise click.BadParameter(str(error)) from None
    return text


class Flag(NamedTuple):
    """An option of `run` and the option of a study that it sets."""

    name: str
    type: Callable[[str], Any]
    help: str

    @property
    def field(self) -> str:
        return self.name.removeprefix("--").replace("-", "_")


FLAGS = (
    Flag("--deadline", duration, "End after this much active time."),
    Flag("--target", float, "End when a trial reports this value."),
    Flag("--over", int, "Ask for the target as the mean of so many reports."),
    Flag("--range", bounds, "The least and greatest value the metric can have: 0,1."),
    Flag("--policy", part, "Who judges the trials: a name, or name:key=value,…"),
    Flag("--generator", part, "Where configs come from."),
    Flag("--allocator", part, "Who divides the slots."),
    Flag("--slots", str, "GPUs, or cores where there are none: 8, cpu:4, gpu:2."),
    Flag("--span", int, "Slots that a trial may hold."),
    Flag("--pack", int, "Trials that may share a slot."),
    Flag("--trials", int, "Open at most so many."),
    Flag("--slot-hours", float, "End when so many hours of slots are used."),
    Flag("--seed", int, "Decides configs and training."),
    Flag("--checkpoints", str, "Where they are kept: a shared folder, s3://bucket/prefix."),
)


def _study_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for flag in reversed(FLAGS):
        kinds = {"policy": "policy", "generator": "generator", "allocator": "allocator"}
        kind = kinds.get(flag.field)
        complete = complete_part(kind) if kind else None  # type: ignore[arg-type]
        add = click.option(flag.name, type=flag.type, help=flag.help, shell_complete=complete)
        command = add(command)
    return command


def showing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what is shown and written of a study that runs."""
    for add in (
        json_option,
        click.option("--quiet", "-q", is_flag=True, help="Show the summary alone."),
        click.option("--no-report", is_flag=True, help="Write no report."),
        click.option(
            "--report",
            metavar="FILE",
            type=click.Path(dir_okay=False),
            help="Where the HTML report goes. [default: STUDY.html]",
        ),
    ):
        command = add(command)
    return command


class Showing(NamedTuple):
    """What is shown and written of a study that runs."""

    report: str | None
    no_report: bool
    quiet: bool
    as_json: bool

    def report_for(self, study: str) -> str | None:
        """Return where the study's report goes; None: nowhere."""
        return None if self.no_report else self.report or file_name(study)


@click.command()
@click.argument("file", metavar="STUDY.PY", type=click.Path())
@_study_options
@click.option(
    "--store",
    metavar="URL",
    help=f"Where the study is kept. [default: the file's, ${STORE.name}, else {STORE.default}]",
)
@click.option("--engine", type=click.Choice(["ray"]), help="Run the trials on a Ray cluster.")
@click.option("--address", help="Which Ray cluster. [default: the one this machine belongs to]")
@click.option("--name", help="What it is called. [default: the file's, else STUDY-1, STUDY-2, …]")
@showing_options
def run(
    file: str,
    store: str | None,
    name: str | None,
    **options: Any,  # noqa: ANN401 - what a study and a showing take
) -> int:
    """Run a study file on this machine, or on a Ray cluster, before its deadline.

    STUDY.PY holds a pl.Study named study; what stands under `if __name__ == "__main__"` is not
    executed. Options given here replace those in the file. The study survives its driver: Ctrl-C
    and SIGTERM leave a log that `paceline resume` goes on with.
    """
    from paceline.api.living import free_name, refuse_known
    from paceline.cli.loading import load_study

    showing = Showing(*(options.pop(field) for field in Showing._fields))
    slots = _slots(options.pop("engine"), options.pop("address"), options["slots"])
    given = {field: value for field, value in (options | slots).items() if value is not None}
    if name == "":
        raise SpecError("--name is empty: give the study a name, or leave it out.")
    loaded = load_study(file)
    url = store or loaded.options.get("store") or STORE.read()
    name = name or loaded.options.get("name") or free_name(url, Path(file).stem)
    study = loaded.but(**given, name=name, store=url)
    refuse_known(url, name, resume_command(url, name))
    study.told = {"file": _from_store(url, file), "given": given}
    return run_shown(study, showing)


def _slots(engine: str | None, address: str | None, slots: str | None) -> dict[str, Any]:
    """Return the slots that an engine means, where one is given."""
    if engine is None and address is not None:
        raise SpecError("--address is for a Ray cluster: give --engine ray with it.")
    if engine is None:
        return {}
    return {"slots": "ray" + (f":{slots}" if slots else "") + (f"@{address}" if address else "")}


def run_shown(study: Study, showing: Showing) -> int:
    """Run a study that is kept; return the exit code."""
    name, url = study.spec.name, study.options.get("store", "")
    report = showing.report_for(name)
    with _going_on(resume_command(url, name)):
        result = run_live(study, report=report, as_json=showing.as_json, quiet=showing.quiet)
    return 0 if result.best is not None else 1


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
    StudyFailed where nothing came of it, KeyboardInterrupt after Ctrl-C, StudyTerminated after
    SIGTERM.
    """
    with _watching(as_json, quiet) as watch:
        result = study.run(watch)
    url = study.options.get("store")
    store = None if url is None else shown(url)
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


def resume_command(url: str, study: str) -> str:
    """Return the command that goes on with a study."""
    where = "" if url == STORE.read() else f" --store {shown(url)}"
    return f"paceline resume {study}{where}"


def _watching(as_json: bool, quiet: bool) -> AbstractContextManager[Watch]:
    if quiet:
        return nullcontext(lambda state, steps: None)
    from paceline.view.showing import progress_on

    return progress_on(sys.stderr if as_json else sys.stdout)


@contextmanager
def _going_on(command: str) -> Iterator[None]:
    """Say with an interrupt how the study goes on."""
    try:
        yield
    except KeyboardInterrupt as error:
        if not error.args:
            raise  # before there was a log
        raise KeyboardInterrupt(f"interrupted; the log is safe, go on with `{command}`") from None
    except StudyTerminated:
        raise StudyTerminated(f"terminated; the log is safe, go on with `{command}`") from None


def _from_store(url: str, file: str) -> str:
    """Return where a file lies, seen from the store's: both may move, together."""
    path = path_of(url)
    # On a server there is nothing to move with.
    return os.path.abspath(file) if path is None else os.path.relpath(file, path.parent)
