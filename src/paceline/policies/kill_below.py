"""Kill threshold: stop trials that have learned nothing by a given epoch.

Rule: at every epoch from `after` on, stop a trial iff the best value of its metric is worse than
`value`. HyperDrive's kill threshold (Rasley et al., Middleware 2017), such as 0.15 where guessing
gives 0.10. Use it with another policy: `asha+kill_below:value=0.15,after=10`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.decisions import Stop
from paceline.core.text import format_metric
from paceline.policies.fifo import Fifo
from paceline.policies.quantiles import check_positive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.ports import Verdict
    from paceline.core.views import StudyView, TrialView


class KillBelow(Fifo):
    """Stops trials whose best value is below a threshold."""

    def __init__(self, *, value: float, after: int = 1) -> None:
        check_positive("kill_below: after", after)
        self._value = value
        self._after = after

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        spec = study.spec
        if trial.epoch < self._after or trial.best_loss <= spec.sign * self._value:
            return ()
        best = format_metric(trial.best_loss, spec)
        why = f"best {spec.metric} {best} by epoch {trial.epoch} is worse than {self._value:g}"
        return (Stop(trial=trial.id, why=why),)
