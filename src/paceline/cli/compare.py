"""`paceline compare`: a table of simulated policies, allocators and numbers of slots.

Knows which lists make the rows of the table. Does not know how a row is simulated or summed up.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from paceline.api.comparison import Comparison, race
from paceline.api.comparison import compare as run_all
from paceline.cli.flags import (
    add_simulation_flags,
    complete_part,
    json_option,
    make_simulation,
    merge_lists,
    numbers,
    parts,
    sources_argument,
)
from paceline.cli.output import echo, echo_json
from paceline.cli.progress import ProgressBar
from paceline.cli.report import require_plotly
from paceline.core.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.analysis.profiles import PolicyRuns

DEFAULTS = {each.name: each.default for each in msgspec.structs.fields(Comparison)}


def target(text: str) -> float | Literal["trace", "none"]:
    """Return a target: a number, 'trace' or 'none'."""
    if text in ("trace", "none"):
        return text  # type: ignore[return-value]
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a target: give a number, 'trace' for each trace's own, or 'none'."
        ) from None


@click.command()
@sources_argument
@click.option(
    "--policies",
    "--policy",
    "policies",
    type=parts,
    multiple=True,
    required=True,
    help="Policies: fifo,asha:eta=3,drain=false are two. May be repeated.",
    shell_complete=complete_part("policy", several=True),
)
@click.option(
    "--allocators",
    "--allocator",
    "allocators",
    type=parts,
    multiple=True,
    help=f"Allocators. [default: {DEFAULTS['allocators'][0]}]",
    shell_complete=complete_part("allocator", several=True),
)
@click.option(
    "--curves",
    type=parts,
    multiple=True,
    help="Curve models, which forecast for the policies: last,oracle. "
    f"[default: {DEFAULTS['curves'][0]}]",
    shell_complete=complete_part("curve model", several=True),
)
@click.option(
    "--slots",
    type=numbers,
    multiple=True,
    help=f"Numbers of virtual slots: 4,8. [default: {DEFAULTS['slots'][0]}]",
)
@click.option(
    "--seeds", type=int, help=f"Seeds to run, the same for all rows. [default: {DEFAULTS['seeds']}]"
)
@click.option(
    "--target", type=target, help="A value, 'trace' or 'none'. [default: each trace's own]"
)
@add_simulation_flags(without=("policy", "allocator", "curves", "slots", "seed", "target"))
@click.option(
    "--plot",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write figures to this HTML file.",
)
@json_option
def compare(
    sources: tuple[str, ...],
    seeds: int | None,
    target: float | Literal["trace", "none"] | None,
    plot: str | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - the lists, and fields of Simulation
) -> None:
    """Compare policies, allocators and numbers of slots.

    Simulates every combination of SOURCE, policy, allocator, curve model and slots with every
    seed, on all cores. A seed gives every policy the same order of configs.

    A run that does not reach the target counts with the time at which it ended. --plot draws times
    to target, best value and slots over time, and training times; without it no file is written.
    """
    lists = {name: options.pop(name) for name in ("policies", "allocators", "curves", "slots")}
    # The defaults of the others are in Comparison.
    given: dict[str, Any] = {name: merge_lists(found) for name, found in lists.items() if found}
    if seeds is not None:
        given["seeds"] = seeds
    if target is not None:
        given["target"] = None if target == "none" else target
    if plot is not None and not Path(plot).parent.is_dir():
        # Checked before the work, not after.
        raise SpecError(f"{plot} cannot be written: there is no folder {Path(plot).parent}.")
    if plot is not None:
        require_plotly()
    comparison = Comparison(
        sources=tuple(dict.fromkeys(sources)), base=make_simulation(options, ""), **given
    )
    with ProgressBar("comparing") as bar:

        def watch(done: int, total: int) -> None:
            bar.update(done / total, f"{done} of {total} runs")

        if plot is None:
            result = run_all(comparison, watch=watch)
        else:
            result, runs = race(comparison, watch=watch)
    if plot is not None:
        _draw(runs, plot)
    if as_json:
        echo_json(result)
        return
    from paceline.cli import tables

    tables.show(*tables.render_comparison(result.rows))
    if plot is not None:
        echo(plot)


def _draw(runs: Sequence[PolicyRuns], path: str) -> None:
    # Imported here: plotly takes longer to import than most commands run.
    from paceline.plots.comparison_figures import render_comparison

    try:
        Path(path).write_text(render_comparison(runs), encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror or error}.") from None
