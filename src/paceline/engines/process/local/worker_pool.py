"""The driver's end of the nursery: start it, have workers made, end them.

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
from paceline.worker.forkserver_protocol import AnyWord, Fork, Kill, Load, Loaded, Wire
from paceline.worker.process import ray_spelled
from paceline.worker.protocol import Channel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from paceline.core.values import SlotId

# How often a nursery is started after one was killed: the function was loaded before, so that one
# which dies again was killed again.
_TRIES = 5


class Packed(NamedTuple):
    """A training function as it travels, and where its modules were found."""

    body: bytes
    name: str
    path: tuple[str, ...]


def packed(train: Callable[[Any], Any]) -> Packed:
    """Pack a training function; refuse one that no trial can be given to."""
    ray_spelled(train)
    name = getattr(train, "__name__", "the training function")
    return Packed(_pickled(train), name, tuple(sys.path))


class Nest:
    """A nursery and the workers it has made."""

    def __init__(self, train: Callable[[Any], Any] | Packed, environ: Mapping[str, str]) -> None:
        self._train = train if isinstance(train, Packed) else packed(train)
        # Whoever asks torch for GPUs while the function is loaded must not start CUDA by that: in
        # workers that are forked afterwards it would not work.
        cuda = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        self._environ = {**cuda, **os.environ, **environ}
        self._workers = 0
        # Workers that were made ahead and wait to hear what to be.
        self._spares: dict[int, Channel] = {}
        self._start(1)

    def prepare(self, count: int) -> None:
        """Have so many more workers made; each waits to hear what to be."""
        for _ in range(count):
            number, channel = self.tied()
            self._spares[number] = channel

    def hire(self, slots: Sequence[SlotId]) -> list[tuple[int, Channel]]:
        """Return a worker for each slot, tied together where they are several."""
        if len(slots) > 1:
            return self.gang(len(slots))
        worker = self.worker()
        self.prepare(1)
        return [worker]

    def worker(self) -> tuple[int, Channel]:
        """Return a worker that waits, the oldest first."""
        if not self._spares:
            self.prepare(1)
        number = next(iter(self._spares))
        return number, self._spares.pop(number)

    def gang(self, size: int) -> list[tuple[int, Channel]]:
        """Make workers that are tied together at birth: the first has a link to each other one."""
        pairs = [socket.socketpair() for _ in range(size - 1)]
        ends = [[lead for lead, _ in pairs], *([follow] for _, follow in pairs)]
        made = [self.tied(*links) for links in ends]
        for end in (end for pair in pairs for end in pair):
            end.close()
        return made

    def tied(self, *links: socket.socket) -> tuple[int, Channel]:
        """Make a worker that has these links to others of its gang."""
        mine, theirs = socket.socketpair()
        number = self._workers
        self._workers += 1
        fds = [theirs.fileno(), *(link.fileno() for link in links)]
        self.wire.send(Fork(number, len(links)), *fds)
        theirs.close()
        return number, Channel(mine)

    def forget(self, worker: int) -> None:
        """A worker died before it heard what to be; another is made when it is needed."""
        spare = self._spares.pop(worker, None)
        if spare is not None:
            spare.close()

    def kill(self, worker: int, number: int) -> None:
        """Send a worker, and whatever it has started, a signal."""
        self.wire.send(Kill(worker, number))

    def words(self) -> Sequence[AnyWord]:
        """Return what the nursery says; nothing, if it is gone."""
        return self.wire.receive()

    def close(self, patience: float) -> None:
        """Hang up: the nursery ends all workers and itself."""
        for worker in list(self._spares):
            self.forget(worker)
        self.wire.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            # Its workers die with it.
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def revive(self) -> None:
        """Start another nursery after this one was killed."""
        self.close(1.0)
        self._start(_TRIES)

    def _start(self, tries: int) -> None:
        for _ in range(tries):
            self._spawn()
            if self._load():
                return
        raise SpecError(f"{self._train.name} cannot be loaded: the process that imports it died.")

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
        self.wire = Wire(mine)

    def _load(self) -> bool:
        """Have the function loaded; False: the nursery died of it, or was killed."""
        with tempfile.TemporaryFile() as file:
            file.write(self._train.body)
            file.seek(0)
            self.wire.send(Load(list(self._train.path)), file.fileno())
        answer = self.words()
        if not answer or not isinstance(answer[0], Loaded):
            self.close(1.0)
            return False
        if answer[0].error:
            self.close(1.0)
            raise SpecError(f"{self._train.name} cannot be loaded in a worker: {answer[0].error}.")
        return True


def _pickled(train: Callable[[Any], Any]) -> bytes:
    try:
        body: bytes = cloudpickle.dumps(train)
    except Exception as error:
        name = getattr(train, "__name__", "the training function")
        raise SpecError(
            f"{name} cannot be sent to workers ({error}): let it make locks, open files and "
            "connections inside, rather than use some from outside."
        ) from None
    return body
