"""Stop whoever has learned nothing by a given epoch.

Rule: at every epoch from `after` on, stop a trial iff the best value of its metric is worse than
`value`: the kill threshold of HyperDrive (Rasley et al., Middleware 2017), such as 0.15 where
guessing gives 0.10. Meant to stand beside another policy: `asha+kill_below:value=0.15,after=10`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.decisions import Stop
from paceline.core.text import value
from paceline.policies.fifo import Fifo
from paceline.policies.quantiles import one_or_more

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.ports import Verdict
    from paceline.core.views import StudyView, TrialView


class KillBelow(Fifo):
    """Stop who is no better than guessing."""

    def __init__(self, *, value: float, after: int = 1) -> None:
        one_or_more("kill_below: after", after)
        self._value = value
        self._after = after

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        spec = study.spec
        if trial.epoch < self._after or trial.best_loss <= spec.sign * self._value:
            return ()
        best = value(trial.best_loss, spec)
        why = f"best {spec.metric} {best} by epoch {trial.epoch} is worse than {self._value:g}"
        return (Stop(trial=trial.id, why=why),)
