"""Every combination: all options of listed dimensions, evenly spaced points of continuous ones."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from paceline.core.errors import SpecError
from paceline.core.ports import StudyView, sees_nothing
from paceline.core.space import Dimension, Space

if TYPE_CHECKING:
    from paceline.core.values import Config, Value


class Grid:
    """The n-th config is the n-th combination; the last dimension turns fastest."""

    pure = True
    see = staticmethod(sees_nothing)

    def __init__(self, *, space: dict[str, Any], points: int = 5) -> None:
        if points < 1:
            raise SpecError(f"points={points} makes an empty grid: give 1 or more.")
        self._space = Space(space)
        self._axes = [_axis(dimension, points) for dimension in self._space.dimensions]

    def propose(self, number: int, study: StudyView) -> Config | None:
        if number >= prod(len(axis) for axis in self._axes):
            return None
        values: list[Value] = []
        for axis in reversed(self._axes):
            number, at = divmod(number, len(axis))
            values.append(axis[at])
        return self._space.config(values[::-1])


def _axis(dimension: Dimension, points: int) -> list[Value]:
    if dimension.options is not None:
        return list(dimension.options)
    ends = [0.5] if points == 1 else [point / (points - 1) for point in range(points)]
    values: list[Value] = []
    for share in ends:
        value = dimension.at(share)
        if value not in values:
            values.append(value)
    return values
