"""Every combination: all options of listed dimensions, evenly spaced points of continuous ones.

An option that holds domains counts once for each combination of these.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from paceline.core.errors import SpecError
from paceline.core.ports import sees_nothing
from paceline.core.space import Dimension, Space
from paceline.generators.initial import First
from paceline.generators.prefix_order import beginning

if TYPE_CHECKING:
    from paceline.core.values import Config, Value
    from paceline.core.views import StudyView


class Grid:
    """The n-th config is the n-th combination, after those of `first`, which leave nothing out.

    The dimension that is in force latest turns fastest, of several the last: so what trials share
    is finished before the next begins.
    """

    pure = True
    see = staticmethod(sees_nothing)

    def __init__(
        self,
        *,
        space: dict[str, Any],
        points: int = 5,
        first: list[dict[str, Any]] | None = None,
    ) -> None:
        if points < 1:
            raise SpecError(f"points={points} makes an empty grid: give 1 or more.")
        self._space = Space(space)
        self._first = First(self._space, first, whole=True)
        dimensions = self._space.dimensions
        self._axes = {each.name: _axis(each, points) for each in dimensions}
        # Who belongs to an option of a choice, and with None those who belong to none.
        self._under: dict[tuple[str, int] | None, list[str]] = {None: []}
        for dimension in sorted(dimensions, key=lambda each: beginning(each, space)):
            self._under.setdefault(dimension.under, []).append(dimension.name)
        self._branching = {under[0] for under in self._under if under is not None}

    def propose(self, number: int, study: StudyView) -> Config | None:
        values: dict[str, Value] = {}
        if number < len(self._first):
            return self._first.config(number, lambda dimension: values[dimension.name])
        number -= len(self._first)
        top = self._under[None]
        if number >= self._count(top):
            return None
        self._pick(number, top, values)
        return self._space.fill(lambda dimension: values[dimension.name])

    def _count(self, names: list[str]) -> int:
        """Return how many combinations there are of these dimensions and what is under them."""
        return prod(sum(self._sizes(name)) for name in names)

    def _sizes(self, name: str) -> list[int]:
        """Return in how many combinations the options of a choice come; of others, their number."""
        count = len(self._axes[name])
        if name not in self._branching:
            return [count]
        return [self._count(self._under.get((name, option), [])) for option in range(count)]

    def _pick(self, number: int, names: list[str], values: dict[str, Value]) -> None:
        for name in reversed(names):
            sizes = self._sizes(name)
            number, at = divmod(number, sum(sizes))
            if name not in self._branching:
                values[name] = self._axes[name][at]
                continue
            option = 0
            while at >= sizes[option]:
                at -= sizes[option]
                option += 1
            values[name] = self._axes[name][option]
            self._pick(at, self._under.get((name, option), []), values)


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
