"""Fixed: every trial gets the same width from its start to its end.

Rule: width = span if trials may span several slots, 1/pack if several share one, otherwise 1; and
at least what the trial needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.base_part import BasePart
from paceline.core.ports import Demands, see_nothing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.core.values import TrialId
    from paceline.core.views import StudyView


class Fixed(BasePart):
    """Gives every trial the same width."""

    see = staticmethod(see_nothing)

    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        asking = demands.asking
        if asking is None:
            return {}
        spec = study.spec
        width = float(spec.span) if spec.span > 1 else 1.0 / spec.pack
        return {asking.trial: max(width, asking.least)}
