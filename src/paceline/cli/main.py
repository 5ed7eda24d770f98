"""The entry point of the command line: its commands, and how errors are shown.

Knows each command's name, module and one line of help, so that `paceline --help` imports no
command. Knows exit codes: 0 done, 1 the study failed, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM. Does
not know what a command does.
"""

from __future__ import annotations

import gc
import sys
import warnings
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from paceline.api.interrupts import hold_interrupt
from paceline.cli.process_start import find_process_start
from paceline.core.errors import (
    ClusterLost,
    PacelineError,
    PacelineWarning,
    StudyFailed,
    StudyTerminated,
    make_unknown_error,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class CommandEntry(NamedTuple):
    """The module and function of a command, and its line in the list of commands."""

    module: str
    attribute: str
    help: str


COMMANDS: dict[str, CommandEntry] = {
    "demo": CommandEntry("demo", "demo", "Tune a small network on this machine, in a minute."),
    "run": CommandEntry("run", "run", "Run a study file, here or on a Ray cluster."),
    "resume": CommandEntry("run", "resume", "Resume an unfinished study."),
    "submit": CommandEntry("submit", "submit", "Run a study file on a Ray cluster, detached."),
    "extend": CommandEntry("extend", "extend", "Give a study more trials, epochs or time."),
    "watch": CommandEntry(
        "control", "watch", "Watch a running study, from this machine or another."
    ),
    "stop": CommandEntry("control", "stop", "End a running study now, with its best result."),
    "slots": CommandEntry("control", "slots", "Give a running study more slots, or fewer."),
    "simulate": CommandEntry("simulate", "simulate", "Simulate one study on virtual slots."),
    "compare": CommandEntry(
        "compare", "compare", "Compare policies, allocators and numbers of slots."
    ),
    "ls": CommandEntry("inspect", "ls", "List the studies of a store."),
    "show": CommandEntry("inspect", "show", "Show a study and its trials, best first."),
    "best": CommandEntry("inspect", "best", "Show the best config a study has found."),
    "story": CommandEntry("inspect", "story", "Tell what happened to a study, or to one trial."),
    "logs": CommandEntry("logs", "logs", "Print what a trial has printed."),
    "tree": CommandEntry("inspect", "tree", "Show which epochs a study's trials share."),
    "checkpoints": CommandEntry("inspect", "checkpoints", "List a study's checkpoints."),
    "forecast": CommandEntry("forecast", "forecast", "Forecast a learning curve."),
    "report": CommandEntry("report", "report", "Write a report: one HTML page with figures."),
    "replay": CommandEntry(
        "inspect", "replay", "Check that a study's log leads to the same decisions."
    ),
    "export": CommandEntry("inspect", "export", "Write a study's trials to a file."),
    "rm": CommandEntry("rm", "rm", "Delete a study: its log, checkpoints and output."),
    "completion": CommandEntry("flags", "completion", "Print the script for tab completion."),
}


class Interrupted(Exception):
    """Ctrl-C, as an exception that click does not turn into an empty line."""

    def __init__(self, error: KeyboardInterrupt) -> None:
        super().__init__(str(error) or "interrupted")


class Commands(click.Group):
    """A group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        found: click.Command = getattr(
            import_module(f"paceline.cli.{entry.module}"), entry.attribute
        )
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            raise make_unknown_error("command", name, COMMANDS)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own signature
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted(error) from None


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="paceline", prog_name="paceline")
@click.pass_context
def commands(ctx: click.Context) -> None:
    """The best model your hardware can train before the deadline."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    with suppress(AttributeError):
        # The terminal may lack a letter of a config: print a question mark instead of failing.
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    arguments = None if argv is None else list(argv)
    # A program that calls this function has been running for other reasons.
    started = find_process_start() if argv is None else None
    try:
        with _print_warnings(), hold_interrupt():
            code = commands.main(
                arguments, prog_name="paceline", standalone_mode=False, obj=started
            )
    except click.ClickException as error:
        return _print_error(_format_usage(error), error.exit_code)
    except StudyFailed as error:
        # As it is: the message has a traceback.
        return _print_text(f"paceline: {error}", 1)
    except ClusterLost as error:
        return _print_error(str(error), 1)
    except PacelineError as error:
        return _print_error(str(error), 2)
    except Interrupted as error:
        return _print_error(str(error), 130)
    except StudyTerminated as error:
        return _print_error(str(error), 143)
    except click.Abort:
        return _print_error("interrupted", 130)
    finally:
        if argv is None:
            # The process ends now: a last look for garbage would take longer than most commands.
            gc.freeze()
    return code if isinstance(code, int) else 0


@contextmanager
def _print_warnings() -> Iterator[None]:
    """Print Paceline's warnings like errors: one line, without a line of code."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def print_warning(message: Warning | str, category: type[Warning], *place: Any) -> None:  # noqa: ANN401
            if issubclass(category, PacelineWarning):
                _print_error(str(message), 0)
            else:
                show(message, category, *place)

        warnings.showwarning = print_warning  # type: ignore[assignment]
        yield


def _format_usage(error: click.ClickException) -> str:
    message = error.format_message().rstrip(".")
    ctx = getattr(error, "ctx", None)
    hint = f" (try '{ctx.command_path} --help')" if ctx is not None else ""
    return f"{message[:1].lower()}{message[1:]}{hint}"


def _print_error(message: str, code: int) -> int:
    """Print a message as one line on standard error; return the exit code."""
    return _print_text(f"paceline: {' '.join(message.split())}", code)


def _print_text(text: str, code: int) -> int:
    from paceline.cli.output import echo  # imported on first use: most commands have no errors

    echo(text, err=True)
    return code
