"""When an attempt saves though nobody asked it to: often enough, and where others may branch.

Knows seconds and the ends of stretches. What a save costs is for engines to say; the saves that
somebody waits for are orders, and not decided here.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from paceline.plan.settings import constant, stretches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.values import Config


# Of the time that passes, one part in so many may go into saves that nobody asked for: that bounds
# what a crash costs. With saves of a second, and a crash in half an hour, it is the best there is:
# the square root of twice their product.
SAVE_SHARE = 60.0


def likely_branches(config: Config, epochs: int) -> Sequence[int]:
    """Return the epochs after which the config's setting is another, and the last.

    Trials that come later and have learned from the same space change there too, or do not; so
    this is where they part from this one. Empty where nothing changes: one place is like another.
    """
    return () if constant(config) else [until for until, _ in stretches(config, epochs)]


def due(spent: float, every: float, epoch: int, epoch_s: float, branches: Sequence[int]) -> bool:
    """Say whether to save after this epoch, when so much time has passed since the last save.

    Once `every` seconds have passed; later, by less than so many again, where a likely branch
    comes: the same number of saves, and nothing is trained twice for whoever branches there.
    """
    if spent < every:
        return False
    at = bisect_left(branches, epoch)
    left = branches[at] - epoch if at < len(branches) else 0
    return left == 0 or left * epoch_s >= every
