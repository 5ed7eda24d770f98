"""Initial configs: the configs that the user wants tried before any other (`first=`).

Knows how to read them against a space. The generator fills dimensions that they leave out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.errors import SpecError
from paceline.core.space import CHOICES, Dimension, Space

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.values import Config, Value


class InitialConfigs:
    """The initial configs of a space; with `whole`, a config must set every dimension."""

    def __init__(
        self, space: Space, configs: Sequence[Config] | None, *, whole: bool = False
    ) -> None:
        self._space = space
        # For each config its values by dimension name; for a choice, the index of the option.
        self.values: list[dict[str, Value]] = []
        for at, config in enumerate(configs or ()):
            try:
                self.values.append(space.read(config, whole=whole))
            except SpecError as error:
                raise SpecError(f"first[{at}]: {error}") from None

    def __len__(self) -> int:
        return len(self.values)

    def make_config(self, number: int, draw: Callable[[Dimension], Value]) -> Config:
        """Return the config of this number, with drawn values for dimensions it leaves out."""
        given = self.values[number]

        def choose_value(dimension: Dimension) -> Value:
            if dimension.name not in given:
                return draw(dimension)
            found = given[dimension.name]
            return dimension.arguments[found] if dimension.kind in CHOICES else found

        return self._space.fill(choose_value)
