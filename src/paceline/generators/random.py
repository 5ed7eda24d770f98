"""Independent draws from the space: the honest baseline, and hard to beat in many dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.core.ports import StudyView, sees_nothing
from paceline.core.rng import stream
from paceline.core.space import Space

if TYPE_CHECKING:
    from paceline.core.values import Config


class Random:
    """The n-th config depends on the study's seed and n alone."""

    pure = True
    see = staticmethod(sees_nothing)

    def __init__(self, *, space: dict[str, Any]) -> None:
        self._space = Space(space)

    def propose(self, number: int, study: StudyView) -> Config | None:
        rng = stream(study.spec.seed, "config", number)
        return self._space.config([each.at(rng.random()) for each in self._space.dimensions])
