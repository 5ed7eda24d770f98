"""Every trial gets the same width, from its start to its end.

Rule: width = span where trials may span several slots, 1/pack where several share one, else 1; and
no less than the trial needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.ports import Demands, sees_nothing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.core.values import TrialId
    from paceline.core.views import StudyView


class Fixed:
    """One width for all."""

    see = staticmethod(sees_nothing)

    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        asking = demands.asking
        if asking is None:
            return {}
        spec = study.spec
        width = float(spec.span) if spec.span > 1 else 1.0 / spec.pack
        return {asking.trial: max(width, asking.least)}
