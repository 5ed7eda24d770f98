"""Who makes workers, and the lines to them: what the staff needs, wherever its processes are.

Knows shapes alone. A nest on this machine keeps them with sockets, nests on other machines with
messages that somebody carries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paceline.core.values import SlotId
    from paceline.worker.channel import AnyMessage


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
