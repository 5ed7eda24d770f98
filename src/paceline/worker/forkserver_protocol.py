"""The protocol between a driver and its fork server: messages with file descriptors.

Knows the messages of both sides. A message is a line of JSON; descriptors are sent with their line
and taken in the same order.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

# An environment variable of the fork server, set while it loads the training function.
LOADING = "PACELINE_LOADING"


class LoadFunction(Struct, frozen=True, tag="load"):
    """Load the training function from a file; its descriptor comes with this message.

    The driver of this study has pickled it a moment ago: a pickle never comes from a store.
    """

    # What `sys.path` and `sys.argv` are in the driver, and shall be in workers.
    path: list[str]
    argv: list[str]


class ForkWorker(Struct, frozen=True, tag="fork"):
    """Fork a worker; its channel and its links to other processes of its gang come with it."""

    worker: int
    links: int = 0


class KillWorker(Struct, frozen=True, tag="kill"):
    """Send a signal to a worker and to every process it has started."""

    worker: int
    signal: int


class ModuleImporting(Struct, frozen=True, tag="importing"):
    """The fork server imports a module for the function, which may take a while."""

    name: str


class FunctionLoaded(Struct, frozen=True, tag="loaded"):
    """The function is loaded; with an error, loading failed."""

    error: str = ""


class WorkerExited(Struct, frozen=True, tag="exited"):
    """A worker exited; a negative status is the signal that ended it."""

    worker: int
    status: int
    # The reason, where it was not the worker's fault: the exit costs no retry.
    lost: str = ""


ForkServerMessage: TypeAlias = (
    LoadFunction | ForkWorker | KillWorker | ModuleImporting | FunctionLoaded | WorkerExited
)

_decoder = msgspec.json.Decoder(ForkServerMessage)
_encode = msgspec.json.Encoder().encode


class ForkServerSocket:
    """One end of the connection."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._bytes = b""
        self._fds: deque[int] = deque()
        # The other side is gone.
        self.closed = False

    def fileno(self) -> int:
        """Return the socket's number, for selectors."""
        return self._end.fileno()

    def send(self, message: ForkServerMessage, *fds: int) -> None:
        """Send a message with descriptors; without effect if the other side is gone."""
        try:
            if fds:
                socket.send_fds(self._end, [_encode(message) + b"\n"], list(fds))
            else:
                self._end.sendall(_encode(message) + b"\n")
        except OSError:
            self.closed = True

    def receive(self) -> Sequence[ForkServerMessage]:
        """Wait for messages and return those that have arrived; none if the other side is gone."""
        while not self.closed:
            try:
                data, fds, _, _ = socket.recv_fds(self._end, 1 << 16, 64)
            except OSError:
                data, fds = b"", []
            self._fds.extend(fds)
            self.closed = not data
            *lines, self._bytes = (self._bytes + data).split(b"\n")
            if lines:
                return [_decoder.decode(line) for line in lines]
        return ()

    def next_descriptor(self) -> int:
        """Return the next descriptor that came with the message now being handled."""
        return self._fds.popleft()

    def close(self) -> None:
        """Close the socket."""
        self.closed = True
        self._end.close()
