"""Options that several commands have, each written once.

Knows which flag sets which field of a Simulation, and how durations, capacities and lists of parts
are read. Defaults are the Simulation's own. Does not know what a command does with them.
"""

from __future__ import annotations

import math
import os
from glob import escape, glob
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ZshComplete

from paceline.api.options import seconds_of
from paceline.api.simulation import Simulation
from paceline.core.errors import PacelineError, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.api.registry import Kind

    Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
    from collections.abc import Callable, Iterable, Sequence

    Command = Callable[..., Any]


class Variable(NamedTuple):
    """A variable of the environment. An empty one counts as not set."""

    name: str
    default: str
    help: str

    def read(self) -> str:
        """Return its value, or the default."""
        return os.environ.get(self.name) or self.default


STORE = Variable(
    "PACELINE_STORE",
    "sqlite:///paceline.db",
    "The store that commands use where `--store` is not given.",
)

VARIABLES = (STORE,)


SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
SYNTHETIC = ("families", "quadratic", "toy")


def complete_study(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the studies of the store that the command would use."""
    from paceline.api.stored import opened

    try:
        with opened(ctx.params.get("store") or STORE.read()) as store:
            names = store.studies()
    except PacelineError:
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def complete_source(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return what comes with the package and begins so, or let the shell look for files."""
    from paceline.api.sources import shipped

    known = [*SYNTHETIC, *shipped()]
    names = [name for name in known if incomplete and name.startswith(incomplete)]
    # One or the other: bash offers files only where it is offered nothing else.
    if names and not glob(f"{escape(incomplete)}*"):
        return [CompletionItem(name) for name in names]
    return [CompletionItem(incomplete, type="file")]


def complete_part(kind: Kind, *, several: bool = False) -> Complete:
    """Return what completes a part's name; with `several`, the last one of a list."""

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from paceline.api.registry import names

        at = max(incomplete.rfind(","), incomplete.rfind(";")) + 1 if several else 0
        before, begun = incomplete[:at], incomplete[at:]
        return [CompletionItem(before + name) for name in names(kind) if name.startswith(begun)]

    return complete


@click.command()
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script for completion by tab.

    Add it to your shell's start-up file, for example:

    \b
      echo 'eval "$(paceline completion bash)"' >> ~/.bashrc
      echo 'eval "$(paceline completion zsh)"' >> ~/.zshrc
      paceline completion fish > ~/.config/fish/completions/paceline.fish
    """
    made = SHELLS[shell](ctx.find_root().command, {}, "paceline", "_PACELINE_COMPLETE")
    click.echo(made.source())


# Types of options. Their names are what the help calls a value; click says which option is wrong.


def duration(text: str) -> float:
    """Return the seconds of `90`, `10m`, `1h30m`, `2d`."""
    try:
        return seconds_of(text)
    except SpecError as error:
        raise click.BadParameter(str(error)) from None


def hours(text: str) -> float:
    """Return hours as seconds."""
    try:
        return float(text) * 3600.0
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a number of hours.") from None


def capacity(text: str) -> tuple[tuple[float, int], ...]:
    """Return the steps of `600=2,20m=8`: from these times on there are so many slots."""
    steps = []
    for step in text.split(","):
        at, _, slots = step.partition("=")
        try:
            steps.append((seconds_of(at), int(slots)))
        except (SpecError, ValueError):
            raise click.BadParameter(
                f"{text!r} cannot be read at {step!r}: write time=slots,time=slots, such as "
                "600=2,20m=8."
            ) from None
    return tuple(steps)


def bounds(text: str) -> tuple[float, float]:
    """Return the least and the greatest value of `0,1`."""
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        low = high = math.nan
    if not -math.inf < low < high < math.inf:
        raise click.BadParameter(
            f"{text!r} is no range: give the least and the greatest value: 0,1."
        )
    return low, high


def part(text: str) -> str:
    """Return a part as it is written; whoever builds it knows whether there is one."""
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
    """Return the parts of a list. What has `=` and no `:` is a parameter of the part before it.

    >>> split_parts("fifo,asha:eta=3,drain=false;median")
    ['fifo', 'asha:eta=3,drain=false', 'median']
    """
    parts: list[str] = []
    for group in text.split(";"):
        fresh = True
        for token in filter(None, map(str.strip, group.split(","))):
            if "=" in token and ":" not in token:
                if fresh:
                    raise SpecError(f"{token!r} is a parameter of no part: write name:{token}.")
                parts[-1] += f",{token}"
            else:
                parts.append(token)
            fresh = False
    if not parts:
        raise SpecError("the list is empty: give at least one name.")
    return parts


class Flag(NamedTuple):
    """An option of `simulate` and the field of Simulation that it sets."""

    name: str
    field: str
    # A function from text to value, or what else click takes for a type.
    type: object
    help: str


# In the order of the help. `compare` has all but those it has a list for.
FLAGS = (
    Flag("--policy", "policy", part, "Who judges the trials: a name, or name:key=value,…"),
    Flag("--generator", "generator", part, "Who proposes configs of a synthetic workload."),
    Flag("--allocator", "allocator", part, "Who divides the slots."),
    Flag("--curves", "curves", part, "The curve model that policies may ask for forecasts."),
    Flag("--slots", "slots", int, "Virtual devices."),
    Flag("--target", "target", float, "End when a trial reports this value."),
    Flag("--over", "over", int, "Ask for the target as the mean of so many reports."),
    Flag("--range", "range", bounds, "The least and greatest value the metric can have: 0,1."),
    Flag("--deadline", "deadline_s", duration, "End after this much simulated time."),
    Flag("--slot-hours", "slot_seconds", hours, "End when so many hours of slots are used."),
    Flag("--epochs", "epochs", int, "The last epoch of every trial; as recorded if not given."),
    Flag("--trials", "trials", int, "At most so many; all of a trace, else 100, if not given."),
    Flag("--seed", "seed", int, "Decides the order, failures and noise."),
    Flag("--order", "order", click.Choice(["shuffled", "file"]), "The order of a trace's runs."),
    Flag("--share", "share", bool, "Train what trials have in common only once."),
    Flag("--speedup", "speedup", str, "What width is worth: amdahl:0.95, table:1=1,2=1.87,…"),
    Flag("--pack", "pack", int, "Trials that may share a slot."),
    Flag("--interference", "interference", float, "Slow-down by each further trial on a slot."),
    Flag("--span", "span", int, "Slots that a trial may hold."),
    Flag("--needs", "needs", str, "Slots by a hyperparameter: batch:257=2,513=4."),
    Flag("--setup", "setup_s", duration, "Cost of a start; the trace's own if not given."),
    Flag("--save", "save_s", duration, "Cost of a save; 0 is the trace's own, if any."),
    Flag("--restore", "restore_s", duration, "Cost of loading one; 0 as above."),
    Flag("--node-slots", "node_slots", int, "Slots of one node; all alike if not given."),
    Flag("--fetch", "fetch_s", duration, "Cost of what another node has saved, with a restore."),
    Flag("--forecast", "forecast_s", duration, "Time that a forecast takes, beside training."),
    Flag("--save-every", "save_every_s", duration, "Save when the last save is so long ago."),
    Flag("--mean-life", "mean_life_s", duration, "Mean time until an attempt fails."),
    Flag("--retries", "retries", int, "Failures that a trial survives."),
    Flag("--capacity", "capacity", capacity, "Slots from certain times on: 600=2,20m=8."),
)

_COMPLETIONS: dict[str, Kind] = {
    "policy": "policy",
    "generator": "generator",
    "allocator": "allocator",
    "curves": "curve model",
}


def simulation_options(*, without: Sequence[str] = ()) -> Callable[[Command], Command]:
    """Add an option for each field of Simulation but these; one not given is None, or False."""
    defaults = {each.name: each.default for each in msgspec.structs.fields(Simulation)}

    def add(command: Command) -> Command:
        for flag in reversed(FLAGS):
            if flag.field in without:
                continue
            # Said here and not given to click: what the user did not write is left to the struct.
            default = defaults[flag.field]
            said = default is not None and default is not False and default != ()
            shown = f"{default:g}" if isinstance(default, float) else default
            text = f"{flag.help} [default: {shown}]" if said else flag.help
            kind = _COMPLETIONS.get(flag.field)
            # `is_flag=False` would make click take `-5` for an option rather than for a value.
            value: dict[str, Any] = {"is_flag": True} if flag.type is bool else {"type": flag.type}
            command = click.option(
                flag.name,
                flag.field,
                help=text,
                shell_complete=complete_part(kind) if kind else None,
                **value,
            )(command)
        return command

    return add


def simulation_with(options: dict[str, Any], source: str) -> Simulation:
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
    default=STORE.read,
    help=f"Where studies are kept. [default: ${STORE.name}, else {STORE.default}]",
)


def flattened(lists: Iterable[Sequence[Any]]) -> tuple[Any, ...]:
    """Return the items of all lists, each once, in order."""
    return tuple(dict.fromkeys(item for items in lists for item in items))
