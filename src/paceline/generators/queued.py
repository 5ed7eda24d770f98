"""Queued: a fixed list of configs, in order, such as the runs of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.core.base_part import BasePart
from paceline.core.ports import see_nothing

if TYPE_CHECKING:
    from paceline.core.values import Config
    from paceline.core.views import StudyView


class Queued(BasePart):
    """The n-th config is the n-th of the list."""

    pure = True
    # The policy may choose among all configs.
    ordered = 0
    see = staticmethod(see_nothing)

    def __init__(self, *, configs: list[dict[str, Any]]) -> None:
        self._configs = configs

    def count_left(self, number: int, study: StudyView) -> int | None:
        """Return how many configs are left from this number on."""
        return max(0, len(self._configs) - number)

    def propose(self, number: int, study: StudyView) -> Config | None:
        return self._configs[number] if number < len(self._configs) else None
