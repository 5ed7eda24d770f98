"""Background jobs: forecasts, proposals, uploads, in threads that never delay a report.

Knows a queue of jobs for each kind and one queue of results. Does not know what is computed.
"""

from __future__ import annotations

import atexit
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from paceline.worker.wakeup_pipe import WakeupPipe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Job = Callable[[], object]


class BackgroundJobs:
    """A thread for each kind of job, and the results in the order they are ready.

    Kinds do not wait for each other: a slow sampler delays no forecast. Jobs that
    only wait for another machine may have several threads. With none, a job runs at once, in the
    thread that submits it.
    """

    def __init__(self, threads: Mapping[str, int] | None = None) -> None:
        self._threads = threads or {}
        self._jobs: dict[str, SimpleQueue[Job | None]] = {}
        self._results: SimpleQueue[object] = SimpleQueue()
        self._wakeup = WakeupPipe()
        self._closed = False

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a result is ready."""
        return self._wakeup.fileno()

    def submit(self, kind: str, job: Job) -> None:
        """Run a job after all earlier jobs of its kind."""
        if not self._threads.get(kind, 1):
            self._results.put(job())
            self._wakeup.wake()
            return
        if kind not in self._jobs:
            queue: SimpleQueue[Job | None] = SimpleQueue()
            self._jobs[kind] = queue
            for _ in range(self._threads.get(kind, 1)):
                # A daemon: a job that still runs when the study is over delays no exit.
                threading.Thread(
                    target=self._run, args=(queue,), name=f"paceline-{kind}", daemon=True
                ).start()
        self._jobs[kind].put(job)

    def results(self) -> list[object]:
        """Return the results that are ready, without waiting."""
        if self._closed:
            return []
        self._wakeup.clear()
        results = []
        while True:
            try:
                results.append(self._results.get_nowait())
            except Empty:
                return results

    def close(self) -> None:
        """Start no further job; running ones end by themselves."""
        self._closed = True
        self._wakeup.close()
        for kind, queue in self._jobs.items():
            for _ in range(self._threads.get(kind, 1)):
                queue.put(None)

    def _run(self, queue: SimpleQueue[Job | None]) -> None:
        while (job := queue.get()) is not None and not self._closed:
            with _Running():
                self._results.put(job())
            self._wakeup.wake()


class _Running:
    """A job that runs: the exit of the program waits for it, but not for long.

    Python ends a daemon thread where it is; in C++ code that aborts the whole program.
    """

    jobs = 0
    changed = threading.Condition()

    def __enter__(self) -> None:
        with self.changed:
            _Running.jobs += 1

    def __exit__(self, *_: object) -> None:
        with self.changed:
            _Running.jobs -= 1
            self.changed.notify_all()


# How long the exit of the program waits for running jobs.
_EXIT_S = 2.0


@atexit.register
def _await_jobs() -> None:
    with _Running.changed:
        _Running.changed.wait_for(lambda: not _Running.jobs, _EXIT_S)
