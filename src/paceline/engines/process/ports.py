"""Who makes workers, and the lines to them: what the staff needs, wherever its processes are.

Knows shapes alone. A nest on this machine keeps them with sockets, nests on other machines with
messages that somebody carries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from paceline.core.values import AttemptId, SlotId
    from paceline.engines.process.checkpoint_files import Name
    from paceline.worker.protocol import AnyMessage


class Moved(Struct, frozen=True):
    """Slots have come, or are gone, and why that is."""

    came: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    why: str = ""


class Ground(Protocol):
    """Slots and their devices."""

    @property
    def first(self) -> Sequence[SlotId]:
        """The slots the study begins with."""

    @property
    def watched(self) -> bool:
        """Whether its slots have to be looked after; else what moves is told."""

    @property
    def device(self) -> str:
        """What a training function gives to its framework."""

    def more(self, used: Collection[SlotId], wanted: int) -> Sequence[SlotId]:
        """Return so many further slots, as far as they can be had at once."""

    def less(self, slots: Collection[SlotId]) -> None:
        """Give slots back."""

    def missing(self) -> set[SlotId]:
        """Return the slots whose devices cannot be found any more."""

    def nodes(self, slots: Sequence[SlotId]) -> tuple[str, ...]:
        """Return the node that each slot is on; empty where slots are all alike."""

    def away(self, slot: SlotId) -> Away | None:
        """Return who keeps files where a slot is; None: it sees the study's folder."""

    def threads(self, width: float) -> int:
        """Return how many threads each process of this width may use."""

    def slot_bytes(self, slot: SlotId) -> int:
        """Return what a slot has of memory; 0: nobody knows."""

    def variables(self, slots: Sequence[SlotId], width: float, rank: int) -> dict[str, str]:
        """Return the variables that keep the process of this rank to its own device."""


class Line(Protocol):
    """What is said between the driver and one worker."""

    # The other side is gone.
    closed: bool

    def fileno(self) -> int:
        """Return its number for selectors; below 0: its maker says when there is something."""

    def send(self, message: AnyMessage) -> None:
        """Say something."""

    def arrived(self) -> Iterator[AnyMessage]:
        """Yield what was said."""

    def close(self) -> None:
        """Hang up."""


class Wire(Protocol):
    """What becomes readable when a maker of workers has something to say."""

    # It is gone, and all its workers with it.
    closed: bool

    def fileno(self) -> int:
        """Return its number for selectors."""


class Heard(Struct, frozen=True):
    """Something has arrived from a worker whose line has no number."""

    worker: int


class Maker(Protocol):
    """Who makes workers and knows of their ends: a nest here, or nests on other machines."""

    @property
    def wire(self) -> Wire:
        """What to wait for."""

    def prepare(self, count: int) -> None:
        """Make so many more workers ahead."""

    def hire(self, slots: Sequence[SlotId]) -> Sequence[tuple[int, Line]]:
        """Return a worker for each slot, tied together where they are several."""

    def forget(self, worker: int) -> None:
        """A worker died before it heard what to be."""

    def kill(self, worker: int, number: int) -> None:
        """Send a worker, and whatever it has started, a signal."""

    def words(self) -> Sequence[object]:
        """Return the news: who exited, who was heard, which slots have moved."""

    def revive(self) -> None:
        """Start again after it was killed."""

    def close(self, patience: float) -> None:
        """End all workers."""


class Away(Protocol):
    """A folder that only one node sees."""

    @property
    def checkpoints(self) -> str:
        """Where its workers write checkpoints, as they see it."""

    def log(self, attempt: AttemptId) -> str:
        """Return where an attempt's output goes, as it sees it."""

    def begin(self, worker: int, attempt: AttemptId, source: Name | None, log: Path) -> None:
        """A worker there is this attempt: bring it what it starts from, and here what it prints."""

    def publish(self, name: Name, done: Callable[[str], None]) -> None:
        """Have a checkpoint put into the storage, and say what went wrong, if anything."""

    def drop(self, name: Name) -> None:
        """Delete a checkpoint, where a copy may lie there."""

    def clear(self, attempt: AttemptId) -> None:
        """Delete what an attempt that is gone has left, whole or in part, and never told."""
