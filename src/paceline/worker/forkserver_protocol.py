"""The wire between a driver and its nursery: small messages, and file descriptors beside them.

Knows what the two say to each other. Messages are lines of JSON on a stream; descriptors travel
with the line they belong to and are taken in order.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence


class Load(Struct, frozen=True, tag="load"):
    """Load the training function, which lies in the file that comes along.

    It was pickled by the driver of this very study a moment ago: no pickle comes from a store.
    """

    path: list[str]


class Fork(Struct, frozen=True, tag="fork"):
    """Make a worker; its end of a channel comes along, and its links to others of its gang."""

    worker: int
    links: int = 0


class Kill(Struct, frozen=True, tag="kill"):
    """Send a signal to a worker and whatever it has started."""

    worker: int
    signal: int


class Loaded(Struct, frozen=True, tag="loaded"):
    """The function is ready; with an error, it cannot be had."""

    error: str = ""


class Exited(Struct, frozen=True, tag="exited"):
    """A worker is gone. A negative status is the signal that ended it."""

    worker: int
    status: int
    # Whose doing it was, where it was not its own: that costs no retry.
    lost: str = ""


AnyWord: TypeAlias = Load | Fork | Kill | Loaded | Exited

_decoder = msgspec.json.Decoder(AnyWord)
_encode = msgspec.json.Encoder().encode


class Wire:
    """One end."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._bytes = b""
        self._fds: deque[int] = deque()
        # The other side is gone.
        self.closed = False

    def fileno(self) -> int:
        """Return the socket's number, for selectors."""
        return self._end.fileno()

    def send(self, word: AnyWord, *fds: int) -> None:
        """Say something; to a side that is gone, in vain."""
        try:
            if fds:
                socket.send_fds(self._end, [_encode(word) + b"\n"], list(fds))
            else:
                self._end.sendall(_encode(word) + b"\n")
        except OSError:
            self.closed = True

    def receive(self) -> Sequence[AnyWord]:
        """Wait for something to be said and return all of it; nothing, if the side is gone."""
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

    def descriptor(self) -> int:
        """Return the descriptor that came with the message now being read."""
        return self._fds.popleft()

    def close(self) -> None:
        """Hang up."""
        self.closed = True
        self._end.close()
