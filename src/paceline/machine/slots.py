"""Slots: which are present, how much of each is held, and where the next attempt fits.

Knows slot numbers, shares, and the node of each slot. Does not know trials. The lowest numbers come
first, so that the same history gives the same slots on every machine.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paceline.core.values import SlotId

# Shares are sums of 1/c: a smaller difference is a rounding error.
_TOLERANCE = 1e-9


class Slots:
    """Each slot is present or not, retiring or not, and held in part or as a whole."""

    def __init__(self) -> None:
        self.present: set[SlotId] = set()
        self.retiring: set[SlotId] = set()
        # Slots that may be used.
        self.capacity = 0
        # The held share of each held slot, present or not: a slot that vanished is held until its
        # attempt has ended.
        self.held: dict[SlotId, float] = {}
        # Usable slots that are not held, and those held in part: both in rising order.
        self.idle: list[SlotId] = []
        self.partial: list[SlotId] = []
        # The node of each slot; empty if nodes make no difference.
        self.nodes: dict[SlotId, str] = {}

    @property
    def free(self) -> float:
        """The share of the usable slots that is not held, in slots."""
        if not self.partial:
            return float(len(self.idle))
        return len(self.idle) + sum(1.0 - self.held[slot] for slot in self.partial)

    def set_slots(self, slots: Sequence[SlotId], nodes: Sequence[str] = ()) -> None:
        """Replace the slots and their nodes."""
        self.present = set(slots)
        self.nodes = dict(zip(slots, nodes, strict=False))
        self.retiring &= self.present
        self._sort()

    def retire(self, slots: Iterable[SlotId]) -> None:
        """Stop using these slots; remove each as soon as it is not held."""
        self.retiring |= self.present & set(slots)
        for slot in [slot for slot in self.retiring if slot not in self.held]:
            self._drop(slot)
        self._sort()

    def find(self, width: float, near: str = "") -> tuple[SlotId, ...] | None:
        """Return slots for an attempt of this width, if possible on this node; None: none fit."""
        if width == 1.0 and not near:  # by far the most common
            return (self.idle[0],) if self.idle else None
        if width < 1.0:
            return self.find_share(width, near, spread=False)
        count = max(1, int(width))
        for idle in (self._on(near, self.idle), self.idle):
            if len(idle) >= count:
                return tuple(idle[:count])
        return None

    def find_share(
        self, width: float, near: str = "", *, spread: bool, kept: SlotId | None = None
    ) -> tuple[SlotId, ...] | None:
        """Return the slot for an attempt with a share of one, but not `kept`; None: none has room.

        Spread, an idle slot comes first; else a shared one does. Of several, that with the fewest
        attempts.
        """
        room = [
            slot
            for slot in self.partial
            if self.held[slot] + width <= 1.0 + _TOLERANCE and slot != kept
        ]
        for slots in (self.idle, room) if spread else (room, self.idle):
            if slots:
                return (min(slots, key=lambda slot: self._rank_share(slot, near)),)
        return None

    def _rank_share(self, slot: SlotId, near: str) -> tuple[bool, float, SlotId]:
        # Rounded: sums of shares differ in their last digits.
        return self.nodes.get(slot) != near, round(self.held.get(slot, 0.0), 6), slot

    def share(self, slots: Sequence[SlotId], width: float) -> float:
        """Return the actual share of an attempt of this width: a whole slot if it is alone."""
        if width >= 1.0:
            return width
        return 1.0 / max(1, round(self.held[slots[0]] / width))

    def take(self, slots: Sequence[SlotId], width: float) -> None:
        """Hold these slots: each as a whole, or a share of the only one."""
        share = width if width < 1.0 else 1.0
        for slot in slots:
            before = self.held.get(slot, 0.0)
            self.held[slot] = before + share
            if before == 0.0:
                _remove(self.idle, slot)
                if share < 1.0:
                    insort(self.partial, slot)
            elif before + share >= 1.0 - _TOLERANCE:
                _remove(self.partial, slot)

    def release(self, slots: Sequence[SlotId], width: float) -> None:
        """Release these slots."""
        share = width if width < 1.0 else 1.0
        for slot in slots:
            left = self.held[slot] - share
            usable = slot in self.present and slot not in self.retiring
            if left > _TOLERANCE:
                if usable and self.held[slot] >= 1.0 - _TOLERANCE:
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
        self.capacity = len(self.present) - len(self.retiring)

    def _sort(self) -> None:
        usable = sorted(self.present - self.retiring)
        self.capacity = len(usable)
        self.idle = [slot for slot in usable if slot not in self.held]
        self.partial = [slot for slot in usable if self.held.get(slot, 1.0) < 1.0 - _TOLERANCE]


def _remove(slots: list[SlotId], slot: SlotId) -> None:
    at = bisect_left(slots, slot)
    if at < len(slots) and slots[at] == slot:
        del slots[at]
