"""Run a function on many tasks at once, on all cores.

Knows worker processes: they ignore Ctrl-C and exit with the process that started them. Does not
know what a task is.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    # Called after each task with the number of tasks done and the number of all.
    Watch = Callable[[int, int], None]

Task = TypeVar("Task")
Answer = TypeVar("Answer")


def run_parallel(
    work: Callable[[Task], Answer],
    tasks: Sequence[Task],
    *,
    jobs: int | None = None,
    watch: Watch | None = None,
) -> list[Answer]:
    """Return `work(task)` for each task, in order. Other processes must be able to import `work`.

    The first error, or Ctrl-C, ends all processes at once.
    """
    workers = min(jobs or _count_cores(), len(tasks))
    if workers > 1:
        return _run_in_pool(work, tasks, workers, watch)
    answers = []
    for task in tasks:
        answers.append(work(task))
        if watch is not None:
            watch(len(answers), len(tasks))
    return answers


def _run_in_pool(
    work: Callable[[Task], Answer], tasks: Sequence[Task], workers: int, watch: Watch | None
) -> list[Answer]:
    before = set(multiprocessing.active_children())
    # Spawned, not forked: the thread of a progress bar may hold a lock at the moment of a fork.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_exit_with_parent)
    # Processes inherit this mask and ignore Ctrl-C: this process ends them. A Ctrl-C that comes
    # meanwhile is delivered here afterwards.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        try:
            pending = [pool.submit(work, task) for task in tasks]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for done, future in enumerate(as_completed(pending), 1):
            future.result()
            if watch is not None:
                watch(done, len(tasks))
        return [future.result() for future in pending]
    except BaseException:
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _exit_with_parent() -> None:
    """Exit when the process that started this one is gone."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
