"""The fork server: a process with the user's imports loaded, from which every worker is forked.

Loads the training function once, forks workers, sends them signals, and reports their exits to the
driver. Runs as `python -m paceline.worker.forkserver FD`. When the driver exits, for whatever
reason, the fork server ends all workers and exits.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, Any

from paceline.core.errors import PacelineError
from paceline.worker.forkserver_protocol import (
    LOADING,
    ForkServerMessage,
    ForkServerSocket,
    ForkWorker,
    FunctionLoaded,
    KillWorker,
    LoadFunction,
    ModuleImporting,
    WorkerExited,
)
from paceline.worker.gang import GangLinks
from paceline.worker.import_notes import tell_imports
from paceline.worker.process import run_attempt
from paceline.worker.protocol import Channel
from paceline.worker.wakeup_pipe import WakeupPipe

if TYPE_CHECKING:
    from collections.abc import Callable

# From linux/prctl.h.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# The exit code of a worker that failed before it ran its attempt.
_EXIT_NOT_STARTED = 70


class ForkServer:
    """Forks workers and reaps them."""

    def __init__(self, end: ForkServerSocket) -> None:
        self._socket = end
        self._train: Callable[..., Any] | None = None
        self._pids: dict[int, int] = {}
        # SIGCHLD writes here, so that one `select` waits for both messages and exits.
        self._wakeup = WakeupPipe()

    def run(self) -> None:
        """Serve until the driver is gone."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Children of a killed worker are reparented to this process, which ends them too.
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup.write_fd, warn_on_full_buffer=False)
        try:
            while not self._socket.closed:
                descriptors = (self._socket.fileno(), self._wakeup.fileno())
                ready, _, _ = select.select(descriptors, [], [])
                if self._wakeup.fileno() in ready:
                    self._wakeup.clear()
                    self._reap()
                if self._socket.fileno() in ready:
                    for message in self._socket.receive():
                        self._handle(message)
        finally:
            self._end_all()

    def _handle(self, message: ForkServerMessage) -> None:
        if isinstance(message, LoadFunction):
            self._load(message)
        elif isinstance(message, ForkWorker):
            fds = [self._socket.next_descriptor() for _ in range(1 + message.links)]
            self._fork(message.worker, fds)
        elif isinstance(message, KillWorker) and message.worker in self._pids:
            _signal_all(self._pids[message.worker], message.signal)

    def _load(self, message: LoadFunction) -> None:
        import cloudpickle

        # A module that starts a study when it is imported would start fork servers without end.
        os.environ[LOADING] = "1"
        # While it imports, it does not notice that the driver is gone.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        try:
            sys.path[:], sys.argv[:] = message.path, message.argv
            with open(self._socket.next_descriptor(), "rb") as file, tell_imports(self._tell):
                self._train = cloudpickle.load(file)
            _import_lazy_modules()
            # A collection in a worker would write to every object, and so copy every page.
            gc.collect()
            gc.freeze()
        except BaseException as error:
            ours = isinstance(error, PacelineError)
            text = str(error) if ours else "".join(traceback.format_exception_only(error)).strip()
            self._socket.send(FunctionLoaded(text or "loading failed"))
        else:
            self._socket.send(FunctionLoaded())
        finally:
            # The driver's thread may end before the driver does.
            _prctl(_PR_SET_PDEATHSIG, 0)
            del os.environ[LOADING]

    def _tell(self, module: str) -> None:
        self._socket.send(ModuleImporting(module))

    def _fork(self, worker: int, fds: list[int]) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self._pids[worker] = pid
            for fd in fds:
                os.close(fd)
            return
        code = _EXIT_NOT_STARTED
        try:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:  # else the fork server exited before the prctl
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                self._socket.close()
                # A session of its own: the processes it starts are ended with it.
                os.setsid()
                code = self._run_worker(fds)
        finally:
            os._exit(code)

    def _run_worker(self, fds: list[int]) -> int:
        assert self._train is not None
        channel, *links = (Channel(socket.socket(fileno=fd)) for fd in fds)
        return run_attempt(channel, self._train, GangLinks(links))

    def _reap(self) -> None:
        workers = {pid: worker for worker, pid in self._pids.items()}
        while True:
            try:
                exited = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if exited is None:
                return
            pid = exited.si_pid
            worker = workers.get(pid)
            if worker is not None:
                # End its session before the pid is free for another process.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            if worker is not None:
                del self._pids[worker]
                self._end_strays()
                self._socket.send(WorkerExited(worker, os.waitstatus_to_exitcode(status)))

    def _end_all(self) -> None:
        """End every worker and every process they have started, and wait until all are gone."""
        for pid in self._pids.values():
            _signal_all(pid, signal.SIGKILL)
        self._pids.clear()
        # Children of a process that ends are reparented to this one: repeat until none is left.
        with contextlib.suppress(ChildProcessError):
            while True:
                self._end_strays()
                os.waitpid(-1, 0)

    def _end_strays(self) -> None:
        """End processes that left their worker's session and were reparented to this one."""
        for pid in _list_children():
            if pid not in self._pids.values():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


def _signal_all(pid: int, number: int) -> None:
    """Signal a worker's whole session; before it has a session, the worker alone."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _import_lazy_modules() -> None:
    """Import the modules that numpy and torch import on first use, once for all workers."""
    for loaded, late in (("numpy", "numpy.random"), ("torch", "torch._dynamo")):
        if loaded in sys.modules:
            with contextlib.suppress(ImportError):
                import_module(late)


def _list_children() -> list[int]:
    """Return the children of this process; all are of its main thread, the only one that forks."""
    try:
        descriptor = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY)
    except OSError:
        return []
    with open(descriptor, "rb", buffering=0) as file:
        return [int(pid) for pid in file.read().split()]


# Loaded before any fork.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _prctl(option: int, value: int) -> None:
    if _libc is not None:
        _libc.prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    ForkServer(ForkServerSocket(socket.socket(fileno=int(sys.argv[1])))).run()
