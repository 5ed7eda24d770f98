"""Water-filling: slots in proportion to work, so that all who run come to their goals together.

Knows works, a number of slots, and what a width is worth. Does not know trials, or who runs.
The rule is Fluid's (Yu et al., MLSys 2021): w = min(max(floor(h / sum h * n), 1/c), d). Where it
is silent: if that is more than there is, the longest are served first and the shortest wait;
what is left over goes, a step at a time, to whoever would be last.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# A step that makes a trial less than this much faster is not worth a slot.
_FASTER = 1.02


# Shares are sums of 1/c: what is less than this is nothing.
_DUST = 1e-9


class Vessel(NamedTuple):
    """What there is to fill: slots, and how far one may be split or joined."""

    slots: int
    # The least width there is, 1/c where c may share a slot, and the greatest.
    least: float
    span: int
    speed: Callable[[float], float]

    def used(self, widths: Sequence[float]) -> int:
        """Return the slots that these widths take: shares are put together."""
        whole = sum(int(width) for width in widths if width >= 1.0)
        return whole + _slots(sum(width for width in widths if width < 1.0))


def fill(works: Sequence[float], vessel: Vessel, needs: Sequence[float] = ()) -> list[float]:
    """Return a width for each work, in order, no less than its need; 0 has to wait.

    >>> fill([30, 1, 1, 8], Vessel(slots=5, least=0.5, span=4, speed=lambda width: width))
    [3.0, 0.5, 0.5, 1.0]
    """
    total = math.fsum(works)
    widths = [0.0] * len(works)
    leasts = [max(vessel.least, need) for need in needs or widths]
    whole, shares = 0, 0.0
    for at in sorted(range(len(works)), key=lambda at: (-works[at], at)):
        fair = math.floor(works[at] / total * vessel.slots + 1e-9) if total > 0 else 0
        width = max(min(float(fair), float(vessel.span)), leasts[at])
        more = (whole + int(width), shares) if width >= 1.0 else (whole, shares + width)
        if more[0] + _slots(more[1]) > vessel.slots:
            continue  # a shorter one may still find a share of a slot
        whole, shares = more
        widths[at] = width
    filled = deal(works, widths, vessel)
    whole_each = [max(1.0, least) for least in leasts]
    if vessel.used(whole_each) > vessel.slots:
        return filled
    # The rule rounds down: where everybody can have a slot, dealing from there may end sooner.
    slot_each = deal(works, whole_each, vessel)
    return min(filled, slot_each, key=lambda widths: (0.0 in widths, last(works, widths, vessel)))


def deal(works: Sequence[float], widths: Sequence[float], vessel: Vessel) -> list[float]:
    """Return the widths with what is left over given to those who would be last, step by step."""
    dealt = list(widths)
    whole = sum(int(width) for width in dealt if width >= 1.0)
    shares = sum(width for width in dealt if width < 1.0)
    queue = [
        (-works[at] / vessel.speed(width), at)
        for at, width in enumerate(dealt)
        if 0.0 < width < vessel.span
    ]
    heapify(queue)
    while queue:
        _, at = heappop(queue)
        width = dealt[at]
        wider = 1.0 if width < 1.0 else width + 1.0
        more = (whole + 1, shares - (width if width < 1.0 else 0.0))
        if more[0] + _slots(more[1]) > vessel.slots:
            continue  # one who shares a slot may fit where one who spans several does not
        if vessel.speed(wider) < _FASTER * vessel.speed(width):
            continue
        whole, shares = more
        dealt[at] = wider
        if wider < vessel.span:
            heappush(queue, (-works[at] / vessel.speed(wider), at))
    return dealt


def _slots(shares: float) -> int:
    """Return the slots that shares of this sum take."""
    return math.ceil(shares - _DUST)


def last(works: Sequence[float], widths: Sequence[float], vessel: Vessel) -> float:
    """Return when the last of those who have a width would come to its goal."""
    return max(
        (
            work / vessel.speed(width)
            for work, width in zip(works, widths, strict=True)
            if width > 0.0
        ),
        default=0.0,
    )
