"""Messages between the driver and the agent on a node, many in one call.

Knows every message and the encoding of a list of them. Messages of a worker pass through as the
bytes of its channel and are not decoded on the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import Struct

from paceline.engines.process.providers import CheckpointPublished
from paceline.worker.forkserver_protocol import KillWorker, WorkerExited

if TYPE_CHECKING:
    from collections.abc import Sequence


class StartWorkers(Struct, frozen=True, tag="start_workers"):
    """Start these workers, all on this node; several are linked to each other as a gang."""

    workers: tuple[int, ...]


class StartGang(Struct, frozen=True, tag="start_gang"):
    """Start these workers, the first as the leader of a gang with processes on other nodes."""

    gang: int
    # The workers on this node, by rank.
    workers: dict[int, int]
    size: int
    # Processes on other nodes present this key when they connect to the leader's node.
    key: str


class GangAddress(Struct, frozen=True, tag="gang_address"):
    """The address at which a gang's leader accepts connections of the other processes."""

    gang: int
    host: str
    port: int


class JoinGang(Struct, frozen=True, tag="join_gang"):
    """Start these workers, by rank, and connect them to their leader at this address."""

    workers: dict[int, int]
    host: str
    port: int
    key: str


class ChannelBytes(Struct, frozen=True, tag="channel_bytes"):
    """Bytes of a worker's channel, in either direction."""

    worker: int
    body: bytes


class StopMps(Struct, frozen=True, tag="stop_mps"):
    """Stop the MPS service of a GPU that is given back."""

    gpu: str


# For a node that keeps files on a disk of its own


class AssignAttempt(Struct, frozen=True, tag="assign_attempt"):
    """This worker runs this attempt; fetch the checkpoint to start from unless it is here."""

    worker: int
    attempt: int
    source: tuple[int, int] | None


class PublishCheckpoint(Struct, frozen=True, tag="publish_checkpoint"):
    """Upload a checkpoint of this node; answered by CheckpointPublished."""

    name: tuple[int, int]


class DropCheckpoint(Struct, frozen=True, tag="drop_checkpoint"):
    """Delete this node's copy of a checkpoint."""

    name: tuple[int, int]


class ClearAttempt(Struct, frozen=True, tag="clear_attempt"):
    """Delete the output and the unpublished checkpoints of an attempt that has ended."""

    attempt: int


class AttemptOutput(Struct, frozen=True, tag="attempt_output"):
    """An attempt's output since the last such message; sent when one of its processes exits."""

    attempt: int
    body: bytes


FileCommand: TypeAlias = PublishCheckpoint | DropCheckpoint | ClearAttempt
NodeMessage: TypeAlias = (
    StartWorkers
    | StartGang
    | JoinGang
    | ChannelBytes
    | KillWorker
    | WorkerExited
    | GangAddress
    | StopMps
    | AssignAttempt
    | FileCommand
    | CheckpointPublished
    | AttemptOutput
)

_decoder = msgspec.msgpack.Decoder(list[NodeMessage])
_encoder = msgspec.msgpack.Encoder()


def encode_messages(messages: Sequence[NodeMessage]) -> bytes:
    """Encode messages for one call."""
    return _encoder.encode(messages)


def decode_messages(body: bytes) -> list[NodeMessage]:
    """Decode the messages of one call."""
    return _decoder.decode(body)
