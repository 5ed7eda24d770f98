"""Which slots there are, who holds them, and where the next attempt fits.

Knows slot numbers, shares, and which slots are on one node. Does not know trials. Lowest numbers
first, so that the same history gives the same slots on every machine.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paceline.core.values import SlotId

# Shares are sums of 1/c: what differs by less than this is equal.
_DUST = 1e-9


class Slots:
    """A slot is present or not, retiring or not, and held up to its whole."""

    def __init__(self) -> None:
        self.present: set[SlotId] = set()
        self.retiring: set[SlotId] = set()
        # The held share of every slot somebody holds, present or not: a slot that vanished is
        # held until its attempt is known to be gone.
        self.held: dict[SlotId, float] = {}
        # Usable slots that nobody holds, and those held in part: both in rising order.
        self.idle: list[SlotId] = []
        self.partial: list[SlotId] = []
        # Where each is; empty where they are all alike.
        self.nodes: dict[SlotId, str] = {}

    @property
    def capacity(self) -> int:
        """Slots that may be used."""
        return len(self.present) - len(self.retiring)

    @property
    def free(self) -> float:
        """What is not held of the slots that may be used."""
        if not self.partial:
            return float(len(self.idle))
        return len(self.idle) + sum(1.0 - self.held[slot] for slot in self.partial)

    def change(self, slots: Sequence[SlotId], nodes: Sequence[str] = ()) -> None:
        """These are the slots there are now, and the nodes that they are on."""
        self.present = set(slots)
        self.nodes = dict(zip(slots, nodes, strict=False))
        self.retiring &= self.present
        self._sort()

    def retire(self, slots: Iterable[SlotId]) -> None:
        """Use these no more; drop each as soon as nobody holds it."""
        self.retiring |= self.present & set(slots)
        for slot in [slot for slot in self.retiring if slot not in self.held]:
            self._drop(slot)
        self._sort()

    def find(self, width: float, near: str = "") -> tuple[SlotId, ...] | None:
        """Return where an attempt of this width fits now, or None; where it may, on this node."""
        if width < 1.0:
            for slot in [*self._on(near, self.partial), *self.partial]:
                if self.held[slot] + width <= 1.0 + _DUST:
                    return (slot,)
        count = max(1, int(width))
        for idle in (self._on(near, self.idle), self.idle):
            if len(idle) >= count:
                return tuple(idle[:count])
        return None

    def share(self, slots: Sequence[SlotId], width: float) -> float:
        """Return what a holder of this width really has: all of a slot, where no other is on it."""
        if width >= 1.0:
            return width
        return 1.0 / max(1, round(self.held[slots[0]] / width))

    def take(self, slots: Sequence[SlotId], width: float) -> None:
        """Hold these slots: each whole, or the one by a share."""
        share = min(width, 1.0)
        for slot in slots:
            before = self.held.get(slot, 0.0)
            self.held[slot] = before + share
            if before == 0.0:
                _remove(self.idle, slot)
                if share < 1.0:
                    insort(self.partial, slot)
            elif before + share >= 1.0 - _DUST:
                _remove(self.partial, slot)

    def release(self, slots: Sequence[SlotId], width: float) -> None:
        """Hold them no more."""
        share = min(width, 1.0)
        for slot in slots:
            left = self.held[slot] - share
            usable = slot in self.present and slot not in self.retiring
            if left > _DUST:
                if usable and self.held[slot] >= 1.0 - _DUST:
                    insort(self.partial, slot)
                self.held[slot] = left
                continue
            del self.held[slot]
            if share < 1.0:
                _remove(self.partial, slot)
            if usable:
                insort(self.idle, slot)
            elif slot in self.retiring:
                self._drop(slot)

    def _on(self, node: str, slots: list[SlotId]) -> list[SlotId]:
        return [slot for slot in slots if self.nodes.get(slot) == node] if node else []

    def _drop(self, slot: SlotId) -> None:
        self.present.discard(slot)
        self.retiring.discard(slot)

    def _sort(self) -> None:
        usable = sorted(self.present - self.retiring)
        self.idle = [slot for slot in usable if slot not in self.held]
        self.partial = [slot for slot in usable if self.held.get(slot, 1.0) < 1.0 - _DUST]


def _remove(slots: list[SlotId], slot: SlotId) -> None:
    at = bisect_left(slots, slot)
    if at < len(slots) and slots[at] == slot:
        del slots[at]
