"""A driver that runs on the cluster, in a detached actor, without the process that submitted it.

Knows an actor that runs the driver's process, is restarted on another node when its own is lost,
and ends with the driver. Does not know what the driver does.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from paceline.core.errors import SpecError
from paceline.engines.process.ray.config import connect_ray, import_ray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.engines.process.ray.config import Ray

# The driver prints a line with this prefix when its study has started.
STARTED = "started:"
# The namespace of the actors; their names are those of their studies.
_NAMESPACE = "paceline"
_TAIL_LINES = 20
# How long a driver may take to start its study.
_START_S = 120.0
# How long an answer to the submitting process may take to arrive.
_ANSWER_S = 2.0


class DetachedDriver:
    """Runs a driver's process, whose last argument is the cluster's address; made an actor."""

    def __init__(self, command: Sequence[str], order: str) -> None:
        address = import_ray().get_runtime_context().gcs_address
        self._started = threading.Event()
        self._answered = threading.Event()
        self._output: deque[str] = deque(maxlen=_TAIL_LINES)
        # The driver ends when its standard input closes, which the end of this actor does.
        self._process = subprocess.Popen(
            [sys.executable, *command, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        # Not an argument: other users of the node can read those, and it may contain a password.
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()
        threading.Thread(target=self._read_output, daemon=True).start()

    def wait_for_start(self, timeout_s: float) -> str:
        """Wait until the study has started; return the driver's output if it failed."""
        try:
            if not self._started.wait(timeout_s):
                return f"the driver has not started it after {timeout_s:g} s"
            return "" if self._process.poll() in (None, 0) else "\n".join(self._output)
        finally:
            self._answered.set()

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._output.append(line.rstrip())
            if line.startswith(STARTED):
                self._started.set()
        self._process.wait()
        self._started.set()
        ray = import_ray()
        context = ray.get_runtime_context()
        if not context.was_current_actor_reconstructed:
            # Answer the submitting process before the actor ends.
            self._answered.wait(_START_S)
            time.sleep(_ANSWER_S)
        ray.kill(context.current_actor)


def start_detached_driver(cluster: Ray, study: str, command: Sequence[str], order: str) -> None:
    """Start a driver on the cluster by this command, and return when its study has started.

    The order is the first line of the driver's standard input.
    """
    is_connection_ours = connect_ray(cluster, namespace=_NAMESPACE)
    ray = import_ray()
    try:
        _start_actor(ray, study, command, order)
    finally:
        if is_connection_ours:
            ray.shutdown()


def _start_actor(ray: Any, study: str, command: Sequence[str], order: str) -> None:  # noqa: ANN401
    actor = ray.remote(DetachedDriver).options(
        name=f"study {study}",
        namespace=_NAMESPACE,
        lifetime="detached",
        num_cpus=0,
        max_concurrency=2,
        max_restarts=-1,
    )
    try:
        driver = actor.remote(list(command), order)
    except ValueError:
        raise SpecError(
            f"study {study!r} has a driver on this cluster: stop it, or choose another name."
        ) from None
    problem = ray.get(driver.wait_for_start.remote(_START_S))
    if problem:
        ray.kill(driver)
        raise SpecError(f"study {study!r} could not start on the cluster: {problem}")
