"""The protocol between driver and worker: message types, and a socket that carries them.

Knows the framing (a length, then JSON) and every message, also those between the processes of a
gang. Does not use standard output: that is the user's.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import Struct

from paceline.core.domains import Domain
from paceline.core.values import Config, Metrics, Value

if TYPE_CHECKING:
    from collections.abc import Iterator


class Message(Struct, frozen=True, kw_only=True, tag=str.lower):
    """A message from one side to the other."""


# To the worker


class StartAttempt(Message, frozen=True, kw_only=True):
    """Run this attempt."""

    attempt: int
    trial: int
    config: Config
    # The last epoch of the trial; the epochs in the checkpoint; the first order.
    epochs: int
    start: int
    goal: int
    save_at: tuple[int, ...]
    seed: int
    # The folder for checkpoints, and the one to start from.
    folder: str
    checkpoint: str | None
    digest: str
    # The checkpoint is still being downloaded: wait for CheckpointFetched.
    awaits: bool
    # The metric, and the sign that turns it into a loss.
    metric: str
    sign: float
    # The study's best loss so far: an epoch that beats it is saved at once. None: no loss yet.
    best: float | None
    # Save when this many times the duration of a save has passed since the last; None: never.
    save_share: float | None
    width: float
    # The process's number within the attempt.
    rank: int
    # The memory of its slot, to report the share in use; 0: do not report it.
    slot_bytes: int
    device: str
    threads: int
    environ: dict[str, str]
    # The file for standard output and standard error.
    log: str
    # The function asks for its hyperparameters; the config has those that were proposed.
    define_by_run: bool = False


class UpdateOrder(Message, frozen=True, kw_only=True):
    """Train this config up to this epoch, and save at these; the highest version holds."""

    version: int
    config: Config
    goal: int
    save_at: tuple[int, ...]


class BestLoss(Message, frozen=True, kw_only=True):
    """The study's best loss improved."""

    loss: float


class ReportJudged(Message, frozen=True, kw_only=True):
    """The policy has decided about the report of this epoch: the attempt goes on, or stops."""

    epoch: int
    stops: bool


class CheckpointFetched(Message, frozen=True, kw_only=True):
    """The checkpoint to start from was downloaded; with a note, the download failed."""

    note: str = ""


class Release(Message, frozen=True, kw_only=True):
    """The attempt is over: unwind and exit."""


# Between the first process of a wide attempt and the others, besides Release


class EpochTrained(Message, frozen=True, kw_only=True):
    """This process has trained the epoch."""


class AskAddress(Message, frozen=True, kw_only=True):
    """Ask the first process for the meeting address."""


class MeetingAddress(Message, frozen=True, kw_only=True):
    """The host and port at which the processes meet."""

    address: str


class NextEpoch(Message, frozen=True, kw_only=True):
    """Begin the next epoch with this config."""

    config: Config


# From the worker


class CheckpointWritten(Message, frozen=True, kw_only=True):
    """A checkpoint is on disk."""

    epoch: int
    seconds: float
    bytes: int
    digest: str


# The note of a checkpoint that was not written because the training function keeps no objects.
NOT_WRITTEN = "its checkpoint cannot be written"
KEEPS_NOTHING = "it keeps nothing, so that it starts over when it is paused"


class CheckpointSkipped(Message, frozen=True, kw_only=True):
    """A checkpoint was requested and not written, and why."""

    epoch: int
    note: str


class EpochReport(Message, frozen=True, kw_only=True):
    """An epoch is done."""

    epoch: int
    metrics: Metrics
    seconds: float
    # Its checkpoint, where that was saved before the report: in one message, so that the driver
    # never knows the one without the other.
    saved: CheckpointWritten | CheckpointSkipped | None = None
    # The share of its slot's memory in use; sent once.
    memory: float = 0.0
    # The version of the order that the epoch was trained by.
    version: int = 0
    # The training function has returned with this report.
    last: bool = False


class AskJudgement(Message, frozen=True, kw_only=True):
    """Ask for ReportJudged as soon as the policy has decided about the report of this epoch."""

    epoch: int


class ParamsUsed(Message, frozen=True, kw_only=True):
    """The hyperparameters that the function has asked for so far, and their domains."""

    params: Config
    domains: dict[str, Domain]


class AttrsSet(Message, frozen=True, kw_only=True):
    """Values that the function attached to its trial."""

    attrs: dict[str, Value]


class CheckpointUnusable(Message, frozen=True, kw_only=True):
    """The checkpoint to start from cannot be used."""

    note: str


class FunctionReturned(Message, frozen=True, kw_only=True):
    """The training function returned."""


class FunctionPruned(Message, frozen=True, kw_only=True):
    """The training function raised TrialPruned."""


class FunctionFailed(Message, frozen=True, kw_only=True):
    """The training function raised."""

    note: str
    # It ran out of memory.
    out_of_memory: bool = False
    # The class of the exception, and the place of the user's last frame as file:line.
    kind: str = ""
    place: str = ""


class PeerLost(Message, frozen=True, kw_only=True):
    """A peer process exited; its own message or exit status carries the reason."""

    rank: int


ToWorker: TypeAlias = (
    StartAttempt | UpdateOrder | BestLoss | ReportJudged | CheckpointFetched | Release
)
BetweenWorkers: TypeAlias = EpochTrained | AskAddress | MeetingAddress | NextEpoch
FromWorker: TypeAlias = (
    EpochReport
    | CheckpointWritten
    | CheckpointSkipped
    | CheckpointUnusable
    | AskJudgement
    | ParamsUsed
    | AttrsSet
    | FunctionReturned
    | FunctionPruned
    | FunctionFailed
    | PeerLost
)
AnyMessage: TypeAlias = ToWorker | BetweenWorkers | FromWorker

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyMessage)
_HEAD = 4


def encode_frame(message: AnyMessage) -> bytes:
    """Return a message as bytes, with its length in front."""
    body = _encoder.encode(message)
    return len(body).to_bytes(_HEAD, "little") + body


class FrameDecoder:
    """Decodes messages from bytes that arrive in pieces."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def decode(self, data: bytes) -> Iterator[AnyMessage]:
        """Take more bytes and yield the messages that are complete now."""
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
        self._frames = FrameDecoder()
        self._messages: deque[AnyMessage] = deque()
        # The other side is gone; messages that have arrived can still be read.
        self.closed = False

    def fileno(self) -> int:
        """Return the socket's number, for selectors."""
        return self._end.fileno()

    @property
    def host(self) -> str:
        """This machine's address as the other side sees it; empty: both are on one machine."""
        return "" if self._end.family == socket.AF_UNIX else str(self._end.getsockname()[0])

    def send(self, message: AnyMessage) -> None:
        """Send a message; without effect if the other side is gone."""
        self.write(encode_frame(message))

    def write(self, data: bytes) -> None:
        """Send bytes that are framed already."""
        with contextlib.suppress(OSError):
            self._end.sendall(data)

    def read(self) -> bytes:
        """Return the bytes that have arrived; none if the other side is gone."""
        try:
            data = self._end.recv(1 << 16)
        except OSError:
            data = b""
        self.closed = self.closed or not data
        return data

    def receive(self, *, wait: bool) -> AnyMessage | None:
        """Return the next message; None: the other side is gone, or none is there to wait for."""
        while not self._messages and not self.closed:
            if not wait and not select.select([self._end], [], [], 0)[0]:
                break
            self._fill()
        return self._messages.popleft() if self._messages else None

    def read_messages(self) -> Iterator[AnyMessage]:
        """Read once, and yield the messages that are complete."""
        self._fill()
        while self._messages:
            yield self._messages.popleft()

    def close(self) -> None:
        """Close the socket."""
        self.closed = True
        self._end.close()

    def _fill(self) -> None:
        self._messages.extend(self._frames.decode(self.read()))
