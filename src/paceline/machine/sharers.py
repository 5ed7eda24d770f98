"""How many attempts are on each shared slot, and since when."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.core.events import Reported
    from paceline.core.values import SlotId


class Sharers:
    """How many attempts are on each shared slot, and since when their number is the same."""

    def __init__(self) -> None:
        # By slot, the last changes: (time, number from then on).
        self._changes: dict[SlotId, list[tuple[float, int]]] = {}

    def change(self, slot: SlotId, by: int, now: float) -> None:
        """Count an attempt that came to a slot, or left it."""
        changes = self._changes.setdefault(slot, [(-math.inf, 0)])
        number = changes[-1][1] + by
        if changes[-1][0] == now:
            changes.pop()
        # One that came at the moment another left changes nothing for those beside it.
        if not changes or changes[-1][1] != number:
            changes.append((now, number))
        del changes[:-2]

    def have_changed(self, slot: SlotId, epoch: Reported) -> bool:
        """Say whether the number of attempts on this slot has changed during an epoch there."""
        # Clocks differ a little: a change at the very start of an epoch is before it.
        began = epoch.at - epoch.seconds + 0.02 * epoch.seconds
        return began < self._changes[slot][-1][0]
