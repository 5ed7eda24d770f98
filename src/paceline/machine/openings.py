"""Openings: how many new trials a study may still open, by its budget, policy and generator.

Asks the parts; opens nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.ports import Generator, Policy
    from paceline.machine.groups import GroupState


def count_new(group: GroupState, policy: Policy, generator: Generator) -> float:
    """Return how many new trials can still be opened; infinite: there is no limit."""
    if group.closed:
        return 0.0
    limits = [math.inf]
    most, trials = policy.admit(group), group.spec.budget.trials
    if most is not None:
        limits.append(most - group.live)
    if trials is not None:
        limits.append(trials - len(group.trials))
    count_left: Callable[[int, GroupState], int | None] | None
    count_left = getattr(generator, "count_left", None)
    left = None if count_left is None else count_left(len(group.taken), group)
    if left is not None:
        limits.append(left)
    return max(0.0, min(limits))
