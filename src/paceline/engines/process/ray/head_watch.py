"""The head of a Ray cluster, seen from the driver: whether it still answers.

A call to a head that is gone waits. After a time of its own Ray ends the whole process with a line
about its internals, so the study has to end before that. Knows nothing about slots and nodes.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING

from paceline.core.errors import ClusterLost, PacelineWarning
from paceline.engines.process.ray.config import import_ray

if TYPE_CHECKING:
    from collections.abc import Callable

# How often the head is asked whether it is there.
_ASK_S = 1.0
# Ray's own limit and its default: it ends a process that has not reached the head for so long.
_RAY_LIMIT = "RAY_gcs_rpc_server_reconnect_timeout_s"
_RAY_LIMIT_S = 60.0
# The time that closing may take before Ray's limit.
_CLOSE_S = 25.0
# A driver that does not look for so long was stopped.
_PAUSE_S = 5.0
# The share of the limit after which a warning says what is going on.
_WARN_SHARE = 0.3


def find_head_limit() -> float:
    """Return how long a study goes on without its head, in seconds: less than Ray itself."""
    try:
        limit_s = float(os.environ.get(_RAY_LIMIT, _RAY_LIMIT_S))
    except ValueError:
        limit_s = _RAY_LIMIT_S
    return max(limit_s / 2, limit_s - _CLOSE_S)


class HeadWatch:
    """Asks the head in a thread, and measures how long an answer takes."""

    def __init__(self, address: str) -> None:
        self._ray = import_ray()
        self._address = address
        with suppress(Exception):  # a client of a distant cluster does not know it
            self._address = self._ray.get_runtime_context().gcs_address
        self._limit_s = find_head_limit()
        # When the question was asked that has no answer yet, and when the driver looked last.
        self._asked_at: float | None = None
        self._checked_at = time.monotonic()
        self._has_warned = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="paceline-head", daemon=True)
        self._thread.start()

    @property
    def silent_s(self) -> float:
        """For how long the head has not answered."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    @property
    def is_silent(self) -> bool:
        """Whether the head has not answered for so long that no call should wait for it."""
        return self.silent_s > self._limit_s * _WARN_SHARE

    def check(self) -> None:
        """Warn of a head that does not answer. Raises ClusterLost if that lasts too long."""
        self._skip_pause()
        if not self.is_silent:
            self._has_warned = False
            return
        silent_s = self.silent_s
        where = f"the head of the Ray cluster at {self._address}"
        found = f"{where} has not answered for {silent_s:.0f} s"
        if silent_s > self._limit_s:
            raise ClusterLost(found)
        if not self._has_warned:
            self._has_warned = True
            left_s = self._limit_s - silent_s
            warnings.warn(
                f"{found}: running trials train on, and the study ends in {left_s:.0f} s if it "
                "still does not answer.",
                PacelineWarning,
                stacklevel=2,
            )

    def _skip_pause(self) -> None:
        """Do not count a pause of the driver itself as silence: the answer is not read yet."""
        now = time.monotonic()
        pause_s, self._checked_at = now - self._checked_at, now
        asked_at = self._asked_at
        if pause_s > _PAUSE_S and asked_at is not None:
            self._asked_at = asked_at + pause_s

    def close(self) -> None:
        """Ask no more."""
        self._closing.set()
        self._thread.join(0.0 if self.is_silent else _ASK_S)

    def _ask(self) -> None:
        while not self._closing.wait(_ASK_S):
            if self._asked_at is None:
                self._asked_at = time.monotonic()
            try:
                self._ray.nodes()
            except Exception:  # whatever it is, it is not an answer
                continue
            self._asked_at = None


def call_bounded(function: Callable[[], object], limit_s: float) -> None:
    """Call a function that needs the head; do not wait for it longer than the limit."""

    def call() -> None:
        with suppress(Exception):  # the cluster is gone, and all it held
            function()

    thread = threading.Thread(target=call, name="paceline-head-call", daemon=True)
    thread.start()
    thread.join(limit_s)
