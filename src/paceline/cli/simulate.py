"""`paceline simulate`: one study on virtual slots.

Knows where the log goes and when a study has failed. Does not know how anything is simulated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from paceline.api.stored import NewStudy
from paceline.cli.flags import (
    STORE,
    json_option,
    simulation_options,
    simulation_with,
    source_argument,
)
from paceline.cli.progress import Bar
from paceline.core.errors import SpecError

if TYPE_CHECKING:
    from paceline.api.simulation import SimResult


@click.command()
@source_argument
@simulation_options()
@click.option(
    "--store",
    metavar="URL",
    help=f"Keep the log there. [default: nowhere; with --name, ${STORE.name} or {STORE.default}]",
)
@click.option("--name", help="Keep the log under this name. [default: made of source and policy]")
@json_option
def simulate(
    source: str,
    store: str | None,
    name: str | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - the fields of Simulation, whatever they are
) -> int:
    """Simulate one study on virtual slots.

    SOURCE is a trace file, one that comes with the package (cifar10_cnn14, fashion_stages), or a
    synthetic workload: toy, toy:epochs=50, families:noise=0.02.

    The study ends at the target, at the deadline, or when every trial has ended. Durations are
    written 90, 90s, 10m, 1h30m or 2d. Nothing is written unless --store or --name is given.
    """
    simulation = simulation_with(options, source)
    if name == "":
        raise SpecError("--name is empty: give the study a name, or leave it out.")
    if not store and name is None:
        with Bar("simulating") as bar:
            return finish(simulation.run(watch=bar.watch()), as_json)
    keeper = NewStudy(store or STORE.read())
    try:
        with Bar("simulating") as bar:
            result = simulation.run(name=name, remember=keeper.remember, watch=bar.watch())
    finally:
        # After an interrupt too: what was simulated so far can be resumed.
        keeper.close()
    return finish(result, as_json)


def finish(result: SimResult, as_json: bool) -> int:
    """Show the result; the exit code says whether anything came of the study."""
    if as_json:
        click.echo(msgspec.json.encode(result))
    else:
        from paceline.cli import tables

        tables.show(tables.simulated(result))
    failed = result.trials_started > 0 and result.trials_failed == result.trials_started
    return 1 if failed or result.end == "stalled" else 0
