"""`paceline compare`: the what-if table.

Knows which lists make the table's rows. Does not know how anything is simulated or summed up.
"""

from __future__ import annotations

from typing import Any, Literal

import click
import msgspec

from paceline.api.comparison import Comparison
from paceline.api.comparison import compare as run_all
from paceline.cli.completing import complete_part
from paceline.cli.options import (
    flattened,
    json_option,
    numbers,
    parts,
    simulation_options,
    simulation_with,
    sources_argument,
)
from paceline.cli.progress import Bar

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
@json_option
def compare(
    sources: tuple[str, ...],
    seeds: int | None,
    target: float | Literal["trace", "none"] | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - lists, and fields of Simulation
) -> None:
    """Compare policies: how soon, with how many slots.

    Simulates every combination of SOURCE, policy, allocator, curve model and slots with every
    seed, on all cores. The same seed is the same order of configs for every policy.

    A run that never reaches the target counts with the time at which it ended. Nothing is written.
    """
    lists = {name: options.pop(name) for name in ("policies", "allocators", "curves", "slots")}
    # What was not given is left to the struct.
    given: dict[str, Any] = {name: flattened(found) for name, found in lists.items() if found}
    if seeds is not None:
        given["seeds"] = seeds
    if target is not None:
        given["target"] = None if target == "none" else target
    comparison = Comparison(
        sources=tuple(dict.fromkeys(sources)), base=simulation_with(options, ""), **given
    )
    with Bar("comparing") as bar:
        result = run_all(
            comparison, watch=lambda done, all_: bar.show(done / all_, f"{done} of {all_} runs")
        )
    if as_json:
        click.echo(msgspec.json.encode(result))
    else:
        from paceline.cli import views

        views.show(*views.compared(result.rows))
