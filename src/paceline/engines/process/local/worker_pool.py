"""The worker pool of one machine: the driver's side of the fork server.

Knows processes and sockets. Does not know attempts: a worker is a number and a channel.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle

from paceline.core.errors import SpecError
from paceline.worker.forkserver_protocol import (
    ForkServerSocket,
    ForkWorker,
    FunctionLoaded,
    KillWorker,
    LoadFunction,
    WorkerExited,
)
from paceline.worker.process import takes_config
from paceline.worker.protocol import Channel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from paceline.core.values import SlotId

# How often the fork server is started after it was killed. The function was loaded before, so a
# fork server that exits again was killed again.
_RESTARTS = 5


class PackedFunction(NamedTuple):
    """A pickled training function, its name, and the search path of its modules."""

    body: bytes
    name: str
    path: tuple[str, ...]


def pack_function(train: Callable[[Any], Any]) -> PackedFunction:
    """Pickle a training function; raise SpecError if it cannot be called with a trial."""
    takes_config(train)
    name = getattr(train, "__name__", "the training function")
    try:
        body: bytes = cloudpickle.dumps(train)
    except Exception as error:
        raise SpecError(
            f"{name} cannot be sent to workers ({error}): create locks, open files and "
            "connections inside it instead of using those of the surrounding module."
        ) from None
    return PackedFunction(body, name, tuple(sys.path))


class ForkServerPool:
    """A fork server and the workers it has forked."""

    def __init__(
        self, train: Callable[[Any], Any] | PackedFunction, environ: Mapping[str, str]
    ) -> None:
        self._train = train if isinstance(train, PackedFunction) else pack_function(train)
        # Code that asks torch for GPUs while the function is loaded must not initialize CUDA:
        # forked workers could not use it.
        cuda = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        self._environ = {**cuda, **os.environ, **environ}
        self._workers = 0
        # Workers that wait for an attempt, the oldest first.
        self._spares: dict[int, Channel] = {}
        self._start(1)

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
        """Return a worker for each slot; several are linked to each other as a gang."""
        if len(slots) > 1:
            return self._fork_gang(len(slots))
        if not self._spares:
            self.prepare(1)
        number = next(iter(self._spares))
        channel = self._spares.pop(number)
        self.prepare(1)
        return [(number, channel)]

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
        self._start(_RESTARTS)

    def _fork_gang(self, size: int) -> list[tuple[int, Channel]]:
        """Fork workers of which the first has a link to each other one."""
        pairs = [socket.socketpair() for _ in range(size - 1)]
        ends = [[lead for lead, _ in pairs], *([follow] for _, follow in pairs)]
        workers = [self.fork(*links) for links in ends]
        for end in (end for pair in pairs for end in pair):
            end.close()
        return workers

    def _start(self, tries: int) -> None:
        for _ in range(tries):
            self._spawn()
            if self._load():
                return
        raise SpecError(f"{self._train.name} cannot be loaded: the process that imports it exited.")

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
            self._socket.send(LoadFunction(list(self._train.path)), file.fileno())
        answer = self._socket.receive()
        if not answer or not isinstance(answer[0], FunctionLoaded):
            self.close(1.0)
            return False
        if answer[0].error:
            self.close(1.0)
            raise SpecError(f"{self._train.name} cannot be loaded in a worker: {answer[0].error}.")
        return True
