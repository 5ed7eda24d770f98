"""`paceline submit`: a study file goes to a Ray cluster, and its driver with it.

Knows what the driver there is told, and how it runs the study: `python -m paceline.cli.submit
ADDRESS`, where the study's folder is, with the order on standard input. How it is kept running is
known elsewhere.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from paceline.cli.flags import STORE
from paceline.cli.run import load_study, resume_command, study_options
from paceline.core.errors import PacelineError, SpecError, StudyRunning
from paceline.engines.process.ray.config import Ray, ray_of
from paceline.store import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.api.study import Study
    from paceline.core.decisions import Step
    from paceline.machine.state import StudyState

# How long a driver may take to let its study go.
_LET_GO_S = 60.0


@click.command()
@click.argument("file", metavar="STUDY.PY", type=click.Path())
@study_options
@click.option("--address", help="Which Ray cluster. [default: the one this machine belongs to]")
@click.option("--store", metavar="URL", help="Where the study is kept, as the cluster sees it.")
@click.option("--name", help="What it is called. [default: the file's, else the file's name]")
def submit(
    file: str,
    address: str | None,
    store: str | None,
    name: str | None,
    **options: Any,  # noqa: ANN401 - what a study takes
) -> None:
    """Run a study file on a Ray cluster, by itself.

    The file's folder is sent to the cluster, and a driver there runs the study to its end; where
    the driver's node dies, it goes on on another. The store must be one that the cluster and this
    machine both see. From anywhere else that does, `paceline show` and `paceline stop` reach it.
    """
    from paceline.api.stored import refuse_known
    from paceline.engines.process.ray.detached_driver import carried

    loaded = load_study(file)
    url = store or loaded.options.get("store")
    if url is None:
        raise SpecError(
            "a study that is submitted needs a store that the cluster sees: give --store URL, a "
            "database or a file in a folder that all nodes share."
        )
    name = name or loaded.options.get("name") or Path(file).stem
    refuse_known(url, name, resume_command(url, name))
    given = {field: value for field, value in options.items() if value is not None}
    slots = given.pop("slots", None)
    cluster = _cluster(loaded, slots, address, str(Path(file).resolve().parent))
    told = {
        "file": Path(file).name,
        "given": {**given, "name": name, "store": url},
        "gpus": cluster.gpus,
        "cpus": cluster.cpus,
        "runtime_env": cluster.runtime_env,
    }
    carried(cluster, name, ["-m", "paceline.cli.submit"], json.dumps(told))
    where = "" if url == STORE.read() else f" --store {shown(url)}"
    click.echo(
        f"study {name!r} runs on the cluster: `paceline show {name}{where}` tells how it goes, "
        f"`paceline stop {name}{where}` ends it."
    )


def _cluster(study: Study, slots: str | None, address: str | None, folder: str) -> Ray:
    """Return the cluster that is meant, with the study's folder sent along."""
    given = f"ray:{slots}" if slots else study.options.get("slots")
    cluster = ray_of(given) or Ray()
    sent = {"working_dir": folder, **(cluster.runtime_env or {})}
    return replace(cluster, address=address or cluster.address, runtime_env=sent)


def drive(order: dict[str, Any], address: str) -> None:
    """Run a study that was submitted, here on the cluster: from its beginning, or its log's end."""
    from paceline.engines.process.ray.detached_driver import BEGUN

    env = {**order["runtime_env"], "working_dir": os.getcwd()}
    cluster = Ray(address=address, gpus=order["gpus"], cpus=order["cpus"], runtime_env=env)
    study = load_study(order["file"]).but(**order["given"], slots=cluster)
    said = False

    def watch(_: StudyState, steps: Sequence[Step]) -> None:
        nonlocal said
        if not said:
            said = True
            click.echo(f"{BEGUN} {study.spec.name}")

    until = time.monotonic() + _LET_GO_S
    while True:
        try:
            study.run(watch)
        except StudyRunning:
            # The driver that was here before: it is being ended, and this one goes on after it.
            if time.monotonic() > until:
                raise
            time.sleep(0.5)
        else:
            return


def _end_with_input() -> None:
    """End in order when whoever keeps this process running is gone."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        drive(order, sys.argv[1])
    except PacelineError as error:
        click.echo(str(error))
        sys.exit(2)
