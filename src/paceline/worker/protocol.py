"""The channel between a driver and a worker: whole messages over a socket, in order.

Knows framing (a length, then JSON) and every message. Standard output is the user's: nothing of
ours goes there.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import Struct

from paceline.core.values import Config, Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator


class Message(Struct, frozen=True, kw_only=True, tag=str.lower):
    """Something one side tells the other."""


# To the worker


class Begin(Message, frozen=True, kw_only=True):
    """Be this attempt."""

    attempt: int
    trial: int
    config: Config
    # The last epoch of the trial, the epochs already in the checkpoint, and the first order.
    epochs: int
    start: int
    goal: int
    save_at: tuple[int, ...]
    seed: int
    # Where checkpoints are written, and the one to start from.
    folder: str
    checkpoint: str | None
    digest: str
    # It is still on its way here: Fetched says when it has come.
    awaits: bool
    # What is measured, and the sign that makes a loss of it.
    metric: str
    sign: float
    # The study's best loss so far: whoever beats it saves at once. None: nobody has one.
    best: float | None
    # Save when this many times the cost of a save has passed since the last; None: not for that.
    patience: float | None
    width: float
    # Which of the attempt's processes this is.
    rank: int
    # What its slot has of memory; 0: nobody wants to know what share of it is taken.
    slot_bytes: int
    device: str
    threads: int
    environ: dict[str, str]
    # Where standard output and errors go.
    log: str


class Order(Message, frozen=True, kw_only=True):
    """Follow this config up to this epoch, and save at these; the highest version holds."""

    version: int
    config: Config
    goal: int
    save_at: tuple[int, ...]


class Best(Message, frozen=True, kw_only=True):
    """The study's best loss improved."""

    loss: float


class Fetched(Message, frozen=True, kw_only=True):
    """The checkpoint to start from lies here now, or could not be brought, and why."""

    note: str = ""


class Release(Message, frozen=True, kw_only=True):
    """There is nothing more to do: unwind and end."""


# Between the first process of a wide attempt and the others, besides Release


class Reached(Message, frozen=True, kw_only=True):
    """This process has trained the epoch too."""


class Seek(Message, frozen=True, kw_only=True):
    """This process asks where they meet."""


class Meet(Message, frozen=True, kw_only=True):
    """They meet at this host and port."""

    address: str


class Onward(Message, frozen=True, kw_only=True):
    """Begin the next epoch, by this config."""

    config: Config


# From the worker


class Wrote(Message, frozen=True, kw_only=True):
    """A checkpoint is safe."""

    epoch: int
    seconds: float
    bytes: int
    digest: str


class Skipped(Message, frozen=True, kw_only=True):
    """A checkpoint was wanted and there is none, and why."""

    epoch: int
    note: str


class Report(Message, frozen=True, kw_only=True):
    """An epoch is done."""

    epoch: int
    metrics: Metrics
    seconds: float
    # What came of its checkpoint, where that was saved before the epoch was told: one message, so
    # that nobody ever knows the one and not the other.
    saved: Wrote | Skipped | None = None
    # The share of its slot's memory that it holds, told once.
    memory: float = 0.0
    # The order by which the epoch was trained.
    version: int = 0


class Spoilt(Message, frozen=True, kw_only=True):
    """The checkpoint to start from cannot be used."""

    note: str


class Done(Message, frozen=True, kw_only=True):
    """The training function returned."""


class Failed(Message, frozen=True, kw_only=True):
    """The training function raised."""

    note: str
    # It ran out of memory.
    starved: bool = False


class Bereft(Message, frozen=True, kw_only=True):
    """Another process of this attempt is gone; that one, or its end, says why."""

    rank: int


ToWorker: TypeAlias = Begin | Order | Best | Fetched | Release
BetweenWorkers: TypeAlias = Reached | Seek | Meet | Onward
FromWorker: TypeAlias = Report | Wrote | Skipped | Spoilt | Done | Failed | Bereft
AnyMessage: TypeAlias = ToWorker | BetweenWorkers | FromWorker

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyMessage)
_HEAD = 4


def framed(message: AnyMessage) -> bytes:
    """Return a message as it travels."""
    body = _encoder.encode(message)
    return len(body).to_bytes(_HEAD, "little") + body


class Frames:
    """Bytes as they arrive, cut into whole messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def cut(self, data: bytes) -> Iterator[AnyMessage]:
        """Take more bytes and yield the messages that are whole now."""
        self._bytes += data
        at = 0
        while len(self._bytes) - at >= _HEAD:
            end = at + _HEAD + int.from_bytes(self._bytes[at : at + _HEAD], "little")
            if end > len(self._bytes):
                break
            yield _decoder.decode(self._bytes[at + _HEAD : end])
            at = end
        del self._bytes[:at]


class Channel:
    """One end of a socket that carries messages."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._frames = Frames()
        self._whole: deque[AnyMessage] = deque()
        # The other side is gone: what has arrived can still be read.
        self.closed = False

    def fileno(self) -> int:
        """Return the socket's number, for selectors."""
        return self._end.fileno()

    @property
    def host(self) -> str:
        """The address by which the other side reaches this machine; empty: it is on it, too."""
        return "" if self._end.family == socket.AF_UNIX else str(self._end.getsockname()[0])

    def send(self, message: AnyMessage) -> None:
        """Say something; to a side that is gone, in vain. What it said before can still be read."""
        self.write(framed(message))

    def write(self, data: bytes) -> None:
        """Pass on what was framed elsewhere."""
        with contextlib.suppress(OSError):
            self._end.sendall(data)

    def read(self) -> bytes:
        """Return what lies ready, as it travels; nothing where the other side is gone."""
        try:
            data = self._end.recv(1 << 16)
        except OSError:
            data = b""
        self.closed = self.closed or not data
        return data

    def receive(self, *, wait: bool) -> AnyMessage | None:
        """Return the next message; None where there is none now, or will never be one."""
        while not self._whole and not self.closed:
            if not wait and not select.select([self._end], [], [], 0)[0]:
                break
            self._fill()
        return self._whole.popleft() if self._whole else None

    def arrived(self) -> Iterator[AnyMessage]:
        """Read once what lies ready, and yield the whole messages in it."""
        self._fill()
        while self._whole:
            yield self._whole.popleft()

    def close(self) -> None:
        """Hang up."""
        self.closed = True
        self._end.close()

    def _fill(self) -> None:
        self._whole.extend(self._frames.cut(self.read()))
