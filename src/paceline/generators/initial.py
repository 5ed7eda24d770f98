"""Configs that the user wants tried before any other.

Knows how to read them against a space. What one of them leaves out is left to the generator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.errors import SpecError
from paceline.core.space import CHOICES, Dimension, Space

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.values import Config, Value


class First:
    """The first configs of a space; `whole` ones where the generator cannot add what is missing."""

    def __init__(
        self, space: Space, configs: Sequence[Config] | None, *, whole: bool = False
    ) -> None:
        self._space = space
        # For each config its dimensions' values by name; of a choice, the number of the option.
        self.values: list[dict[str, Value]] = []
        for at, config in enumerate(configs or ()):
            try:
                self.values.append(space.read(config, whole=whole))
            except SpecError as error:
                raise SpecError(f"first[{at}]: {error}") from None

    def __len__(self) -> int:
        return len(self.values)

    def config(self, number: int, draw: Callable[[Dimension], Value]) -> Config:
        """Return the config of this number, with a drawn value wherever it has none."""
        given = self.values[number]

        def value(dimension: Dimension) -> Value:
            if dimension.name not in given:
                return draw(dimension)
            found = given[dimension.name]
            return dimension.arguments[found] if dimension.kind in CHOICES else found

        return self._space.fill(value)
