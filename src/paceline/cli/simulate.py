"""`paceline simulate`: simulate one study on virtual slots.

Knows where the log goes and when a study has failed. Does not know how a study is simulated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from paceline.api.stored import NewStudyLog
from paceline.cli.flags import (
    STORE,
    add_simulation_flags,
    json_option,
    make_simulation,
    source_argument,
)
from paceline.cli.output import echo_json
from paceline.cli.progress import ProgressBar
from paceline.core.errors import SpecError

if TYPE_CHECKING:
    from paceline.api.simulation import SimResult


@click.command()
@source_argument
@add_simulation_flags()
@click.option(
    "--store",
    metavar="URL",
    help="Write the log to this store. "
    f"[default: none; with --name, ${STORE.name} or {STORE.default}]",
)
@click.option("--name", help="Write the log under this name. [default: source and policy]")
@json_option
def simulate(
    source: str,
    store: str | None,
    name: str | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - fields of Simulation
) -> int:
    """Simulate one study on virtual slots.

    SOURCE is a trace file, a bundled trace (cifar10_cnn14, fashion_stages), or a synthetic
    workload: toy, toy:epochs=50, families:noise=0.02.

    The study ends at the target, at the deadline, or when the policy would train no trial any more.
    Write durations as 90, 90s, 10m, 1h30m or 2d. Without --store and --name no log is written.

    A trace of a study that stopped or paused trials is refused. With --complete their curves are
    continued by forecasts; the result is the median of ten completions.
    """
    simulation = make_simulation(options, source)
    if name == "":
        raise SpecError("--name is empty: give the study a name, or leave it out.")
    if simulation.draw is not None and not simulation.complete:
        raise SpecError("--draw chooses one of the completions of --complete: give both.")
    if not store and name is None:
        with ProgressBar("simulating") as bar:
            return finish(simulation.run(watch=bar.make_watcher()), as_json)
    log = NewStudyLog(store or STORE.read())
    try:
        with ProgressBar("simulating") as bar:
            result = simulation.run(name=name, remember=log.remember, watch=bar.make_watcher())
    finally:
        # After Ctrl-C too, so that the simulation can be resumed.
        log.close()
    return finish(result, as_json)


def finish(result: SimResult, as_json: bool) -> int:
    """Print the result; return exit code 1 if the study stalled or all trials failed, else 0."""
    if as_json:
        echo_json(result)
    else:
        from paceline.cli import tables

        tables.show(tables.render_simulation(result))
    failed = result.trials_started > 0 and result.trials_failed == result.trials_started
    return 1 if failed or result.end == "stalled" else 0
