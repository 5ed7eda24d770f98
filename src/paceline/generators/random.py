"""Independent draws from the space: the honest baseline, and hard to beat in many dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from paceline.core.ports import sees_nothing
from paceline.core.rng import stream
from paceline.core.space import Space
from paceline.generators.initial import First
from paceline.generators.prefix_order import beginning, neighbours_first

if TYPE_CHECKING:
    from paceline.core.space import Dimension
    from paceline.core.values import Config, Value
    from paceline.core.views import StudyView


# Draws that are put in order together where nobody says how many trials there will be.
_BLOCK = 64


class Random:
    """The n-th config depends on the study's seed and n alone. What `first` leaves out is drawn.

    In the order `subtrees` all draws of the budget, else each 64, are put in order: those that
    begin alike follow each other, so that what they share is finished early.
    """

    pure = True
    see = staticmethod(sees_nothing)

    def __init__(
        self,
        *,
        space: dict[str, Any],
        first: list[dict[str, Any]] | None = None,
        order: Literal["drawn", "subtrees"] = "drawn",
    ) -> None:
        self._space = Space(space)
        self._first = First(self._space, first)
        self._ordered = order == "subtrees"
        self._beginnings = {each.name: beginning(each, space) for each in self._space.dimensions}
        # The order of a block: a cache of pure arithmetic, no memory.
        self._block: tuple[tuple[int, int], list[int]] = ((0, -1), [])

    def propose(self, number: int, study: StudyView) -> Config | None:
        seed = study.spec.seed
        if number < len(self._first):
            rng = stream(seed, "config", number)
            return self._first.config(number, lambda dimension: dimension.at(rng.random()))
        if self._ordered:
            size = study.spec.budget.trials or _BLOCK
            block, place = divmod(number - len(self._first), size)
            start = block * size + len(self._first)
            number = start + self._order(seed, start, size)[place]
        return self._space.config(self._values(seed, number))

    def _values(self, seed: int, number: int) -> list[Value]:
        rng = stream(seed, "config", number)
        return [each.at(rng.random()) for each in self._space.dimensions]

    def _order(self, seed: int, start: int, size: int) -> list[int]:
        if self._block[0] != (seed, start):
            ways = [self._way(seed, number) for number in range(start, start + size)]
            self._block = (seed, start), neighbours_first(ways)
        return self._block[1]

    def _way(self, seed: int, number: int) -> list[str]:
        """Return what a draw is like from each epoch on at which something may change."""
        drawn: dict[int, list[Value]] = {epoch: [] for epoch in self._beginnings.values()}
        values = dict(zip(self._beginnings, self._values(seed, number), strict=True))

        def take(dimension: Dimension) -> Value:
            drawn[self._beginnings[dimension.name]].append(values[dimension.name])
            return values[dimension.name]

        self._space.fill(take)
        return [repr(drawn[epoch]) for epoch in sorted(drawn)]
