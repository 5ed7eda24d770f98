"""Work beside the loop: forecasts and proposals, in a thread that never holds up a report.

Knows a queue of finished answers and a pipe that wakes whoever waits for one. Does not know what is
computed.
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.events import Forecasted, Proposed


class Beside:
    """One thread, made when it is first needed, and its answers in the order they are ready."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._answers: SimpleQueue[Forecasted | Proposed] = SimpleQueue()
        self._bell, self._ring = os.pipe()

    def fileno(self) -> int:
        """Return what becomes readable when an answer is ready."""
        return self._bell

    def do(self, work: Callable[[], Forecasted | Proposed]) -> None:
        """Have this worked out."""

        def worked() -> None:
            self._answers.put(work())
            with contextlib.suppress(OSError):
                os.write(self._ring, b"!")

        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="paceline-advice")
        self._pool.submit(worked)

    def answer(self) -> Forecasted | Proposed:
        """Return the next answer; call it once for each time the pipe becomes readable."""
        os.read(self._bell, 1)
        return self._answers.get()

    def close(self) -> None:
        """Start nothing more; what runs is left to end by itself."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        os.close(self._bell)
        os.close(self._ring)
