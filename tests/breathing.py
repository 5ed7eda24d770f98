"""An allocator for tests: every trial is as wide as its own next epoch asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.ports import Demands, sees_nothing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.core.values import TrialId
    from paceline.core.views import StudyView


class Breathing:
    """Width `wide` from epoch `grow` on, and 1 again from epoch `shrink` on."""

    see = staticmethod(sees_nothing)

    def __init__(self, *, grow: int, shrink: int, wide: float = 2.0) -> None:
        self._grow, self._shrink, self._wide = grow, shrink, wide

    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        asking = () if demands.asking is None else (demands.asking,)
        return {
            demand.trial: self._width(demand.trial, study)
            for demand in (*asking, *demands.running())
        }

    def _width(self, trial: TrialId, study: StudyView) -> float:
        return self._wide if self._grow <= study.trials[trial].epoch < self._shrink else 1.0
