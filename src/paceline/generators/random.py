"""Random search: independent draws from the space, the baseline of every comparison.

Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", JMLR 2012. Different from it:
with `order="subtrees"`, draws that share a prefix follow each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from paceline.core.base_part import BasePart
from paceline.core.errors import SpecError
from paceline.core.ports import see_nothing
from paceline.core.rng import stream
from paceline.core.space import Space
from paceline.generators.initial import InitialConfigs
from paceline.generators.prefix_order import find_start_epoch, group_by_prefix

if TYPE_CHECKING:
    from paceline.core.space import Dimension
    from paceline.core.values import Config, Value
    from paceline.core.views import StudyView


# The number of draws that are sorted together if the budget sets no number of trials.
_BLOCK = 64


class Random(BasePart):
    """The n-th config depends only on the study's seed and n; `first` is completed with draws.

    With `order="subtrees"` all draws of the budget, or every 64, are sorted so that draws with a
    common prefix follow each other and the prefix is trained early.
    """

    from_study = ("space",)
    # Without a space every value is drawn when the training function asks for it.
    define_by_run = True
    pure = True
    see = staticmethod(see_nothing)

    def __init__(
        self,
        *,
        space: dict[str, Any] | None = None,
        first: list[dict[str, Any]] | None = None,
        order: Literal["drawn", "subtrees"] = "drawn",
    ) -> None:
        self._draws = None if space is None else _Draws(space, first)
        self._given = first or []
        self._ordered = order == "subtrees"
        if self._draws is None and self._ordered:
            raise SpecError(
                "order='subtrees' sorts configs before they are trained, and this study has no "
                "space to draw them from: give space={…}, or leave the order out."
            )
        # The policy may choose among the draws after the user's configs, unless they are sorted.
        has_order = self._ordered or self._draws is None
        self.ordered = None if has_order else len(self._given)
        # The order of a block: a cache of a pure function, not memory.
        self._block: tuple[tuple[int, int], list[int]] = ((0, -1), [])

    def propose(self, number: int, study: StudyView) -> Config | None:
        draws, seed = self._draws, study.spec.seed
        if draws is None:
            return dict(self._given[number]) if number < len(self._given) else {}
        if self._ordered and number >= len(self._given):
            size = study.spec.budget.trials or _BLOCK
            block, place = divmod(number - len(self._given), size)
            start = block * size + len(self._given)
            number = start + self._get_block_order(draws, seed, start, size)[place]
        return draws.make_config(seed, number)

    def _get_block_order(self, draws: _Draws, seed: int, start: int, size: int) -> list[int]:
        if self._block[0] != (seed, start):
            paths = [draws.describe(seed, number) for number in range(start, start + size)]
            self._block = (seed, start), group_by_prefix(paths)
        return self._block[1]


class _Draws:
    """The draws from one space, by seed and number; the first ones complete given configs."""

    def __init__(self, space: dict[str, Any], first: list[dict[str, Any]] | None) -> None:
        self._space = Space(space)
        self._first = InitialConfigs(self._space, first)
        self._start_epochs = {
            each.name: find_start_epoch(each, space) for each in self._space.dimensions
        }

    def make_config(self, seed: int, number: int) -> Config:
        if number < len(self._first):
            rng = stream(seed, "config", number)
            return self._first.make_config(number, lambda dimension: dimension.at(rng.random()))
        return self._space.config(self._draw_values(seed, number))

    def describe(self, seed: int, number: int) -> list[str]:
        """Return the draw's values as text, for each epoch at which dimensions take effect."""
        drawn: dict[int, list[Value]] = {epoch: [] for epoch in self._start_epochs.values()}
        values = dict(zip(self._start_epochs, self._draw_values(seed, number), strict=True))

        def take(dimension: Dimension) -> Value:
            drawn[self._start_epochs[dimension.name]].append(values[dimension.name])
            return values[dimension.name]

        self._space.fill(take)
        return [repr(drawn[epoch]) for epoch in sorted(drawn)]

    def _draw_values(self, seed: int, number: int) -> list[Value]:
        rng = stream(seed, "config", number)
        return [each.at(rng.random()) for each in self._space.dimensions]
