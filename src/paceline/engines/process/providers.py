"""Ports of the process engine: devices, worker pool, channels to workers, files on other nodes.

Knows shapes alone. On one machine the workers come from a fork server and the channels are sockets;
on a Ray cluster both go through an agent on each node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec import Struct

from paceline.core.values import AttemptId, SlotId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from paceline.worker.forkserver_protocol import WorkerExited
    from paceline.worker.protocol import AnyMessage

# A checkpoint: the attempt that saved it, and the epoch.
CheckpointKey: TypeAlias = tuple[AttemptId, int]


class SlotsChanged(Struct, frozen=True):
    """Slots came or are gone, and why."""

    came: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    why: str = ""


class CheckpointPublished(Struct, frozen=True, tag="published"):
    """A checkpoint is in the storage; with a note, the upload failed and the note says why."""

    name: CheckpointKey
    note: str = ""


class Devices(Protocol):
    """Slots and the devices behind them."""

    @property
    def initial_slots(self) -> Sequence[SlotId]:
        """The slots the study begins with."""

    @property
    def needs_watching(self) -> bool:
        """Whether the engine must look for devices that disappear; else the pool reports it."""

    @property
    def device(self) -> str:
        """The device name a training function gives to its framework: `cpu` or `cuda`."""

    def more(self, used: Collection[SlotId], wanted: int) -> Sequence[SlotId]:
        """Return up to `wanted` further slots that are available at once."""

    def give_back(self, slots: Collection[SlotId]) -> None:
        """Give slots back."""

    def missing(self) -> set[SlotId]:
        """Return the slots of devices that have disappeared."""

    def nodes(self, slots: Sequence[SlotId]) -> tuple[str, ...]:
        """Return the node of each slot; empty where all slots are on one machine."""

    def node_files(self, slot: SlotId) -> NodeFiles | None:
        """Return the files of the slot's node; None: the node sees the study's folder."""

    def threads(self, width: float) -> int:
        """Return how many threads each process of this width may use."""

    def slot_bytes(self, slot: SlotId) -> int:
        """Return the memory of a slot in bytes; 0 if unknown."""

    def variables(self, slots: Sequence[SlotId], width: float, rank: int) -> dict[str, str]:
        """Return the environment variables that confine the process of this rank to its device."""


class WorkerChannel(Protocol):
    """Messages between the driver and one worker."""

    # The other side is gone.
    closed: bool

    def fileno(self) -> int:
        """Return the descriptor to select on; below 0: the pool's `poll` returns the messages."""

    def send(self, message: AnyMessage) -> None:
        """Send a message."""

    def read_messages(self) -> Iterable[AnyMessage]:
        """Read once and return the complete messages."""

    def close(self) -> None:
        """Close the channel."""


# What a pool reports: a message of a worker, by the worker's number; an exit; changes of slots; a
# finished upload of a node.
PoolEvent: TypeAlias = "tuple[int, AnyMessage] | WorkerExited | SlotsChanged | CheckpointPublished"


class WorkerPool(Protocol):
    """Starts workers and reports their exits."""

    # Whether workers are in the driver's process.
    shares_process: bool

    @property
    def closed(self) -> bool:
        """Whether the pool's process is gone, and every worker with it."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when `poll` has something to return."""

    def prepare(self, count: int) -> None:
        """Start workers ahead of time."""

    def acquire(self, slots: Sequence[SlotId]) -> Sequence[tuple[int, WorkerChannel]]:
        """Return a worker for each slot; several are linked to each other as a gang."""

    def discard(self, worker: int) -> None:
        """Forget a worker that exited before it was given an attempt."""

    def kill(self, worker: int, number: int) -> None:
        """Send a signal to a worker and to every process it has started."""

    def poll(self) -> Sequence[PoolEvent]:
        """Return what happened since the last call."""

    def restart(self) -> None:
        """Start again after the pool's process was killed."""

    def close(self, timeout_s: float) -> None:
        """End all workers."""


class NodeFiles(Protocol):
    """A folder that only one node sees."""

    @property
    def checkpoints(self) -> str:
        """The folder its workers write checkpoints to, as a path on the node."""

    def log(self, attempt: AttemptId) -> str:
        """Return the file of an attempt's output, as a path on the node."""

    def start_attempt(
        self, worker: int, attempt: AttemptId, source: CheckpointKey | None, log: Path
    ) -> None:
        """Give a worker there its attempt: fetch its checkpoint, and bring its output to `log`."""

    def publish(self, name: CheckpointKey) -> None:
        """Put a checkpoint into the storage; the pool reports CheckpointPublished."""

    def drop(self, name: CheckpointKey) -> None:
        """Delete the node's copy of a checkpoint, if there is one."""

    def clear(self, attempt: AttemptId) -> None:
        """Delete the unpublished checkpoints of an attempt that has ended."""
