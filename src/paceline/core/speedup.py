"""Speed-ups: how much faster a trial trains on several slots than on one.

Three shapes (linear, Amdahl's law, a table), and how much trials on one slot slow each other
down.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.core.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping


class SpeedUp(Struct, frozen=True):
    """The speed at each width: linear between known points, constant beyond the last."""

    # (width, speed), rising from (1, 1). None for a speed equal to the width.
    points: tuple[tuple[float, float], ...] | None = None
    # Amdahl's parallel share of the work; None if another shape is used.
    parallel: float | None = None
    # The slow-down x per further trial on a slot: epochs of k trials take 1+x(k-1) times as long.
    interference: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.interference < math.inf:
            raise SpecError(f"interference={self.interference:g} is invalid: must be 0 or more.")
        if self.parallel is not None and not 0 <= self.parallel <= 1:
            raise SpecError(f"amdahl:{self.parallel:g} is invalid: must be from 0 to 1.")

    def of(self, width: float) -> float:
        """Return the speed of a trial on `width` whole slots."""
        if self.parallel is not None:
            return 1.0 / ((1.0 - self.parallel) + self.parallel / width)
        if self.points is None:
            return width
        after = bisect_right(self.points, width, key=lambda point: point[0])
        if after == len(self.points):
            return self.points[-1][1]
        (low, slow), (high, fast) = self.points[after - 1], self.points[after]
        return slow + (fast - slow) * (width - low) / (high - low)

    def shared(self, trials: int) -> float:
        """Return the speed of each of several trials on one slot."""
        return 1.0 / (1.0 + self.interference * (trials - 1))


def make_speedup(speeds: Mapping[float, float], interference: float = 0.0) -> SpeedUp:
    """Return the speed-up measured at these widths."""
    points = tuple(sorted(speeds.items()))
    if not points or points[0] != (1.0, 1.0):
        raise SpecError(f"a speed-up table starts with 1=1: {dict(speeds)!r} does not.")
    if not all(0 < speed < math.inf for _, speed in points):
        raise SpecError(f"a speed-up table holds positive speeds: {dict(speeds)!r} does not.")
    return SpeedUp(points, interference=interference)


def parse_speedup(text: str, interference: float = 0.0) -> SpeedUp:
    """Return the speed-up written as `linear`, `amdahl:0.95` or `table:1=1,2=1.87,4=3.42`.

    >>> parse_speedup("table:1=1,2=1.8,4=3").of(3)
    2.4
    """
    kind, _, rest = text.partition(":")
    try:
        if kind == "linear" and not rest:
            return SpeedUp(interference=interference)
        if kind == "amdahl":
            return SpeedUp(parallel=float(rest), interference=interference)
        if kind == "table":
            pairs = (pair.split("=") for pair in rest.split(","))
            return make_speedup(
                {float(width): float(speed) for width, speed in pairs}, interference
            )
    except ValueError:
        pass
    raise SpecError(
        f"speed-up {text!r} cannot be read: write linear, amdahl:0.95, or table:1=1,2=1.87,4=3.42."
    )
