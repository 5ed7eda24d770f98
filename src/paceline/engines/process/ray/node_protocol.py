"""What the driver and a node say to each other, many words in one call.

Knows every word and how a list of them travels. What is said to a worker, and by it, passes through
as the bytes of its channel: nobody on the way reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import Struct

from paceline.worker.forkserver_protocol import Exited, Kill

if TYPE_CHECKING:
    from collections.abc import Sequence


class Hire(Struct, frozen=True, tag="hire"):
    """Have these workers, tied together where they are several; all of them on this node."""

    workers: tuple[int, ...]


class Lead(Struct, frozen=True, tag="lead"):
    """Have these workers, the first of them as the leader of a gang that is on other nodes too."""

    gang: int
    # By rank; those on other nodes are to come through a door that only who has the key finds open.
    workers: dict[int, int]
    size: int
    key: str


class Join(Struct, frozen=True, tag="join"):
    """Have these workers, by rank, and tie them to their leader behind this door."""

    workers: dict[int, int]
    host: str
    port: int
    key: str


class Said(Struct, frozen=True, tag="said"):
    """Bytes of a worker's channel, to it or from it."""

    worker: int
    body: bytes


class Door(Struct, frozen=True, tag="door"):
    """Where a gang's leader waits for the others."""

    gang: int
    host: str
    port: int


class Leave(Struct, frozen=True, tag="leave"):
    """A GPU is given back: end what was started to share it."""

    gpu: str


# Where a node keeps files on a disk of its own


class Settle(Struct, frozen=True, tag="settle"):
    """This worker is this attempt, and starts from this checkpoint: bring it where it is not."""

    worker: int
    attempt: int
    source: tuple[int, int] | None


class Publish(Struct, frozen=True, tag="publish"):
    """Put a checkpoint that was written here into the storage."""

    name: tuple[int, int]


class Kept(Struct, frozen=True, tag="kept"):
    """What came of that: nothing to say, or what went wrong."""

    name: tuple[int, int]
    note: str


class Drop(Struct, frozen=True, tag="drop"):
    """Delete a checkpoint here."""

    name: tuple[int, int]


class Clear(Struct, frozen=True, tag="clear"):
    """Delete what an attempt that is gone has left here."""

    attempt: int


class Printed(Struct, frozen=True, tag="printed"):
    """What an attempt has printed by the end of one of its processes, or the end of it."""

    attempt: int
    body: bytes


AtHome: TypeAlias = Publish | Drop | Clear
AnyWord: TypeAlias = (
    Hire | Lead | Join | Said | Kill | Exited | Door | Leave | Settle | AtHome | Kept | Printed
)

_decoder = msgspec.msgpack.Decoder(list[AnyWord])
_encoder = msgspec.msgpack.Encoder()


def packed(words: Sequence[AnyWord]) -> bytes:
    """Return words as they travel."""
    return _encoder.encode(words)


def unpacked(body: bytes) -> list[AnyWord]:
    """Return the words that arrived."""
    return _decoder.decode(body)
