"""`paceline submit`: send a study file to a Ray cluster, where a detached driver runs it.

Knows the driver's process on the cluster: `python -m paceline.cli.submit ADDRESS` in the study's
folder, with a JSON object on standard input. Does not know how that process is kept running.
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

from paceline.cli.flags import STORE, add_study_flags
from paceline.cli.output import echo
from paceline.cli.run import load_study, resume_command
from paceline.core.errors import PacelineError, SpecError, StudyRunning
from paceline.engines.process.ray.config import Ray, parse_ray
from paceline.store import hide_password

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.api.study import Study
    from paceline.core.decisions import Step
    from paceline.machine.state import StudyState

# The time that an earlier driver of the study has to exit.
_EXIT_S = 60.0


@click.command()
@click.argument("file", metavar="STUDY.PY", type=click.Path())
@add_study_flags
@click.option("--address", help="The address of the Ray cluster. [default: this machine's cluster]")
@click.option("--store", metavar="URL", help="The study's store, as the cluster reaches it.")
@click.option("--name", help="The study's name. [default: the file's, else the name of the file]")
def submit(
    file: str,
    address: str | None,
    store: str | None,
    name: str | None,
    **options: Any,  # noqa: ANN401 - STUDY_FLAGS
) -> None:
    """Run a study file on a Ray cluster, detached.

    Sends the file's folder to the cluster, where a driver runs the study to its end; if the
    driver's node fails, another node resumes it. The cluster and this machine must both reach the
    store. Use `paceline show` and `paceline stop` from any machine that reaches it.
    """
    from paceline.api.stored import refuse_existing
    from paceline.engines.process.ray.detached_driver import start_detached_driver

    loaded = load_study(file)
    url = store or loaded.resolved.store
    if url is None:
        raise SpecError(
            "a submitted study needs a store that the cluster reaches: give --store URL, a "
            "database "
            "or a file in a folder that all nodes share."
        )
    name = name or loaded.resolved.name or Path(file).stem
    refuse_existing(url, name, resume_command(url, name, file))
    given = {field: value for field, value in options.items() if value is not None}
    slots = given.pop("slots", None)
    cluster = _choose_cluster(loaded, slots, address, str(Path(file).resolve().parent))
    job = {
        "file": Path(file).name,
        "given": {**given, "name": name, "store": url},
        "gpus": cluster.gpus,
        "cpus": cluster.cpus,
        "runtime_env": cluster.runtime_env,
    }
    start_detached_driver(cluster, name, ["-m", "paceline.cli.submit"], json.dumps(job))
    where = "" if url == STORE.read() else f" --store {hide_password(url)}"
    echo(
        f"study {name!r} runs on the cluster: `paceline show {name}{where}` shows its state, "
        f"`paceline stop {name}{where}` ends it."
    )


def _choose_cluster(study: Study, slots: str | None, address: str | None, folder: str) -> Ray:
    """Return the cluster of these options, with the study's folder as its working directory."""
    given = f"ray:{slots}" if slots else study.resolved.slots
    cluster = parse_ray(given) or Ray()
    env = {"working_dir": folder, **(cluster.runtime_env or {})}
    return replace(cluster, address=address or cluster.address, runtime_env=env)


def drive(job: dict[str, Any], address: str) -> None:
    """Run a submitted study in this process on the cluster, or resume it."""
    from paceline.engines.process.ray.detached_driver import STARTED

    env = {**job["runtime_env"], "working_dir": os.getcwd()}
    cluster = Ray(address=address, gpus=job["gpus"], cpus=job["cpus"], runtime_env=env)
    study = load_study(job["file"]).but(**job["given"], slots=cluster)
    has_begun = False

    def watch(_: StudyState, steps: Sequence[Step]) -> None:
        nonlocal has_begun
        if not has_begun:
            has_begun = True
            echo(f"{STARTED} {study.spec.name}")

    until = time.monotonic() + _EXIT_S
    while True:
        try:
            study.run(watch)
        except StudyRunning:
            # An earlier driver of the study is exiting; resume after it.
            if time.monotonic() > until:
                raise
            time.sleep(0.5)
        else:
            return


def _exit_with_input() -> None:
    """Terminate this process in order when its standard input is closed."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_exit_with_input, daemon=True).start()
    try:
        drive(job, sys.argv[1])
    except PacelineError as error:
        echo(str(error))
        sys.exit(2)
