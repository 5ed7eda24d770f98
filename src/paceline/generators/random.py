"""Random search: independent draws from the space, the baseline of every comparison.

Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", JMLR 2012. Different from it:
with `order="subtrees"`, draws that share a prefix follow each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from paceline.core.base_part import BasePart
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
    pure = True
    see = staticmethod(see_nothing)

    def __init__(
        self,
        *,
        space: dict[str, Any] | None = None,
        first: list[dict[str, Any]] | None = None,
        order: Literal["drawn", "subtrees"] = "drawn",
    ) -> None:
        space = space or {}
        self._space = Space(space)
        self._first = InitialConfigs(self._space, first)
        self._ordered = order == "subtrees"
        self._start_epochs = {
            each.name: find_start_epoch(each, space) for each in self._space.dimensions
        }
        # The order of a block: a cache of a pure function, not memory.
        self._block: tuple[tuple[int, int], list[int]] = ((0, -1), [])

    def propose(self, number: int, study: StudyView) -> Config | None:
        seed = study.spec.seed
        if number < len(self._first):
            rng = stream(seed, "config", number)
            return self._first.make_config(number, lambda dimension: dimension.at(rng.random()))
        if self._ordered:
            size = study.spec.budget.trials or _BLOCK
            block, place = divmod(number - len(self._first), size)
            start = block * size + len(self._first)
            number = start + self._get_block_order(seed, start, size)[place]
        return self._space.config(self._draw_values(seed, number))

    def _draw_values(self, seed: int, number: int) -> list[Value]:
        rng = stream(seed, "config", number)
        return [each.at(rng.random()) for each in self._space.dimensions]

    def _get_block_order(self, seed: int, start: int, size: int) -> list[int]:
        if self._block[0] != (seed, start):
            paths = [self._describe_draw(seed, number) for number in range(start, start + size)]
            self._block = (seed, start), group_by_prefix(paths)
        return self._block[1]

    def _describe_draw(self, seed: int, number: int) -> list[str]:
        """Return the draw's values as text, for each epoch at which dimensions take effect."""
        drawn: dict[int, list[Value]] = {epoch: [] for epoch in self._start_epochs.values()}
        values = dict(zip(self._start_epochs, self._draw_values(seed, number), strict=True))

        def take(dimension: Dimension) -> Value:
            drawn[self._start_epochs[dimension.name]].append(values[dimension.name])
            return values[dimension.name]

        self._space.fill(take)
        return [repr(drawn[epoch]) for epoch in sorted(drawn)]
