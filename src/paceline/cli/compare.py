"""`paceline compare`: the what-if table.

Knows which lists make the table's rows. Does not know how anything is simulated or summed up.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from paceline.api.comparison import Comparison, race
from paceline.api.comparison import compare as run_all
from paceline.cli.flags import (
    complete_part,
    flattened,
    json_option,
    numbers,
    parts,
    simulation_options,
    simulation_with,
    sources_argument,
)
from paceline.cli.progress import Bar
from paceline.core.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.analysis.profiles import Raced

DEFAULTS = {each.name: each.default for each in msgspec.structs.fields(Comparison)}


def target(text: str) -> float | Literal["trace", "none"]:
    """Return a target: a number, the trace's own, or none."""
    if text in ("trace", "none"):
        return text  # type: ignore[return-value]
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no target: give a number, 'trace' for each trace's own, or 'none'."
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
    help="Who judges the trials: fifo,asha:eta=3,drain=false are two. May be repeated.",
    shell_complete=complete_part("policy", several=True),
)
@click.option(
    "--allocators",
    "--allocator",
    "allocators",
    type=parts,
    multiple=True,
    help=f"Who divides the slots. [default: {DEFAULTS['allocators'][0]}]",
    shell_complete=complete_part("allocator", several=True),
)
@click.option(
    "--curves",
    type=parts,
    multiple=True,
    help="Curve models that policies may ask for forecasts: last,oracle. "
    f"[default: {DEFAULTS['curves'][0]}]",
    shell_complete=complete_part("curve model", several=True),
)
@click.option(
    "--slots",
    type=numbers,
    multiple=True,
    help=f"Virtual devices: 4,8. [default: {DEFAULTS['slots'][0]}]",
)
@click.option(
    "--seeds", type=int, help=f"Orders to try, the same for all. [default: {DEFAULTS['seeds']}]"
)
@click.option(
    "--target", type=target, help="A value, 'trace' or 'none'. [default: each trace's own]"
)
@simulation_options(without=("policy", "allocator", "curves", "slots", "seed", "target"))
@click.option("--plot", type=click.Path(dir_okay=False), metavar="FILE", help="Draw it as HTML.")
@json_option
def compare(
    sources: tuple[str, ...],
    seeds: int | None,
    target: float | Literal["trace", "none"] | None,
    plot: str | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - lists, and fields of Simulation
) -> None:
    """Compare policies: how soon, with how many slots.

    Simulates every combination of SOURCE, policy, allocator, curve model and slots with every
    seed, on all cores. The same seed is the same order of configs for every policy.

    A run that never reaches the target counts with the time at which it ended. Nothing is written
    but what --plot asks for: times to target, best value and slots over time, training times.
    """
    lists = {name: options.pop(name) for name in ("policies", "allocators", "curves", "slots")}
    # What was not given is left to the struct.
    given: dict[str, Any] = {name: flattened(found) for name, found in lists.items() if found}
    if seeds is not None:
        given["seeds"] = seeds
    if target is not None:
        given["target"] = None if target == "none" else target
    if plot is not None and not Path(plot).parent.is_dir():
        # Said before the work is done, not after.
        raise SpecError(f"{plot} cannot be written: there is no folder {Path(plot).parent}.")
    comparison = Comparison(
        sources=tuple(dict.fromkeys(sources)), base=simulation_with(options, ""), **given
    )
    with Bar("comparing") as bar:

        def watch(done: int, all_: int) -> None:
            bar.show(done / all_, f"{done} of {all_} runs")

        if plot is None:
            result = run_all(comparison, watch=watch)
        else:
            result, raced = race(comparison, watch=watch)
    if plot is not None:
        _draw(raced, plot)
    if as_json:
        click.echo(msgspec.json.encode(result))
        return
    from paceline.cli import tables

    tables.show(*tables.compared(result.rows))
    if plot is not None:
        click.echo(plot)


def _draw(raced: Sequence[Raced], path: str) -> None:
    from paceline.plots.comparison_figures import (
        compared_page,  # plotly takes longer than most commands
    )

    try:
        Path(path).write_text(compared_page(raced), encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror or error}.") from None
