"""The worker pool of one machine: the driver's side of the fork server.

Knows processes and sockets. Does not know attempts: a worker is a number and a channel.
"""

from __future__ import annotations

import inspect
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle

from paceline.core.errors import PacelineError, SpecError, StudyFailed, warn_user
from paceline.core.text import format_bytes
from paceline.worker.forkserver_protocol import (
    LOADING,
    ForkServerSocket,
    ForkWorker,
    FunctionLoaded,
    KillWorker,
    LoadFunction,
    ModuleImporting,
    WorkerExited,
)
from paceline.worker.function import check_function, name_function
from paceline.worker.protocol import Channel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from paceline.core.values import SlotId

_logger = logging.getLogger("paceline.engine")

# How often the fork server is started in a row if it is killed, whatever the function is.
_MOST_STARTS = 5
# The same if it ends otherwise while it loads the function for the first time: the function's
# modules do that every time.
_MOST_LOADS = 2
# Signals that come from outside: a user, a batch system, the kernel that has no memory left.
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
# How long a fork server that has closed its socket may take to exit.
_EXIT_S = 5.0
# A function of more bytes than this is slow to start.
_LARGE_BYTES = 100_000_000


class PackedFunction(NamedTuple):
    """A pickled training function, its name, and the driver's search path and arguments."""

    body: bytes
    name: str
    path: tuple[str, ...]
    argv: tuple[str, ...]


def pack_function(train: Callable[..., Any]) -> PackedFunction:
    """Pickle a training function; raise SpecError if it cannot be one."""
    check_function(train)
    name = name_function(train)
    try:
        body: bytes = cloudpickle.dumps(train)
    except Exception as error:
        raise SpecError(
            f"{name} cannot be sent to workers ({error}): create locks, open files and "
            "connections inside it instead of using those of the surrounding module."
        ) from None
    if len(body) > _LARGE_BYTES:
        warn_user(_describe_size(train, name, len(body)))
    return PackedFunction(body, name, tuple(sys.path), tuple(sys.argv))


def _describe_size(train: Callable[..., Any], name: str, size: int) -> str:
    """Return what is large in a pickled function, and what to do about it."""
    used = inspect.getclosurevars(train) if inspect.isfunction(train) else None
    objects = {} if used is None else {**used.globals, **used.nonlocals}
    sizes = {key: getattr(value, "nbytes", sys.getsizeof(value)) for key, value in objects.items()}
    most = max(sizes, key=lambda key: sizes[key], default="")
    share = f", most of it in {most}" if most and sizes[most] > size / 2 else ""
    return (
        f"{name} takes {format_bytes(size)} when it is sent to workers{share}: load large data "
        "inside the function, or from a file, so that studies start faster."
    )


class ForkServerPool:
    """A fork server and the workers it has forked."""

    shares_process = False

    def __init__(
        self,
        train: Callable[..., Any] | PackedFunction,
        environ: Mapping[str, str],
        say: Callable[[str], None] | None = None,
    ) -> None:
        # Called with what takes time while the function is loaded.
        self._say = say
        if LOADING in os.environ:
            raise SpecError(
                "a study was started while a worker imports the module of a training function: "
                "put the call of pl.tune under `if __name__ == '__main__':`"
            )
        self._train = train if isinstance(train, PackedFunction) else pack_function(train)
        # Code that asks torch for GPUs while the function is loaded must not initialize CUDA:
        # forked workers could not use it.
        cuda = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        self._environ = {**cuda, **os.environ, **environ}
        self._workers = 0
        # Workers that wait for an attempt, the oldest first.
        self._spares: dict[int, Channel] = {}
        # Whether a fork server has loaded the function before.
        self._was_loaded = False
        # The module that the fork server imports, for messages.
        self._importing = ""
        self._start()

    @property
    def closed(self) -> bool:
        """Whether the fork server is gone, and every worker with it."""
        return self._socket.closed

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when `poll` has something to return."""
        return self._socket.fileno()

    def prepare(self, count: int) -> None:
        """Fork workers that wait for an attempt."""
        for _ in range(count):
            number, channel = self.fork()
            self._spares[number] = channel

    def acquire(self, slots: Sequence[SlotId]) -> list[tuple[int, Channel]]:
        """Return a worker for each slot; several are linked to each other as a gang.

        One that was prepared starts at once; prepare another when it has its attempt.
        """
        if len(slots) > 1:
            return self._fork_gang(len(slots))
        if not self._spares:
            self.prepare(1)
        number = next(iter(self._spares))
        return [(number, self._spares.pop(number))]

    def fork(self, *links: socket.socket) -> tuple[int, Channel]:
        """Fork a worker with these links to other processes of its gang."""
        mine, theirs = socket.socketpair()
        number = self._workers
        self._workers += 1
        fds = [theirs.fileno(), *(link.fileno() for link in links)]
        self._socket.send(ForkWorker(number, len(links)), *fds)
        theirs.close()
        return number, Channel(mine)

    def discard(self, worker: int) -> None:
        """Forget a worker that exited before it was given an attempt."""
        spare = self._spares.pop(worker, None)
        if spare is not None:
            spare.close()

    def kill(self, worker: int, number: int) -> None:
        """Send a signal to a worker and to every process it has started."""
        self._socket.send(KillWorker(worker, number))

    def poll(self) -> Sequence[WorkerExited]:
        """Return the exits that the fork server reports; none if it is gone."""
        messages = self._socket.receive()
        return [message for message in messages if isinstance(message, WorkerExited)]

    def close(self, timeout_s: float) -> None:
        """Close the connection: the fork server ends all workers and itself."""
        for worker in list(self._spares):
            self.discard(worker)
        self._socket.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            # The kernel kills its workers with it.
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def restart(self) -> None:
        """Start another fork server after this one was killed."""
        self.close(1.0)
        self._start()

    def _fork_gang(self, size: int) -> list[tuple[int, Channel]]:
        """Fork workers of which the first has a link to each other one."""
        pairs = [socket.socketpair() for _ in range(size - 1)]
        ends = [[lead for lead, _ in pairs], *([follow] for _, follow in pairs)]
        workers = [self.fork(*links) for links in ends]
        for end in (end for pair in pairs for end in pair):
            end.close()
        return workers

    def _start(self) -> None:
        """Start the fork server and load the function in it; start again where it was killed."""
        starts = 0
        while True:
            self._spawn()
            starts += 1
            try:
                if self._load():
                    self._was_loaded = True
                    return
            except BaseException:
                # Interrupted, perhaps: a process that imports code does not notice a closed socket.
                self._process.kill()
                self.close(1.0)
                raise
            status = self._process.returncode
            is_machine = self._was_loaded or -status in _FROM_OUTSIDE
            if starts >= (_MOST_STARTS if is_machine else _MOST_LOADS):
                raise self._make_start_error(status, starts, is_machine=is_machine)
            _logger.warning(
                "the fork server %s while it started; it is started again", _describe_end(status)
            )

    def _make_start_error(self, status: int, starts: int, *, is_machine: bool) -> PacelineError:
        name, ended = self._train.name, _describe_end(status)
        importing = f" while it imported {self._importing}" if self._importing else ""
        if is_machine:
            return StudyFailed(
                f"no worker can be started: the process that imports {name} {ended}{importing}, "
                f"{starts} times in a row. Look into the system's log for what ended it, such as "
                "a lack of memory, and run the study again."
            )
        return SpecError(
            f"{name} cannot be loaded: the process that imports it {ended}{importing}, {starts} "
            f"times in a row. Import its modules in a program of their own to see why."
        )

    def _spawn(self) -> None:
        mine, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "paceline.worker.forkserver", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=self._environ,
            stdin=subprocess.DEVNULL,
            # A keyboard interrupt is the driver's to handle: it ends the workers in its own way.
            start_new_session=True,
        )
        theirs.close()
        self._socket = ForkServerSocket(mine)

    def _load(self) -> bool:
        """Load the function in the fork server; False: the process exited."""
        with tempfile.TemporaryFile() as file:
            file.write(self._train.body)
            file.seek(0)
            loading = LoadFunction(list(self._train.path), list(self._train.argv))
            self._socket.send(loading, file.fileno())
        self._importing = ""
        answer = self._await_function()
        if answer is None:
            self.close(_EXIT_S)
            return False
        if answer.error:
            self.close(1.0)
            raise SpecError(f"{self._train.name} cannot be loaded in a worker: {answer.error}.")
        return True

    def _await_function(self) -> FunctionLoaded | None:
        """Wait until the function is loaded, and say what is imported; None: the process exited."""
        while not self._socket.closed:
            for message in self._socket.receive():
                if isinstance(message, FunctionLoaded):
                    return message
                if isinstance(message, ModuleImporting):
                    self._importing = message.name
                    if self._say is not None:
                        self._say(f"importing {message.name} in a worker")
        return None


def _describe_end(status: int) -> str:
    """Return how a process ended, in words.

    >>> _describe_end(3), _describe_end(-11), _describe_end(-9)
    ('exited with code 3', 'crashed with SIGSEGV', 'was killed by SIGKILL')
    """
    if status >= 0:
        return f"exited with code {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    return f"was killed by {name}" if -status in _FROM_OUTSIDE else f"crashed with {name}"
