"""Work beside the loop: forecasts, proposals, uploads, in threads that never hold up a report.

Knows queues of work, one of finished answers, and a pipe that wakes whoever waits for one. Does
not know what is computed.
"""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Work = Callable[[], object]


class Beside:
    """A thread for each kind of work, and their answers in the order they are ready.

    Kinds do not wait for each other: a sampler that thinks for long holds up no forecast. Work that
    is done elsewhere, and only waited for here, may have several threads.
    """

    def __init__(self, at_once: Mapping[str, int] | None = None) -> None:
        self._at_once = at_once or {}
        self._work: dict[str, SimpleQueue[Work | None]] = {}
        self._answers: SimpleQueue[object] = SimpleQueue()
        self._bell, self._ring = os.pipe()
        # Nobody rings after the close: the pipe's number may be another file's by then.
        self._lock = threading.Lock()
        self._closed = False

    def fileno(self) -> int:
        """Return what becomes readable when an answer is ready."""
        return self._bell

    def do(self, kind: str, work: Work) -> None:
        """Have this worked out, after all earlier work of its kind."""
        if kind not in self._work:
            queue: SimpleQueue[Work | None] = SimpleQueue()
            self._work[kind] = queue
            for _ in range(self._at_once.get(kind, 1)):
                # A daemon: whoever is still thinking when all is over holds up nobody.
                threading.Thread(
                    target=self._run, args=(queue,), name=f"paceline-{kind}", daemon=True
                ).start()
        self._work[kind].put(work)

    def answer(self) -> object:
        """Return the next answer; call it once for each time the pipe becomes readable."""
        os.read(self._bell, 1)
        return self._answers.get()

    def close(self) -> None:
        """Start nothing more; what runs is left to end by itself."""
        with self._lock:
            self._closed = True
            os.close(self._bell)
            os.close(self._ring)
        for kind, queue in self._work.items():
            for _ in range(self._at_once.get(kind, 1)):
                queue.put(None)

    def _run(self, queue: SimpleQueue[Work | None]) -> None:
        while (work := queue.get()) is not None and not self._closed:
            self._answers.put(work())
            with self._lock:
                if not self._closed:
                    os.write(self._ring, b"!")
