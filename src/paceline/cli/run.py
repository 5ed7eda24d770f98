"""`paceline run` and `paceline resume`: run a study file, with live view, summary and report.

Knows how a study file is executed, what goes to which stream, and the default name of a study. Does
not know how a study is run: that is `paceline.api`.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import contextmanager, nullcontext
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from msgspec.structs import replace

from paceline.api.deadline import Caller
from paceline.api.permissions import (
    NOTHING,
    check_address,
    check_part_options,
    check_path,
    check_simulation,
    find_own_folder,
    make_place_error,
)
from paceline.api.permissions import allow as allow_named
from paceline.api.simulation import read_simulation
from paceline.api.stored import open_existing, read_spec
from paceline.api.study import Study
from paceline.cli.flags import (
    STORE,
    STUDY_FLAGS,
    add_study_flags,
    allow_option,
    json_option,
    store_option,
    study_argument,
)
from paceline.cli.output import echo, echo_json
from paceline.cli.progress import ProgressBar
from paceline.cli.report import has_plotly, report_file_name, require_plotly
from paceline.cli.simulate import finish
from paceline.core.decisions import End
from paceline.core.errors import (
    ClusterLost,
    PacelineError,
    SpecError,
    StudyTerminated,
    make_missing_extra_error,
)
from paceline.core.events import Extended, Opened
from paceline.core.extension import resolve_log
from paceline.core.run_info import RunInfo
from paceline.engines.process.ray.config import parse_ray
from paceline.store import find_store_file, hide_password

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType

    from paceline.api.permissions import Allowed
    from paceline.api.results import Result
    from paceline.core.decisions import Step
    from paceline.engines.process.ray.config import Ray
    from paceline.live.watcher import Watch


# The module's name while the file is executed. No file has this name, so it hides none.
_NAME = "paceline study"


def load_study(file: str) -> Study:
    """Execute a study file and return its study; its folder is on the import path from then on."""
    path = Path(file)
    if path.is_dir():
        raise SpecError(f"{file} is a directory: give the Python file that holds the study.")
    if not path.exists():
        raise SpecError(f"there is no file {file}: give a Python file with a pl.Study named study.")
    found = vars(_execute(path))
    if "study" not in found:
        raise SpecError(f"{file} has no study: {_suggest_study(found)}.")
    study = found["study"]
    if not isinstance(study, Study):
        kind = type(study).__name__
        raise SpecError(f"study in {file} is a {kind}: write study = pl.Study(train, space=…, …).")
    if study.spec.standing:
        raise SpecError(
            f"the study in {file} has no space, so it has nothing to run: give space=…."
        )
    return study


def _execute(path: Path) -> ModuleType:
    spec = spec_from_file_location(_NAME, path.resolve())
    if spec is None or spec.loader is None:
        raise SpecError(f"{path} is not a Python file: give a file whose name ends in .py.")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = module_from_spec(spec)
    # Dataclasses look up their module while they are made. The name is removed afterwards, so that
    # functions are pickled by value: a worker process could not import them.
    sys.modules[_NAME] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise SpecError(_describe_error(path, error)) from None
    finally:
        del sys.modules[_NAME]
    return module


def _describe_error(path: Path, error: BaseException) -> str:
    """Return the error and its line in the file."""
    where = str(path.resolve())
    if isinstance(error, SyntaxError) and error.filename == where:
        return f"{path}:{error.lineno}: {error.msg}."
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == where]
    place = f"{path}:{lines[-1]}" if lines else str(path)
    if isinstance(error, PacelineError):
        return f"{place}: {error}"
    if isinstance(error, SystemExit):
        return f"{place}: the file exits before it defines a study."
    message = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    return f"{place}: {message}."


def _suggest_study(found: dict[str, object]) -> str:
    """Return a hint: the study's other name, or the names that the file has."""
    studies = [name for name, value in found.items() if isinstance(value, Study)]
    if studies:
        return f"its pl.Study is named {studies[0]}, name it study"
    names = [name for name in found if not name.startswith("_")]
    has = f"it has {', '.join(names[:8])}" if names else "it is empty"
    return f"{has}; write study = pl.Study(train, space=…, …)"


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the output of a study that runs."""
    for add in (
        json_option,
        click.option("--quiet", "-q", is_flag=True, help="Show only the summary."),
        click.option("--no-report", is_flag=True, help="Do not write a report."),
        click.option(
            "--report",
            metavar="FILE",
            type=click.Path(dir_okay=False),
            help="The file for the HTML report. [default: STUDY.html]",
        ),
    ):
        command = add(command)
    return command


class OutputOptions(NamedTuple):
    """The output options of a study that runs."""

    report: str | None
    no_report: bool
    quiet: bool
    as_json: bool

    def report_for(self, study: str) -> str | None:
        """Return where the study's report goes; None if none is written."""
        if self.no_report:
            return None
        if self.report is not None:
            require_plotly()
            return self.report
        if not has_plotly():
            error = make_missing_extra_error("plotly", "report")
            echo(f"paceline: no report will be written: {error}", err=True)
            return None
        return report_file_name(study)


@click.command()
@click.argument("file", metavar="STUDY.PY", type=click.Path())
@add_study_flags
@click.option(
    "--store",
    metavar="URL",
    help=f"The study's store. [default: the file's, ${STORE.name}, else {STORE.default}]",
)
@click.option("--engine", type=click.Choice(["ray"]), help="Run the trials on a Ray cluster.")
@click.option("--address", help="The address of the Ray cluster. [default: this machine's cluster]")
@click.option("--name", help="The study's name. [default: the file's, else STUDY-1, STUDY-2, …]")
@output_options
def run(
    file: str,
    store: str | None,
    name: str | None,
    **options: Any,  # noqa: ANN401 - STUDY_FLAGS and OutputOptions
) -> int:
    """Run a study file, here or on a Ray cluster.

    STUDY.PY defines a pl.Study named study; code under `if __name__ == "__main__"` does not run.
    Options given here replace those in the file. Ctrl-C and SIGTERM end the command, not the study:
    `paceline resume` goes on from its log.
    """
    from paceline.api.stored import find_free_name, refuse_existing

    output = OutputOptions(*(options.pop(field) for field in OutputOptions._fields))
    slots = _join_slots(options.pop("engine"), options.pop("address"), options["slots"])
    given = {field: value for field, value in (options | slots).items() if value is not None}
    if name == "":
        raise SpecError("--name is empty: give the study a name, or leave it out.")
    loaded = load_study(file)
    url = store or loaded.options.get("store") or STORE.read()
    name = name or loaded.options.get("name") or find_free_name(url, Path(file).stem)
    study = loaded.but(**given, name=name, store=url)
    refuse_existing(url, name, resume_command(url, name, file))
    study.run_info = RunInfo(file=_relative_to_store(url, file), given=given)
    return run_stored(study, output)


def _join_slots(engine: str | None, address: str | None, slots: str | None) -> dict[str, Any]:
    """Return the option `slots` for `--engine ray`; empty without it."""
    if engine is None and address is not None:
        raise SpecError("--address is only for a Ray cluster: add --engine ray.")
    if engine is None:
        return {}
    return {"slots": "ray" + (f":{slots}" if slots else "") + (f"@{address}" if address else "")}


def run_stored(study: Study, output: OutputOptions) -> int:
    """Run a study that has a store; return the exit code."""
    name, url = study.spec.name, study.resolved.store or ""
    report = output.report_for(name)
    with _explain_interrupt(resume_command(url, name, _find_file(url, study.run_info.file))):
        result = run_live(study, report=report, as_json=output.as_json, quiet=output.quiet)
    return 0 if result.best_or_none is not None else 1


def run_live(
    study: Study,
    *,
    report: str | Path | None = None,
    as_json: bool = False,
    quiet: bool = False,
) -> Result:
    """Run a study to its end, or to an interrupt; show its progress and summary, write its report.

    Standard output gets the live view if it is a terminal, else lines; then the summary. With
    `as_json` it gets one object, and the lines go to standard error; `quiet` leaves them out.
    Raises StudyFailed if all trials failed, KeyboardInterrupt after Ctrl-C and the summary,
    StudyTerminated after SIGTERM.
    """
    study.caller = _make_caller(has_report=report is not None)
    if report is not None and study.spec.budget.deadline_s is not None:
        # Now, and not at the deadline.
        import_module("paceline.plots.report.page")
    with _open_view(as_json, quiet) as watch:
        result = study.run(watch)
    if result.interrupted and len(result.log) == 1:
        raise KeyboardInterrupt  # before the log began
    url = study.resolved.store
    store = None if url is None else hide_password(url)
    if report is not None and not result.interrupted:
        # Imported here: plotly takes longer to import than most commands run.
        from paceline.plots.report.page import write_report

        report = write_report(result.log, report, store=store)
    path = None if report is None or result.interrupted else str(report)
    summary = replace(result.summary(), store=store, report=path)
    if as_json:
        echo_json(summary)
    else:
        from paceline.cli import tables

        tables.show(tables.render_summary(summary))
    if result.interrupted:
        raise KeyboardInterrupt(f"study {study.spec.name!r} was interrupted")
    return result


# Processor seconds after a study: the summary and the end of the process; the report, and what each
# step of the log adds to it.
_SUMMARY_S, _REPORT_S, _REPORT_STEP_S = 0.08, 0.18, 2e-5


def _make_caller(*, has_report: bool) -> Caller:
    """Return the call that the deadline counts from: the start of this process."""
    context = click.get_current_context(silent=True)
    started = None if context is None else context.obj
    caller = Caller.note()
    if started is not None:
        caller = Caller(began=started, noted=started, noted_cpu=0.0)
    return replace(
        caller,
        after_s=_SUMMARY_S + (_REPORT_S if has_report else 0.0),
        after_step_s=_REPORT_STEP_S if has_report else 0.0,
    )


def resume_command(url: str, study: str, file: str | None = None) -> str:
    """Return the command that resumes a study, with its file if that is outside the store."""
    where = "" if url == STORE.read() else f" --store {hide_password(url)}"
    own = find_own_folder(url)
    if file is None or (own is not None and Path(file).resolve().is_relative_to(own)):
        return f"paceline resume {study}{where}"
    return f"paceline resume {study} {file}{where}"


def _find_file(url: str, file: str | None) -> str | None:
    """Return the path of a study file, from its path as seen from the store."""
    database = find_store_file(url)
    if file is None or database is None:
        return file
    return os.path.relpath(Path(database.parent, file))


def _open_view(as_json: bool, quiet: bool) -> AbstractContextManager[Watch]:
    if quiet:
        return nullcontext(lambda state, steps: None)
    from paceline.live.watcher import show_progress

    return show_progress(sys.stderr if as_json else sys.stdout)


@contextmanager
def _explain_interrupt(command: str) -> Iterator[None]:
    """Add the command that resumes the study to the message of what has ended its driver."""
    try:
        yield
    except KeyboardInterrupt as error:
        if not error.args:
            raise  # before the log began
        raise KeyboardInterrupt(f"interrupted; the log is safe, resume with `{command}`") from None
    except StudyTerminated:
        raise StudyTerminated(f"terminated; the log is safe, resume with `{command}`") from None
    except ClusterLost as lost:
        elsewhere = f"`{command} --address HOST:PORT`"
        raise ClusterLost(lost.found, f"the log is safe, resume with {elsewhere}") from None


def _relative_to_store(url: str, file: str) -> str:
    """Return a file's path relative to the store's folder, so that both can move together."""
    path = find_store_file(url)
    # A store on a server has no folder.
    return os.path.abspath(file) if path is None else os.path.relpath(file, path.parent)


@click.command()
@study_argument
@click.argument("file", metavar="[STUDY.PY]", required=False, type=click.Path())
@store_option
@click.option("--address", help="Another Ray cluster. [default: the one that the study ran on]")
@allow_option
@output_options
def resume(
    study: str,
    file: str | None,
    store: str,
    address: str | None,
    allow: tuple[str, ...],
    **options: Any,  # noqa: ANN401 - the fields of OutputOptions
) -> int:
    """Resume an unfinished study.

    A study of `paceline run` needs its file: give STUDY.PY if the file was moved without its store,
    or is not in the folder of the store.
    A simulated study is simulated again up to the end of its log, and goes on from there; its
    source must be where it was. A study that has ended stays as it is.
    """
    output = OutputOptions(**options)
    with open_existing(store) as stored, ProgressBar(f"reading {study}") as bar:
        log = list(bar.track(stored.read(study)))
    read_spec(log, study)
    allowed = allow_named(*allow)
    end = _find_end(log)
    if end is not None:
        echo(f"study {study!r} has ended: {end.why}.", err=output.as_json)
        return 0
    event = resolve_log(log)[0].event
    assert isinstance(event, Opened)
    if event.run.kind == "sim":
        return _resume_simulation(log, store, output, allowed)
    resumed = load_resumable(event, file, store, allowed=allowed, address=address)
    resumed.known_log = log
    return run_stored(resumed, output)


def _find_end(log: Sequence[Step]) -> End | None:
    """Return the end of a study; None: it has not ended, or was extended since."""
    for step in reversed(log):
        if isinstance(step.event, Extended):
            return None
        for decision in step.decisions:
            if isinstance(decision, End):
                return decision
    return None


def _resume_simulation(
    log: Sequence[Step], store: str, output: OutputOptions, allowed: Allowed
) -> int:
    study, simulation = read_spec(log).name, read_simulation(log)
    check_simulation(study, simulation, store, allowed)
    if output.report:
        raise SpecError(
            f"study {study!r} is simulated: --report works only for studies that train."
        )
    with open_existing(store, lazy=True) as stored, ProgressBar(f"simulating {study}") as bar:
        result = simulation.resume(
            log, remember=lambda steps: stored.append(study, steps), watch=bar.make_watcher()
        )
    return finish(result, output.as_json)


def load_resumable(
    opened: Opened,
    file: str | None,
    store: str,
    changes: dict[str, Any] | None = None,
    allowed: Allowed = NOTHING,
    address: str | None = None,
) -> Study:
    """Load the file of a stored study; return the study with the options it was run with.

    With `address` it runs on the Ray cluster there. Raises SpecError if its log names a file, a
    part or an address that is not allowed.
    """
    study, run = opened.spec.name, opened.run
    command = "resume" if changes is None else "extend"
    if run.together:
        raise SpecError(
            f"study {study!r} runs several studies as one: run the program that called pl.together "
            f"again, with the same name and store, to {command} them."
        )
    known = run.given or {}
    # The address in the log is not used if another one is given.
    used = {name: known[name] for name in known if name != "slots" or address is None}
    _check_known_options(study, used, store, allowed)
    given = {**known, **(changes or {})}
    found = file or _find_study_file(study, store, run.file, command, allowed)
    loaded = load_study(found)
    if address is not None:
        given["slots"] = _move(study, known.get("slots", loaded.options.get("slots")), address)
    resumed = loaded.but(**given, name=study, store=store)
    if changes:
        resumed.run_info = RunInfo(file=_relative_to_store(store, found), given=given)
    return resumed


def _move(study: str, slots: object, address: str) -> Ray:
    """Return the slots of a study on another Ray cluster."""
    cluster = parse_ray(slots)
    if cluster is None:
        raise SpecError(f"study {study!r} does not run on a Ray cluster: leave out --address.")
    return replace(cluster, address=address)


def _check_known_options(study: str, known: dict[str, Any], store: str, allowed: Allowed) -> None:
    """Raise SpecError if options in a log are not those of `paceline run`, or are not allowed."""
    fields = [flag.field for flag in STUDY_FLAGS]
    for name in known:
        if name not in fields:
            raise SpecError(
                f"the log of study {study!r} has an option {name!r} that `paceline run` does not "
                "have: run the program that started the study."
            )
    check_part_options(study, known, allowed)
    if known.get("checkpoints") is not None:
        check_address(study, str(known["checkpoints"]), store, allowed)
    slots, _, address = str(known.get("slots", "")).partition("@")
    is_allowed = address in allowed.parts or address in allowed.addresses
    if slots.startswith("ray") and address and not is_allowed:
        raise make_place_error(study, "workers", address, store)


def _find_study_file(
    study: str, store: str, file: str | None, command: str, allowed: Allowed
) -> str:
    """Return the path of the study's file."""
    database = find_store_file(store)
    ask = f"give the file that defines it: `paceline {command} {study} STUDY.PY`"
    if file is None and command == "extend":
        raise SpecError(
            f"study {study!r} was not started by `paceline run`: run the program that started it "
            f"with the new options, or {ask}."
        )
    if file is None:
        raise SpecError(f"study {study!r} was not started by `paceline run`: {ask}.")
    path = Path(file if database is None else os.path.normpath(database.parent / file))
    if not path.exists():
        raise SpecError(f"the file {path} of study {study!r} does not exist: {ask}.")
    try:
        check_path(study, "file", path, store, allowed)
    except SpecError:
        raise SpecError(
            f"the log of study {study!r} names the file {path}, outside the folder of its store: a "
            f"store may come from elsewhere, so that file is run only if you name it; give it: "
            f"`paceline {command} {study} {path}`."
        ) from None
    return str(path)
