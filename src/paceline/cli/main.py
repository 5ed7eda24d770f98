"""The entry point: which commands there are, and what becomes of errors.

Knows each command's name, where it lives and its one line of help, so that `paceline --help`
imports none of them. Knows exit codes: 0 done, 1 the study failed, 2 the user's mistake, 130 a
keyboard interrupt, 143 a SIGTERM. Does not know what any command does.
"""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from paceline.core.errors import (
    PacelineError,
    PacelineWarning,
    StudyFailed,
    StudyTerminated,
    unknown,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Place(NamedTuple):
    """Where a command lives, and its line in the list of commands."""

    module: str
    attribute: str
    help: str


COMMANDS: dict[str, Place] = {
    "demo": Place("demo", "demo", "Tune a small network on this machine, in a minute."),
    "run": Place("run", "run", "Run a study file, here or on a Ray cluster, before its deadline."),
    "resume": Place("run", "resume", "Go on with an unfinished study."),
    "submit": Place("submit", "submit", "Run a study file on a Ray cluster, by itself."),
    "watch": Place("control", "watch", "Watch a running study, from this machine or another."),
    "stop": Place("control", "stop", "End a running study now, with its best result."),
    "slots": Place("control", "slots", "Give a running study more slots, or fewer."),
    "simulate": Place("simulate", "simulate", "Simulate one study on virtual slots."),
    "compare": Place("compare", "compare", "Compare policies: how soon, with how many slots."),
    "ls": Place("inspect", "ls", "List the studies of a store."),
    "show": Place("inspect", "show", "Show a study and its trials, best first."),
    "best": Place("inspect", "best", "Show the best config a study has found."),
    "story": Place("inspect", "story", "Tell what happened to a study, or to one trial."),
    "tree": Place("inspect", "tree", "Show what a study's trials share."),
    "checkpoints": Place("inspect", "checkpoints", "List a study's checkpoints."),
    "forecast": Place("forecast", "forecast", "Show where a curve may go."),
    "report": Place("report", "report", "Write a study as one HTML page, with figures."),
    "replay": Place("inspect", "replay", "Check that a study's log leads to the same decisions."),
    "export": Place("inspect", "export", "Write a study's curves as a trace file."),
    "completion": Place("flags", "completion", "Print the script for completion by tab."),
}


class Interrupted(Exception):
    """A keyboard interrupt, in a form that click does not turn into an empty line."""

    def __init__(self, error: KeyboardInterrupt) -> None:
        super().__init__(str(error) or "interrupted")


class Commands(click.Group):
    """A group that imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        found: click.Command = getattr(
            import_module(f"paceline.cli.{place.module}"), place.attribute
        )
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            raise unknown("command", name, COMMANDS)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.help) for name, place in COMMANDS.items()])

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
        # A config may hold letters that the terminal has not: a question mark is no reason to fail.
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    arguments = None if argv is None else list(argv)
    try:
        with _warnings_in_words():
            code = commands.main(arguments, prog_name="paceline", standalone_mode=False)
    except click.ClickException as error:
        return _complain(_usage(error), error.exit_code)
    except StudyFailed as error:
        return _complain(str(error), 1)
    except PacelineError as error:
        return _complain(str(error), 2)
    except Interrupted as error:
        return _complain(str(error), 130)
    except StudyTerminated as error:
        return _complain(str(error), 143)
    except click.Abort:
        return _complain("interrupted", 130)
    return code if isinstance(code, int) else 0


@contextmanager
def _warnings_in_words() -> Iterator[None]:
    """Say our own warnings as we say errors: one line, and no place in our code."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def tell(message: Warning | str, category: type[Warning], *where: Any) -> None:  # noqa: ANN401
            if issubclass(category, PacelineWarning):
                _complain(str(message), 0)
            else:
                show(message, category, *where)

        warnings.showwarning = tell  # type: ignore[assignment]
        yield


def _usage(error: click.ClickException) -> str:
    message = error.format_message().rstrip(".")
    ctx = getattr(error, "ctx", None)
    hint = f" (try '{ctx.command_path} --help')" if ctx is not None else ""
    return f"{message[:1].lower()}{message[1:]}{hint}"


def _complain(message: str, code: int) -> int:
    """Say one line on standard error, whatever the message is made of."""
    click.echo(f"paceline: {' '.join(message.split())}", err=True)
    return code
