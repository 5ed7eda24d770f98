"""Many tasks at once: on all cores, in the order they were given, ended with whoever asked.

Knows processes, keyboard interrupts and who waits for whom. Does not know what a task does.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    # Told after each task, and now and then: how many are done, of how many.
    Watch = Callable[[int, int], None]

Task = TypeVar("Task")
Answer = TypeVar("Answer")


def on_all_cores(
    work: Callable[[Task], Answer],
    tasks: Sequence[Task],
    *,
    jobs: int | None = None,
    watch: Watch | None = None,
) -> list[Answer]:
    """Return the answer to every task. `work` is a function that another process can import."""
    workers = min(jobs or _cores(), len(tasks))
    if workers > 1:
        return _together(work, tasks, workers, watch)
    answers = []
    for task in tasks:
        answers.append(work(task))
        if watch is not None:
            watch(len(answers), len(tasks))
    return answers


def _together(
    work: Callable[[Task], Answer], tasks: Sequence[Task], workers: int, watch: Watch | None
) -> list[Answer]:
    before = set(multiprocessing.active_children())
    # Spawned, not forked: a progress bar's thread may hold a lock at the moment of a fork.
    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_leave_with_parent
    )
    try:
        with _no_interrupts():
            pending = [pool.submit(work, task) for task in tasks]
        for done in _completed(pending):
            if watch is not None:
                watch(done, len(tasks))
        return [future.result() for future in pending]
    except BaseException:
        # Whoever waits for a keyboard interrupt, or for an error, does not wait for the others.
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _completed(pending: Sequence[Future[Answer]]) -> Iterator[int]:
    """Yield how many are done, at each that ends and twice a second. Raises what one raised."""
    ended: SimpleQueue[Future[Answer]] = SimpleQueue()
    for future in pending:
        future.add_done_callback(ended.put)
    done = 0
    while done < len(pending):
        with suppress(Empty):
            ended.get(timeout=0.5).result()
            done += 1
        yield done


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Start processes that ignore a keyboard interrupt: it is this process's to end them.

    They inherit the mask. An interrupt that comes meanwhile is delivered here afterwards.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave_with_parent() -> None:
    """End this worker when the process that started it is gone, however it went."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _cores() -> int:
    """Return the cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
