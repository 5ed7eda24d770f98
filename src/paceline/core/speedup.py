"""Speed-ups: how much faster a trial trains on several slots than on one.

Three shapes (linear, Amdahl's law, a table), and how much trials on one slot slow each other
down: by one number, or by the entries of the table below one slot.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.core.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class SpeedUp(Struct, frozen=True):
    """The speed at each width: linear between known points, constant beyond the last."""

    # (width, speed) with rising widths, among them (1, 1). None for a speed equal to the width.
    # Widths below 1 are of shared slots: 1/k if k trials are on it.
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
        return width if self.points is None else _interpolate(self.points, width)

    def shared(self, trials: int) -> float:
        """Return the speed of each of several trials on one slot."""
        if self.has_shares and trials > 1:
            assert self.points is not None
            return _interpolate(self.points, 1.0 / trials)
        return 1.0 / (1.0 + self.interference * (trials - 1))

    @property
    def has_shares(self) -> bool:
        """Whether its table has the speeds of trials that share a slot."""
        return self.points is not None and self.points[0][0] < 1.0

    def __str__(self) -> str:
        """Return it as `parse_speedup` reads it, without the interference.

        >>> str(make_speedup({0.5: 0.8, 1: 1, 2: 1.9}))
        'table:1/2=0.8,1=1,2=1.9'
        """
        if self.parallel is not None:
            return f"amdahl:{self.parallel!r}"
        if self.points is None:
            return "linear"
        entries = (f"{_format_width(width)}={speed!r}" for width, speed in self.points)
        return "table:" + ",".join(entries)


def _interpolate(points: tuple[tuple[float, float], ...], width: float) -> float:
    """Return the speed at a width: linear between points, constant beyond the last.

    Below the first point, trials on one slot train as much in total as there.
    """
    after = bisect_right(points, width, key=lambda point: point[0])
    if after == len(points):
        return points[-1][1]
    if not after:
        return points[0][1] * width / points[0][0]
    (low, slow), (high, fast) = points[after - 1], points[after]
    return slow + (fast - slow) * (width - low) / (high - low)


def _format_width(width: float) -> str:
    return f"{width:g}" if width >= 1.0 else f"1/{round(1.0 / width)}"


def make_speedup(speeds: Mapping[float, float], interference: float = 0.0) -> SpeedUp:
    """Return the speed-up measured at these widths."""
    points = tuple(sorted(speeds.items()))
    if (1.0, 1.0) not in points:
        raise SpecError(f"a speed-up table has the entry 1=1: {dict(speeds)!r} has not.")
    if not all(0 < speed < math.inf for _, speed in points):
        raise SpecError(f"a speed-up table holds positive speeds: {dict(speeds)!r} does not.")
    if interference and points[0][0] < 1.0:
        raise SpecError(
            f"the speed-up table has the speeds of trials that share a slot, so interference="
            f"{interference:g} cannot act: leave one of them out."
        )
    return SpeedUp(points, interference=interference)


def parse_speedup(text: str | None, interference: float | None = None) -> SpeedUp:
    """Return the speed-up written as `linear`, `amdahl:0.95` or `table:1=1,2=1.87,4=3.42`.

    Without one it is linear, and without interference trials on one slot do not slow down.

    A table may have shares of a slot, too: `table:1/2=0.8,1=1` if two trials on one slot train at
    0.8 of the speed of one.

    >>> parse_speedup("table:1=1,2=1.8,4=3").of(3)
    2.4
    """
    kind, _, rest = (text or "linear").partition(":")
    interference = interference or 0.0
    try:
        if kind == "linear" and not rest:
            return SpeedUp(interference=interference)
        if kind == "amdahl":
            return SpeedUp(parallel=float(rest), interference=interference)
        if kind == "table":
            return make_speedup(_parse_table(rest), interference)
    except SpecError:
        raise
    except ValueError:
        pass
    raise SpecError(
        f"speed-up {text!r} cannot be read: write linear, amdahl:0.95, or table:1=1,2=1.87,4=3.42."
    )


def _parse_table(text: str) -> dict[float, float]:
    pairs = (pair.split("=") for pair in text.split(","))
    return {_parse_width(width): float(speed) for width, speed in pairs}


def _parse_width(text: str) -> float:
    whole, slash, trials = text.partition("/")
    width = float(whole) / int(trials) if slash else float(whole)
    if not 0.0 < width < math.inf:
        raise ValueError(text)
    return width


class WidthSpeed(Struct, frozen=True, gc=False):
    """The speed of trials at a width, relative to one slot alone."""

    # A number of slots, or 1/k if k trials are on one slot.
    width: float
    speed: float
    # The epochs that it was measured by; 0: it was assumed.
    epochs: int = 0


def format_speeds(speeds: Iterable[WidthSpeed]) -> str:
    """Return speeds as a list.

    >>> format_speeds([WidthSpeed(0.5, 0.714, 20), WidthSpeed(2, 1.89)])
    '0.714 with 2 trials on a slot, 1.89 on 2 slots (assumed)'
    """
    return ", ".join(
        f"{each.speed:.3g} "
        + (
            f"on {each.width:g} slots"
            if each.width > 1.0
            else f"with {round(1.0 / each.width)} trials on a slot"
        )
        + ("" if each.epochs else " (assumed)")
        for each in speeds
    )
