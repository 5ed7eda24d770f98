"""Arguments and options that several commands have, and shell completion.

Knows which option sets which field of StudyOptions or Simulation, and how durations, capacities and
lists of parts are written. Does not know the defaults, nor what a command does with a value.
"""

from __future__ import annotations

import math
import os
from glob import escape, glob
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ZshComplete

from paceline.api.options import parse_duration
from paceline.api.simulation import DEFAULT_POLICY, Simulation
from paceline.core.errors import PacelineError, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.api.registry import Kind

    Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
    from collections.abc import Callable, Iterable, Sequence

    Command = Callable[..., Any]


class Variable(NamedTuple):
    """An environment variable. An empty one counts as not set."""

    name: str
    default: str
    help: str

    def read(self) -> str:
        """Return its value, or the default."""
        return os.environ.get(self.name) or self.default


STORE = Variable(
    "PACELINE_STORE",
    "sqlite:///paceline.db",
    "The store of commands that are called without `--store`.",
)

VARIABLES = (STORE,)

# The store of `paceline demo`.
DEMO_STORE = Path("paceline-demo", "paceline.db")


def find_default_store() -> str:
    """Return the store of a command without `--store`; the demo's, if it is the only one here."""
    url = STORE.read()
    if url == STORE.default and DEMO_STORE.exists() and not Path("paceline.db").exists():
        return str(DEMO_STORE)
    return url


SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


def complete_study(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the studies of the store that the command would use."""
    from paceline.api.stored import open_existing

    try:
        with open_existing(ctx.params.get("store") or find_default_store()) as store:
            names = store.studies()
    except PacelineError:
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def complete_source(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the bundled sources that begin with the text, or let the shell complete files."""
    from paceline.api.sources import list_sources

    names = [name for name in list_sources() if incomplete and name.startswith(incomplete)]
    # Not both: bash offers files only if there is nothing else to offer.
    if names and not glob(f"{escape(incomplete)}*"):
        return [CompletionItem(name) for name in names]
    return [CompletionItem(incomplete, type="file")]


def complete_part(kind: Kind, *, several: bool = False) -> Complete:
    """Return the completion of a part's name; with `several`, of the last name in a list."""

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from paceline.api.registry import list_parts

        at = max(incomplete.rfind(","), incomplete.rfind(";")) + 1 if several else 0
        before, begun = incomplete[:at], incomplete[at:]
        return [
            CompletionItem(before + name) for name in list_parts(kind) if name.startswith(begun)
        ]

    return complete


@click.command()
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script for tab completion.

    Add it to your shell's start-up file, for example:

    \b
      echo 'eval "$(paceline completion bash)"' >> ~/.bashrc
      echo 'eval "$(paceline completion zsh)"' >> ~/.zshrc
      paceline completion fish > ~/.config/fish/completions/paceline.fish
    """
    script = SHELLS[shell](ctx.find_root().command, {}, "paceline", "_PACELINE_COMPLETE")
    click.echo(script.source())


# Types of options. The help shows a type by its name, and click adds the option to its errors.


def duration(text: str) -> float:
    """Return the seconds of `90`, `10m`, `1h30m`, `2d`."""
    try:
        return parse_duration(text)
    except SpecError as error:
        raise click.BadParameter(str(error)) from None


class DurationText(click.ParamType):  # type: ignore[type-arg] # generic since click 8.4
    """A duration, passed on as it is written, since it goes into the log."""

    name = "duration"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text, once it is known to be a duration."""
        duration(value)
        return value


DURATION_TEXT = DurationText()


def hours(text: str) -> float:
    """Return hours as seconds."""
    try:
        return float(text) * 3600.0
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a number of hours.") from None


def capacity(text: str) -> tuple[tuple[float, int], ...]:
    """Return the steps of `600=2,20m=8`: the number of slots from each time on."""
    return _parse_times(text, "slots")


def kills(text: str) -> tuple[tuple[float, int], ...]:
    """Return the times and trials of `90=3,2m=0`: whose worker is killed when."""
    return _parse_times(text, "trial")


def _parse_times(text: str, what: str) -> tuple[tuple[float, int], ...]:
    steps = []
    for step in text.split(","):
        at, _, number = step.partition("=")
        try:
            steps.append((parse_duration(at), int(number)))
        except (SpecError, ValueError):
            raise click.BadParameter(
                f"{text!r} is invalid at {step!r}: write time={what},time={what}, such as "
                "600=2,20m=8."
            ) from None
    return tuple(steps)


def bounds(text: str) -> tuple[float, float]:
    """Return the lowest and the highest value of `0,1`."""
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        low = high = math.nan
    if not -math.inf < low < high < math.inf:
        raise click.BadParameter(
            f"{text!r} is not a range: give the lowest and the highest value, such as 0,1."
        )
    return low, high


def part(text: str) -> str:
    """Return a part as it is written; it is looked up when it is built."""
    return text


def parts(text: str) -> list[str]:
    """Return the parts of a list."""
    try:
        return split_parts(text)
    except SpecError as error:
        raise click.BadParameter(str(error)) from None


def numbers(text: str) -> list[int]:
    """Return the whole numbers of `4,8`."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of whole numbers like 4,8.") from None


def split_parts(text: str) -> list[str]:
    """Return the parts of a list. A token with `=` and without `:` belongs to the part before it.

    >>> split_parts("fifo,asha:eta=3,drain=false;median")
    ['fifo', 'asha:eta=3,drain=false', 'median']
    """
    parts: list[str] = []
    for group in text.split(";"):
        fresh = True
        for token in filter(None, map(str.strip, group.split(","))):
            if "=" in token and ":" not in token:
                if fresh:
                    raise SpecError(f"{token!r} is a parameter without a part: write name:{token}.")
                parts[-1] += f",{token}"
            else:
                parts.append(token)
            fresh = False
    if not parts:
        raise SpecError("the list is empty: give at least one name.")
    return parts


class Flag(NamedTuple):
    """A command line option and the field of StudyOptions or Simulation that it sets."""

    name: str
    field: str
    # A function from text to value, or another type of click.
    type: object
    help: str


_POLICY = "The policy, which judges trials: a name, or name:key=value,…"

_COMMON_FLAGS = (
    Flag("--allocator", "allocator", part, "The allocator, which divides the slots."),
    Flag("--target", "target", float, "End when a trial reports this value."),
    Flag("--over", "over", int, "Compare the target with the mean of this many reports."),
    Flag("--range", "range", bounds, "The lowest and the highest value of the metric: 0,1."),
    Flag("--span", "span", int, "The most slots for one trial."),
    Flag("--pack", "pack", int, "The most trials on one slot."),
)

# The options of `run` and `submit`, in the order of their help.
STUDY_FLAGS = (
    Flag("--deadline", "deadline", DURATION_TEXT, "End after this much active time."),
    Flag("--policy", "policy", part, f"{_POLICY} [default: by function, epochs and deadline]"),
    *_COMMON_FLAGS,
    Flag("--generator", "generator", part, "The generator, which proposes configs."),
    Flag("--curves", "curves", part, "The curve model, which forecasts for the policy."),
    Flag("--needs", "needs", str, "Slots by the setting: module:function, or batch:257=2,513=4."),
    Flag("--share/--no-share", "share", bool, "Train epochs that trials have in common once."),
    Flag("--plan", "plan", str, "The training's name@version: studies of one plan share."),
    Flag("--warm-start", "warm_start", str, "Learn from this study of the store first."),
    Flag("--slots", "slots", str, "GPUs, or cores on a machine without GPUs: 8, cpu:4, gpu:2."),
    Flag("--trials", "trials", int, "The most trials to open."),
    Flag("--epochs", "epochs", int, "The last epoch of every trial."),
    Flag("--slot-hours", "slot_hours", float, "End when this many slot-hours are used."),
    Flag("--seed", "seed", int, "The seed of configs and training."),
    Flag("--retries", "retries", int, "Failures that a trial survives."),
    Flag("--hang", "hang", DURATION_TEXT, "End a trial that reports nothing for this long."),
    Flag("--checkpoints", "checkpoints", str, "A shared folder or s3://bucket/prefix for them."),
    Flag("--keep-best", "keep_best", int, "Keep the checkpoints of this many finished trials."),
    Flag("--checkpoint-bytes", "checkpoint_bytes", int, "The limit on all checkpoints together."),
)

# The options of a study that `run` and `submit` set in another way, or leave to the study file.
STUDY_FIELDS_WITHOUT_FLAG = {
    **dict.fromkeys(("name", "store"), "an option of the command itself"),
    **dict.fromkeys(("space", "first", "metric", "mode"), "part of what the function is"),
    **dict.fromkeys(("files", "cache_bytes", "mps"), "a property of the machine"),
    "progress": "--quiet and --json choose what is shown",
}

# The options of `simulate`. `compare` has lists instead of some of them.
SIMULATION_FLAGS = (
    Flag("--policy", "policy", part, f"{_POLICY} [default: {DEFAULT_POLICY}]"),
    *_COMMON_FLAGS,
    Flag("--generator", "generator", part, "The generator, for a synthetic workload."),
    Flag("--curves", "curves", part, "The curve model, which forecasts for the policy."),
    Flag("--slots", "slots", int, "Virtual slots."),
    Flag("--deadline", "deadline_s", duration, "End after this much simulated time."),
    Flag("--slot-hours", "slot_seconds", hours, "End when this many slot-hours are used."),
    Flag("--epochs", "epochs", int, "The last epoch of every trial. [default: as recorded]"),
    Flag("--trials", "trials", int, "The most trials. [default: all of a trace, else 100]"),
    Flag("--seed", "seed", int, "The seed of order, failures and noise."),
    Flag("--order", "order", click.Choice(["shuffled", "file"]), "The order of a trace's runs."),
    Flag("--complete", "complete", bool, "Continue curves that were cut short by forecasts."),
    Flag("--draw", "draw", int, "With --complete: simulate this one completion. [default: many]"),
    Flag("--share", "share", bool, "Train epochs that trials have in common once."),
    Flag(
        "--speedup",
        "speedup",
        str,
        "Speed by width: amdahl:0.95, table:1=1,2=1.87,… [default: the trace's own, else linear]",
    ),
    Flag(
        "--interference",
        "interference",
        float,
        "Slow-down by each further trial on a slot. [default: the trace's own, else 0]",
    ),
    Flag("--needs", "needs", str, "Slots by a hyperparameter: batch:257=2,513=4."),
    Flag("--setup", "setup_s", duration, "Cost of a start. [default: the trace's own]"),
    Flag("--save", "save_s", duration, "Cost of a save; 0 is the trace's own, if any."),
    Flag("--restore", "restore_s", duration, "Cost of a restore; 0 is the trace's own, if any."),
    Flag("--node-slots", "node_slots", int, "Slots of one node. [default: all slots are alike]"),
    Flag("--fetch", "fetch_s", duration, "Extra cost of a checkpoint from another node."),
    Flag("--forecast", "forecast_s", duration, "Time of a forecast; 0 is the trace's own, if any."),
    Flag("--save-every", "save_every_s", duration, "Save when the last save is this long ago."),
    Flag("--mean-life", "mean_life_s", duration, "Mean time until an attempt fails."),
    Flag("--kills", "kills", kills, "Trials whose workers are killed at certain times: 90=3,2m=0."),
    Flag(
        "--live/--no-live",
        "live",
        bool,
        "Train on while a report is judged, as workers do. [default: as the trace was recorded]",
    ),
    Flag("--retries", "retries", int, "Failures that a trial survives."),
    Flag("--capacity", "capacity", capacity, "Slots from certain times on: 600=2,20m=8."),
)

_PARTS: dict[str, Kind] = {
    "policy": "policy",
    "generator": "generator",
    "allocator": "allocator",
    "curves": "curve model",
}


def add_study_flags(command: Command) -> Command:
    """Add the options of a study; a command gets those not given as None."""
    for flag in reversed(STUDY_FLAGS):
        command = _add_flag(command, flag, flag.help)
    return command


def add_simulation_flags(*, without: Sequence[str] = ()) -> Callable[[Command], Command]:
    """Add the options of a simulation but these; a command gets those not given as None or False.

    The help names the defaults, but click does not apply them: they are in Simulation alone.
    """
    defaults = {each.name: each.default for each in msgspec.structs.fields(Simulation)}

    def add(command: Command) -> Command:
        for flag in reversed(SIMULATION_FLAGS):
            if flag.field not in without:
                default = defaults[flag.field]
                hidden = default is None or default is False or default == ()
                shown = f"{default:g}" if isinstance(default, float) else default
                text = flag.help if hidden else f"{flag.help} [default: {shown}]"
                command = _add_flag(command, flag, text)
        return command

    return add


def _add_flag(command: Command, flag: Flag, text: str) -> Command:
    kind = _PARTS.get(flag.field)
    # `is_flag=False` would make click take `-5` for an option rather than for a value.
    value: dict[str, Any] = {"is_flag": True} if flag.type is bool else {"type": flag.type}
    if "/" in flag.name:
        value["default"] = None  # neither of the two was given
    complete = complete_part(kind) if kind else None
    return click.option(flag.name, flag.field, help=text, shell_complete=complete, **value)(command)


def make_simulation(options: dict[str, Any], source: str) -> Simulation:
    """Return the simulation that these options describe."""
    given = {field: value for field, value in options.items() if value is not None}
    return Simulation(source=source, **given)


source_argument = click.argument("source", shell_complete=complete_source)
sources_argument = click.argument(
    "sources", nargs=-1, required=True, metavar="SOURCE…", shell_complete=complete_source
)
study_argument = click.argument("study", shell_complete=complete_study)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
store_option = click.option(
    "--store",
    metavar="URL",
    default=find_default_store,
    help=f"The store of the study. [default: ${STORE.name}, else {STORE.default}, else the demo's]",
)
allow_option = click.option(
    "--allow",
    metavar="NAME",
    multiple=True,
    help="Let the log name this part (module:Class), folder, file or address. May be repeated.",
)


def merge_lists(lists: Iterable[Sequence[Any]]) -> tuple[Any, ...]:
    """Return the items of all lists, each once, in order."""
    return tuple(dict.fromkeys(item for items in lists for item in items))
