"""The nursery: a warm process with the user's imports, from which every worker is forked.

Knows how to load the training function once, fork workers that wait, send them signals, and tell
the driver when they are gone. Runs as `python -m paceline.worker.forkserver FD`. When the
driver goes away, however it goes, so does everything here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import traceback
from glob import glob
from importlib import import_module
from typing import TYPE_CHECKING, Any

from paceline.worker.forkserver_protocol import AnyWord, Exited, Fork, Kill, Load, Loaded, Wire
from paceline.worker.gang import Ties
from paceline.worker.process import live
from paceline.worker.protocol import Channel

if TYPE_CHECKING:
    from collections.abc import Callable

# From linux/prctl.h.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# What a worker exits with that never came to its training function.
_STILLBORN = 70


class Nursery:
    """Forks workers and reaps them."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._train: Callable[[Any], Any] | None = None
        self._pids: dict[int, int] = {}
        # A signal writes here, so that one `select` waits for both orders and deaths.
        self._bell, self._ring = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._ring, False)

    def run(self) -> None:
        """Serve until the driver is gone."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Grandchildren whose worker was killed become ours, so that they can be ended too.
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._ring, warn_on_full_buffer=False)
        try:
            while not self._wire.closed:
                ready, _, _ = select.select([self._wire.fileno(), self._bell], [], [])
                if self._bell in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._bell, 4096)
                    self._reap()
                if self._wire.fileno() in ready:
                    for word in self._wire.receive():
                        self._obey(word)
        finally:
            self._end_all()

    def _obey(self, word: AnyWord) -> None:
        if isinstance(word, Load):
            self._load(word.path)
        elif isinstance(word, Fork):
            fds = [self._wire.descriptor() for _ in range(1 + word.links)]
            self._fork(word.worker, fds)
        elif isinstance(word, Kill) and word.worker in self._pids:
            _signal_all(self._pids[word.worker], word.signal)

    def _load(self, path: list[str]) -> None:
        import cloudpickle

        try:
            sys.path[:] = path
            with open(self._wire.descriptor(), "rb") as file:
                self._train = cloudpickle.load(file)
            _warm()
        except BaseException as error:
            text = "".join(traceback.format_exception_only(error)).strip()
            self._wire.send(Loaded(text or "it cannot be loaded"))
        else:
            self._wire.send(Loaded())

    def _fork(self, worker: int, fds: list[int]) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self._pids[worker] = pid
            for fd in fds:
                os.close(fd)
            return
        code = _STILLBORN
        try:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:  # else the nursery died before it could be asked to tell
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                self._wire.close()
                # A session of its own: what it starts can be ended with it.
                os.setsid()
                code = self._live(fds)
        finally:
            os._exit(code)

    def _live(self, fds: list[int]) -> int:
        assert self._train is not None
        channel, *links = (Channel(socket.socket(fileno=fd)) for fd in fds)
        return live(channel, self._train, Ties(links))

    def _reap(self) -> None:
        workers = {pid: worker for worker, pid in self._pids.items()}
        while True:
            try:
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if dead is None:
                return
            pid = dead.si_pid
            worker = workers.get(pid)
            if worker is not None:
                # Whatever it has left behind in its session; its number is nobody else's yet.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            if worker is not None:
                del self._pids[worker]
                self._end_strays()
                self._wire.send(Exited(worker, os.waitstatus_to_exitcode(status)))

    def _end_all(self) -> None:
        """End every worker and whatever they have started, and stay until all are gone."""
        for pid in self._pids.values():
            _signal_all(pid, signal.SIGKILL)
        self._pids.clear()
        # Whoever dies leaves its children to us: go on until there are none.
        with contextlib.suppress(ChildProcessError):
            while True:
                self._end_strays()
                os.waitpid(-1, 0)

    def _end_strays(self) -> None:
        """End grandchildren that left their worker's session: as orphans they became ours."""
        for children in glob("/proc/self/task/*/children"):
            with contextlib.suppress(OSError), open(children) as file:
                for pid in map(int, file.read().split()):
                    if pid not in self._pids.values():
                        os.kill(pid, signal.SIGKILL)


def _signal_all(pid: int, number: int) -> None:
    """Signal a worker's whole session; before it has one, the worker alone."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _warm() -> None:
    """Import what numpy and torch import when they are first used, or every worker would do it."""
    for loaded, late in (("numpy", "numpy.random"), ("torch", "torch._dynamo")):
        if loaded in sys.modules:
            with contextlib.suppress(ImportError):
                import_module(late)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    Nursery(Wire(socket.socket(fileno=int(sys.argv[1])))).run()
