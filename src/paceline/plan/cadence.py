"""Checkpoint cadence: when an attempt saves without an order to.

Often enough to bound what a crash costs, and preferably where other trials may branch off. Saves
that a trial needs, or likely will need, are orders and are not decided here.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from paceline.plan.settings import is_constant, list_stretches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.values import Config


# Unordered saves may take one part in SAVE_SHARE of the time. This is the optimal interval, the
# square root of twice the product of save time and time between crashes, for saves of a second
# and a crash every half hour.
SAVE_SHARE = 60.0


def list_likely_branches(config: Config, epochs: int) -> Sequence[int]:
    """Return the epochs after which the config's settings change, and the last epoch.

    Later trials of the same space change their settings at the same epochs, so that is where they
    branch off. Empty if the settings never change: no epoch is likelier than another.
    """
    return () if is_constant(config) else [until for until, _ in list_stretches(config, epochs)]


def is_save_due(
    spent: float, every: float, epoch: int, epoch_s: float, branches: Sequence[int]
) -> bool:
    """Return whether to save after this epoch, `spent` seconds after the last save.

    True once `every` seconds have passed; delayed by up to `every` more seconds to the next likely
    branch: the number of saves is the same, and a trial that branches there retrains nothing.
    """
    if spent < every:
        return False
    at = bisect_left(branches, epoch)
    left = branches[at] - epoch if at < len(branches) else 0
    return left == 0 or left * epoch_s >= every
