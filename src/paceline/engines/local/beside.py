"""Work beside the loop: forecasts and proposals, in a thread that never holds up a report.

Knows a queue of work, one of finished answers, and a pipe that wakes whoever waits for one. Does
not know what is computed.
"""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.events import Forecasted, Proposed

    Work = Callable[[], Forecasted | Proposed]


class Beside:
    """One thread, made when it is first needed, and its answers in the order they are ready."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._answers: SimpleQueue[Forecasted | Proposed] = SimpleQueue()
        self._bell, self._ring = os.pipe()
        # Nobody rings after the close: the pipe's number may be another file's by then.
        self._lock = threading.Lock()
        self._closed = False

    def fileno(self) -> int:
        """Return what becomes readable when an answer is ready."""
        return self._bell

    def do(self, work: Work) -> None:
        """Have this worked out."""
        self._work.put(work)
        if self._thread is None:
            # A daemon: whoever is still thinking when all is over holds up nobody.
            self._thread = threading.Thread(target=self._run, name="paceline-advice", daemon=True)
            self._thread.start()

    def answer(self) -> Forecasted | Proposed:
        """Return the next answer; call it once for each time the pipe becomes readable."""
        os.read(self._bell, 1)
        return self._answers.get()

    def close(self) -> None:
        """Start nothing more; what runs is left to end by itself."""
        with self._lock:
            self._closed = True
            os.close(self._bell)
            os.close(self._ring)
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None and not self._closed:
            self._answers.put(work())
            with self._lock:
                if not self._closed:
                    os.write(self._ring, b"!")
