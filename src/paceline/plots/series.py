"""Arithmetic for figures: levels over time, averages over bins, thinned and sampled curves.

Reduces series to what a screen can show. Does not know what the numbers mean.
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
    # One number fewer than there are times, for each quantity.
    rows: Sequence[Sequence[float]]
    # The length of the bins if the levels are means; else None.
    bin_s: float | None = None

    def areas(self) -> list[float]:
        """Return the integral over time of each quantity."""
        spans = [late - soon for soon, late in pairwise(self.times)]
        return [math.fsum(a * b for a, b in zip(row, spans, strict=True)) for row in self.rows]


def sum_levels(changes: Sequence[Iterable[tuple[float, float]]], until: float) -> Levels:
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
        # Adding and subtracting fractions of slots leaves rounding errors.
        [round(level, 9) for level in accumulate(by_time.get(at, 0.0) for at in starts)]
        for by_time in sums
    ]
    return Levels([*starts, until], rows)


def average_levels(line: Levels, most: int) -> Levels:
    """Return the levels as at most `most` means over equal times; areas do not change."""
    count = len(line.times) - 1
    if count <= most:
        return line
    begin, end = line.times[0], line.times[-1]
    edges = [begin + (end - begin) * index / most for index in range(most)] + [end]
    return Levels(edges, compute_means(line, edges), (end - begin) / most)


def compute_means(line: Levels, edges: Sequence[float]) -> list[list[float]]:
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


def thin_points(values: Sequence[float], most: int) -> list[int]:
    """Return the points to draw: the first, the last, and the lowest and highest of each stretch.

    NaN is a gap in the curve; one point of a long gap is kept.
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


def sample_evenly(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` items, evenly spaced."""
    if len(items) <= most:
        return list(items)
    return [items[len(items) * index // most] for index in range(most)]


def assign_lanes(spans: Sequence[tuple[float, float]]) -> list[int]:
    """Return the first free lane for each span; spans are ordered by start."""
    ends: list[float] = []
    found = []
    for start, end in spans:
        lane = next((at for at, busy_until in enumerate(ends) if busy_until <= start), len(ends))
        if lane == len(ends):
            ends.append(end)
        ends[lane] = end
        found.append(lane)
    return found
