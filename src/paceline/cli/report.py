"""`paceline report`: write a study as one HTML page.

Knows the page's file name, and the command line of a simulation. Does not know what is on the page.
"""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click
import msgspec

from paceline.analysis.summary import find_best
from paceline.api.simulation import Simulation, read_simulation
from paceline.api.stored import fold_log, locate_best, open_existing, read_log
from paceline.cli.flags import SIMULATION_FLAGS, bounds, hours, store_option, study_argument
from paceline.cli.output import echo
from paceline.cli.progress import ProgressBar
from paceline.core.errors import PacelineError
from paceline.core.events import Opened
from paceline.store import hide_password

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.cli.flags import Flag
    from paceline.core.decisions import Step


@click.command()
@study_argument
@click.option(
    "--out",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="The file to write or replace. [default: STUDY.html]",
)
@store_option
def report(study: str, out: str | None, store: str) -> None:
    """Write a report: one HTML page with figures.

    The page works offline. A report of a running study shows its state so far.
    """
    require_plotly()
    with open_existing(store) as stored, ProgressBar(f"reading {study}") as bar:
        steps = list(bar.track(read_log(stored, study)))
    # Imported here: plotly takes longer to import than most commands run.
    from paceline.plots.report.page import write_report

    path, again = out or report_file_name(study), simulate_command(steps)
    write_report(
        steps, path, store=hide_password(store), again=again, saved=_find_best_file(steps, store)
    )
    echo(path)


def _find_best_file(steps: Sequence[Step], store: str) -> str | None:
    """Return the path of the best checkpoint; None if there is none, or not on this machine."""
    best, opened = find_best(fold_log(steps)), steps[0].event
    if best is None or not isinstance(opened, Opened):
        return None
    try:
        saved = locate_best(best, opened, store).checkpoint
    except PacelineError:
        return None  # the place that the log names may not be read
    return None if saved is None else saved.path


def require_plotly() -> None:
    """Raise an error if plotly is not installed, before work is done that ends in a figure."""
    import paceline.plots  # noqa: F401


def has_plotly() -> bool:
    """Say whether plotly, which is optional, is installed."""
    return find_spec("plotly") is not None


def report_file_name(study: str) -> str:
    """Return the file name of a study's report: always a file of the current folder.

    >>> report_file_name("digits"), report_file_name("../a b"), report_file_name("..")
    ('digits.html', 'a-b.html', 'study.html')
    """
    plain = re.sub(r"[^\w.-]+", "-", study).strip(".-")
    return f"{plain or 'study'}.html"


def simulate_command(steps: Sequence[Step]) -> str | None:
    """Return the command that simulates a study again; None if it was not simulated."""
    try:
        simulation = read_simulation(steps)
    except PacelineError:
        return None  # it trains, or another version of Paceline wrote the log
    words = ["paceline", "simulate", simulation.source]
    defaults = {field.name: field.default for field in msgspec.structs.fields(Simulation)}
    for flag in SIMULATION_FLAGS:
        value = getattr(simulation, flag.field)
        if value != defaults[flag.field]:
            words += _format_flag(flag, value)
    return shlex.join(words)


def _format_flag(flag: Flag, value: object) -> list[str]:
    if value is True:
        return [flag.name]
    if flag.type is hours and isinstance(value, float | int):
        return [flag.name, repr(value / 3600)]
    if flag.type is bounds and isinstance(value, tuple):
        return [flag.name, ",".join(map(repr, value))]
    if isinstance(value, tuple):
        return [flag.name, ",".join(f"{at!r}={slots}" for at, slots in value)]
    return [flag.name, str(value)]
