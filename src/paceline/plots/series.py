"""Arithmetic of drawn lines: levels over time, averages over bins, curves that stand for many.

Knows numbers and how many of them a screen can show. Does not know what they mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")


class Levels(Struct, frozen=True):
    """Several quantities over time: each level holds from its time to the next.

    The last one holds up to the last time, which has no further level of its own.
    """

    times: Sequence[float]
    # Of each quantity one number fewer than there are times.
    rows: Sequence[Sequence[float]]
    # How long each level is the mean of; None: nothing was averaged.
    bin_s: float | None = None

    def areas(self) -> list[float]:
        """Return the level times time of each quantity."""
        spans = [late - soon for soon, late in pairwise(self.times)]
        return [math.fsum(a * b for a, b in zip(row, spans, strict=True)) for row in self.rows]


def levels(changes: Sequence[Iterable[tuple[float, float]]], until: float) -> Levels:
    """Add up, for each quantity, changes (when, by how much) from 0 at time 0."""
    sums: list[dict[float, float]] = []
    for quantity in changes:
        by_time: dict[float, float] = {}
        for at, by in quantity:
            by_time[at] = by_time.get(at, 0.0) + by
        sums.append(by_time)
    inside = {at for by_time in sums for at in by_time if at < until}
    starts = sorted({0.0, *inside}) if until > 0 else []
    rows = [
        # Shares of slots leave dust when they are added and taken away again.
        [round(level, 9) for level in accumulate(by_time.get(at, 0.0) for at in starts)]
        for by_time in sums
    ]
    return Levels([*starts, until], rows)


def averaged(line: Levels, most: int) -> Levels:
    """Return the levels as at most so many means over equal times; areas stay as they are."""
    count = len(line.times) - 1
    if count <= most:
        return line
    begin, end = line.times[0], line.times[-1]
    edges = [begin + (end - begin) * index / most for index in range(most)] + [end]
    return Levels(edges, means(line, edges), (end - begin) / most)


def means(line: Levels, edges: Sequence[float]) -> list[list[float]]:
    """Return the mean of each quantity between neighbouring edges. Edges rise."""
    rows = []
    for row in line.rows:
        sums = _area_until(line.times, row, edges)
        rows.append(
            [
                (late - soon) / (right - left)
                for (soon, late), (left, right) in zip(pairwise(sums), pairwise(edges), strict=True)
            ]
        )
    return rows


def _area_until(
    times: Sequence[float], row: Sequence[float], edges: Iterable[float]
) -> list[float]:
    """Return the area left of each edge. Edges rise."""
    sums = []
    at, area = 0, 0.0
    for edge in edges:
        while at < len(row) and times[at + 1] <= edge:
            area += row[at] * (times[at + 1] - times[at])
            at += 1
        rest = row[at] * (edge - times[at]) if at < len(row) else 0.0
        sums.append(area + rest)
    return sums


def thinned(values: Sequence[float], most: int) -> list[int]:
    """Return which points to draw: the first, the last, and each stretch's lowest and highest.

    What is not a number is a gap of the curve; of a long gap one point is kept.
    """
    count = len(values)
    if count <= most:
        return list(range(count))
    kept = {0, count - 1}
    stretches = max(1, most // 2 - 1)
    for index in range(stretches):
        span = range(count * index // stretches, count * (index + 1) // stretches)
        numbers = [at for at in span if not math.isnan(values[at])]
        if len(numbers) < len(span):
            kept.add(next(at for at in span if math.isnan(values[at])))
        if numbers:
            kept.add(min(numbers, key=values.__getitem__))
            kept.add(max(numbers, key=values.__getitem__))
    return sorted(kept)


def spread(items: Sequence[T], most: int) -> list[T]:
    """Return so many items, evenly spaced."""
    if len(items) <= most:
        return list(items)
    return [items[len(items) * index // most] for index in range(most)]


def lanes(spans: Sequence[tuple[float, float]]) -> list[int]:
    """Return for each span (in order of their starts) the first lane that is free by then."""
    ends: list[float] = []
    found = []
    for start, end in spans:
        lane = next((at for at, busy_until in enumerate(ends) if busy_until <= start), len(ends))
        if lane == len(ends):
            ends.append(end)
        ends[lane] = end
        found.append(lane)
    return found
