"""A driver on the cluster: it goes on when whoever started it is gone.

Knows a detached actor that keeps a driver's process running, on another node where its own dies,
and ends with it. What that process drives it does not know.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from paceline.core.errors import SpecError
from paceline.engines.process.ray.config import connected, imported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.engines.process.ray.config import Ray

# Where carriers are found by their studies' names.
_NAMESPACE = "paceline"
_TAIL_LINES = 20
# How long a driver may take to begin its study.
_BEGIN_S = 120.0
# How long an answer may be on its way.
_HEARD_S = 2.0


class Carrier:
    """Keeps a driver's process running, which is given the cluster's address; made an actor."""

    def __init__(self, command: Sequence[str], order: str) -> None:
        address = imported().get_runtime_context().gcs_address
        self._begun = threading.Event()
        self._asked = threading.Event()
        self._said: deque[str] = deque(maxlen=_TAIL_LINES)
        # It ends where its standard input does: with this actor, however that goes.
        self._process = subprocess.Popen(
            [sys.executable, *command, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        # Not on its command line, which everybody on the node can read: it may hold a password.
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()
        threading.Thread(target=self._listen, daemon=True).start()

    def begun(self, patience: float) -> str:
        """Wait for the driver's first word; return what it said where it ended without one."""
        try:
            if not self._begun.wait(patience):
                return f"the driver has not begun after {patience:g} s"
            return "" if self._process.poll() in (None, 0) else "\n".join(self._said)
        finally:
            self._asked.set()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(line.rstrip())
            if line.startswith(BEGUN):
                self._begun.set()
        self._process.wait()
        self._begun.set()
        ray = imported()
        here = ray.get_runtime_context()
        if not here.was_current_actor_reconstructed:
            # Whoever waits for the first word hears it, or that none came.
            self._asked.wait(_BEGIN_S)
            time.sleep(_HEARD_S)
        ray.kill(here.current_actor)


# The first word of a driver that has its study.
BEGUN = "begun:"


def carried(cluster: Ray, study: str, command: Sequence[str], order: str) -> None:
    """Have a driver run on the cluster by this command, from now on without us.

    The order is one line, its first of standard input.
    """
    ours = connected(cluster, namespace=_NAMESPACE)
    ray = imported()
    try:
        _hand_over(ray, study, command, order)
    finally:
        if ours:
            ray.shutdown()


def _hand_over(ray: Any, study: str, command: Sequence[str], order: str) -> None:  # noqa: ANN401
    made = ray.remote(Carrier).options(
        name=f"study {study}",
        namespace=_NAMESPACE,
        lifetime="detached",
        num_cpus=0,
        max_concurrency=2,
        max_restarts=-1,
    )
    try:
        carrier = made.remote(list(command), order)
    except ValueError:
        raise SpecError(
            f"study {study!r} has a driver on this cluster: stop it, or choose another name."
        ) from None
    wrong = ray.get(carrier.begun.remote(_BEGIN_S))
    if wrong:
        ray.kill(carrier)
        raise SpecError(f"study {study!r} could not begin on the cluster: {wrong}")
