"""What an engine stands on: the slots there are, and what a process on one of them must know.

Knows the shape alone. This machine's devices are one such ground, the nodes of a cluster another;
what comes and goes by itself is told as `Moved`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from paceline.core.values import SlotId
    from paceline.engines.local.away import Away


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
