"""`paceline report`: a study as one HTML page.

Knows where the page goes, and how a simulation is written as a command line. Does not know what is
on the page.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import click
import msgspec

from paceline.api.simulation import Simulation, simulation_of
from paceline.api.stored import opened
from paceline.cli.flags import FLAGS, bounds, hours, store_option, study_argument
from paceline.cli.progress import Bar
from paceline.core.errors import PacelineError
from paceline.store import shown

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
    help="Where to write it; a file that is there is replaced. [default: STUDY.html]",
)
@store_option
def report(study: str, out: str | None, store: str) -> None:
    """Write a study as one HTML page, with figures.

    The page needs a browser and no network. A study that still runs is shown as far as it got.
    """
    with opened(store) as kept, Bar(f"reading {study}") as bar:
        steps = list(bar.counted(kept.read(study)))
    from paceline.plots.report.page import write_report  # plotly takes longer than most commands

    path = out or file_name(study)
    write_report(steps, path, store=shown(store), again=simulate_command(steps))
    click.echo(path)


def file_name(study: str) -> str:
    """Return the name of a study's page, in this folder whatever the study is called.

    >>> file_name("digits"), file_name("../a b"), file_name("..")
    ('digits.html', 'a-b.html', 'study.html')
    """
    plain = re.sub(r"[^\w.-]+", "-", study).strip(".-")
    return f"{plain or 'study'}.html"


def simulate_command(steps: Sequence[Step]) -> str | None:
    """Return the command that simulates a study again; None where it was not simulated."""
    try:
        simulation = simulation_of(steps)
    except PacelineError:
        return None  # a real one, or written by another version: what it meant is not ours to guess
    words = ["paceline", "simulate", simulation.source]
    defaults = {field.name: field.default for field in msgspec.structs.fields(Simulation)}
    for flag in FLAGS:
        value = getattr(simulation, flag.field)
        if value != defaults[flag.field]:
            words += _option(flag, value)
    return shlex.join(words)


def _option(flag: Flag, value: object) -> list[str]:
    if value is True:
        return [flag.name]
    if flag.type is hours and isinstance(value, float | int):
        return [flag.name, repr(value / 3600)]
    if flag.type is bounds and isinstance(value, tuple):
        return [flag.name, ",".join(map(repr, value))]
    if isinstance(value, tuple):
        return [flag.name, ",".join(f"{at!r}={slots}" for at, slots in value)]
    return [flag.name, str(value)]
