"""Independent draws from the space: the honest baseline, and hard to beat in many dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.core.ports import sees_nothing
from paceline.core.rng import stream
from paceline.core.space import Space
from paceline.generators.first import First

if TYPE_CHECKING:
    from paceline.core.values import Config
    from paceline.core.views import StudyView


class Random:
    """The n-th config depends on the study's seed and n alone. What `first` leaves out is drawn."""

    pure = True
    see = staticmethod(sees_nothing)

    def __init__(self, *, space: dict[str, Any], first: list[dict[str, Any]] | None = None) -> None:
        self._space = Space(space)
        self._first = First(self._space, first)

    def propose(self, number: int, study: StudyView) -> Config | None:
        rng = stream(study.spec.seed, "config", number)
        if number < len(self._first):
            return self._first.config(number, lambda dimension: dimension.at(rng.random()))
        return self._space.config([each.at(rng.random()) for each in self._space.dimensions])
