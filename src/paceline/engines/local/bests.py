"""What is to be beaten: the best loss of a study, or of each of several that are driven as one.

Knows which attempt was launched for whom. Whoever beats the best of its study saves at once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paceline.core.values import loss_of

if TYPE_CHECKING:
    from paceline.core.decisions import Launch
    from paceline.core.events import Reported
    from paceline.core.values import AttemptId, StudySpec


class Bests:
    """The best loss of each group so far."""

    def __init__(self, spec: StudySpec) -> None:
        self._spec = spec
        # Each trial's group, the group for which each attempt runs, and each group's best.
        self._trials: list[int] = []
        self._attempts: dict[AttemptId, int] = {}
        self._losses: dict[int, float] = {}

    def open(self, group: int) -> None:
        """The next trial is this group's."""
        self._trials.append(group)

    def launch(self, decision: Launch) -> None:
        """An attempt begins for a trial."""
        self._attempts[decision.attempt] = self._trials[decision.trial]

    def gone(self, attempt: AttemptId) -> None:
        """An attempt has ended."""
        self._attempts.pop(attempt, None)

    def beaten(self, report: Reported) -> bool:
        """Take a report and say whether it beats the best of its group."""
        group = self._attempts.get(report.attempt, 0)
        loss = loss_of(report.metrics.get(self._spec.metric), self._spec.sign)
        if loss < self._losses.get(group, math.inf):
            self._losses[group] = loss
            return True
        return False

    def of(self, attempt: AttemptId) -> float | None:
        """Return what an attempt has to beat; None: nobody has reported a number."""
        return self._losses.get(self._attempts.get(attempt, 0))

    def together(self, one: AttemptId, other: AttemptId) -> bool:
        """Say whether two attempts run for the same group."""
        return self._attempts.get(one, 0) == self._attempts.get(other, 0)
