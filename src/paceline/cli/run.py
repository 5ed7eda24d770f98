"""`paceline run`, and how the command line runs any study: live view, summary, report.

Knows what is shown when and on which stream, and what a study is called where nobody says. How a
study file is read and how a study is driven is known elsewhere.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import contextmanager, nullcontext
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec
from msgspec.structs import replace

from paceline.api.options import seconds_of
from paceline.api.simulation import simulation_of
from paceline.api.stored import folded, opened, spec_of
from paceline.api.study import Study
from paceline.cli.flags import (
    STORE,
    bounds,
    complete_part,
    json_option,
    part,
    store_option,
    study_argument,
)
from paceline.cli.progress import Bar
from paceline.cli.report import file_name
from paceline.cli.simulate import finish
from paceline.core.errors import PacelineError, SpecError, StudyTerminated
from paceline.core.events import Opened
from paceline.store import path_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType

    from paceline.api.results import Result
    from paceline.core.decisions import Step
    from paceline.core.values import Value
    from paceline.live.watcher import Watch


# What the file is called while it is executed; no file has this name, so nothing is hidden by it.
_NAME = "paceline study"


def load_study(file: str) -> Study:
    """Execute a study file and return its study; its folder can be imported from afterwards."""
    path = Path(file)
    if path.is_dir():
        raise SpecError(f"{file} is a directory: give the Python file that holds the study.")
    if not path.exists():
        raise SpecError(f"there is no file {file}: give a Python file with a pl.Study named study.")
    found = vars(_executed(path))
    if "study" not in found:
        raise SpecError(f"{file} has no study: {_instead(found)}.")
    study = found["study"]
    if not isinstance(study, Study):
        kind = type(study).__name__
        raise SpecError(f"study in {file} is a {kind}: write study = pl.Study(train, space=…, …).")
    if study.spec.standing:
        raise SpecError(
            f"the study in {file} has no space, so it has nothing to run: give space=…."
        )
    return study


def _executed(path: Path) -> ModuleType:
    spec = spec_from_file_location(_NAME, path.resolve())
    if spec is None or spec.loader is None:
        raise SpecError(f"{path} is no Python file: give one whose name ends in .py.")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = module_from_spec(spec)
    # Dataclasses and the like look their module up while they are made. Afterwards the name is
    # given up, so that functions travel to their workers whole instead of being looked up there.
    sys.modules[_NAME] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise SpecError(_complaint(path, error)) from None
    finally:
        del sys.modules[_NAME]
    return module


def _complaint(path: Path, error: BaseException) -> str:
    """Say what went wrong, and where in the file."""
    where = str(path.resolve())
    if isinstance(error, SyntaxError) and error.filename == where:
        return f"{path}:{error.lineno}: {error.msg}."
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == where]
    place = f"{path}:{lines[-1]}" if lines else str(path)
    if isinstance(error, PacelineError):
        return f"{place}: {error}"
    if isinstance(error, SystemExit):
        return f"{place}: it exits before there is a study."
    said = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    return f"{place}: {said}."


def _instead(found: dict[str, object]) -> str:
    """Say what a file has that could have been meant."""
    studies = [name for name, value in found.items() if isinstance(value, Study)]
    if studies:
        return f"its pl.Study is called {studies[0]}, call it study"
    names = [name for name in found if not name.startswith("_")]
    has = f"it has {', '.join(names[:8])}" if names else "it is empty"
    return f"{has}; write study = pl.Study(train, space=…, …)"


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


def study_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a study that a command line can give."""
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
@study_options
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
    """Run a study file, here or on a Ray cluster, before its deadline.

    STUDY.PY holds a pl.Study named study; what stands under `if __name__ == "__main__"` is not
    executed. Options given here replace those in the file. The study survives its driver: Ctrl-C
    and SIGTERM leave a log that `paceline resume` goes on with.
    """
    from paceline.api.stored import free_name, refuse_known
    from paceline.cli.run import load_study

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
        from paceline.plots.report.page import write_report

        report = write_report(result.log, report, store=store)
    told = replace(result.summary(), store=store, report=None if report is None else str(report))
    if as_json:
        click.echo(msgspec.json.encode(told))
    else:
        from paceline.cli import tables

        tables.show(tables.summed_up(told))
    return result


def resume_command(url: str, study: str) -> str:
    """Return the command that goes on with a study."""
    where = "" if url == STORE.read() else f" --store {shown(url)}"
    return f"paceline resume {study}{where}"


def _watching(as_json: bool, quiet: bool) -> AbstractContextManager[Watch]:
    if quiet:
        return nullcontext(lambda state, steps: None)
    from paceline.live.watcher import progress_on

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
    from paceline.cli.run import load_study

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
