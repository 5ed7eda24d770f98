"""Grid search: every combination of all options and of evenly spaced points.

Rule: a choice contributes all its options, a continuous dimension `points` evenly spaced values. An
option that holds domains counts once for each combination of these.

With `others="drawn"` only `grid` domains are combined, and all other domains are drawn at random,
as in Ray Tune. Where the budget has more trials than the grid has points, the grid is gone through
again with other draws.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Literal

from paceline.core.base_part import BasePart
from paceline.core.errors import SpecError
from paceline.core.ports import see_nothing
from paceline.core.rng import stream
from paceline.core.space import Dimension, Space
from paceline.generators.initial import InitialConfigs
from paceline.generators.prefix_order import find_start_epoch

if TYPE_CHECKING:
    from paceline.core.values import Config, Value
    from paceline.core.views import StudyView


class Grid(BasePart):
    """The n-th config is the n-th combination, after the complete configs of `first`.

    The dimension that takes effect latest varies fastest, so that trials with a shared prefix
    follow each other.
    """

    from_study = ("space",)
    pure = True
    see = staticmethod(see_nothing)

    def __init__(
        self,
        *,
        space: dict[str, Any] | None = None,
        points: int = 5,
        others: Literal["points", "drawn"] = "points",
        first: list[dict[str, Any]] | None = None,
    ) -> None:
        if points < 1:
            raise SpecError(f"points={points} is invalid: must be at least 1.")
        space = space or {}
        self._space = Space(space)
        self._draws = others == "drawn"
        self._first = InitialConfigs(self._space, first, whole=not self._draws)
        dimensions = self._space.dimensions
        if self._draws:
            dimensions = list_grids(self._space)
        self._values = {each.name: _list_values(each, points) for each in dimensions}
        # By option of a choice, the names of its dimensions; None holds the top-level dimensions.
        self._under: dict[tuple[str, int] | None, list[str]] = {None: []}
        for dimension in sorted(dimensions, key=lambda each: find_start_epoch(each, space)):
            self._under.setdefault(dimension.under, []).append(dimension.name)
        # The policy may choose among those after the first, unless prefixes are shared.
        shares = any(find_start_epoch(each, space) for each in dimensions)
        self.ordered = None if shares else len(self._first)
        self._branching = {under[0] for under in self._under if under is not None}

    def propose(self, number: int, study: StudyView) -> Config | None:
        values: dict[str, Value] = self._draw_others(number, study) if self._draws else {}
        if number < len(self._first):
            return self._first.make_config(number, lambda dimension: values[dimension.name])
        top = self._under[None]
        round_, number = divmod(number - len(self._first), self._count(top))
        if round_ and not (self._draws and _has_limit(study)):
            return None
        self._pick(number, top, values)
        return self._space.fill(lambda dimension: values[dimension.name])

    def count_left(self, number: int, study: StudyView) -> int | None:
        """Return how many configs are left from this number on; None: other draws follow."""
        if self._draws and _has_limit(study):
            return None
        return max(0, len(self._first) + self._count(self._under[None]) - number)

    def _draw_others(self, number: int, study: StudyView) -> dict[str, Value]:
        """Return a draw for each dimension; those of the grid are replaced."""
        rng = stream(study.spec.seed, "config", number)
        return {each.name: each.at(rng.random()) for each in self._space.dimensions}

    def _count(self, names: list[str]) -> int:
        """Return the number of combinations of these dimensions and of those under them."""
        return prod(sum(self._sizes(name)) for name in names)

    def _sizes(self, name: str) -> list[int]:
        """Return the number of combinations under each option of a choice, or of all values."""
        count = len(self._values[name])
        if name not in self._branching:
            return [count]
        return [self._count(self._under.get((name, option), [])) for option in range(count)]

    def _pick(self, number: int, names: list[str], values: dict[str, Value]) -> None:
        for name in reversed(names):
            sizes = self._sizes(name)
            number, at = divmod(number, sum(sizes))
            if name not in self._branching:
                values[name] = self._values[name][at]
                continue
            option = 0
            while at >= sizes[option]:
                at -= sizes[option]
                option += 1
            values[name] = self._values[name][option]
            self._pick(at, self._under.get((name, option), []), values)


def list_grids(space: Space) -> list[Dimension]:
    """Return the `grid` domains that every combination has, or that an option of another has."""
    grids: dict[str, Dimension] = {}
    for each in space.dimensions:
        if each.kind == "grid" and (each.under is None or each.under[0] in grids):
            grids[each.name] = each
    return list(grids.values())


def _has_limit(study: StudyView) -> bool:
    """Return whether something other than the grid ends the study."""
    budget = study.spec.budget
    limits = (study.deadline_s, budget.trials, budget.target, budget.slot_seconds)
    return any(limit is not None for limit in limits)


def _list_values(dimension: Dimension, points: int) -> list[Value]:
    if dimension.options is not None:
        return list(dimension.options)
    ends = [0.5] if points == 1 else [point / (points - 1) for point in range(points)]
    values: list[Value] = []
    for share in ends:
        value = dimension.at(share)
        if value not in values:
            values.append(value)
    return values
