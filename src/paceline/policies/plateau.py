"""Plateau: stop trials that no longer improve.

Rule: stop a trial iff its best loss of the last `patience` epochs is not lower, by more than
`least`, than its best before them. Keras's EarlyStopping. Use it with another policy, as in
`asha+plateau`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.decisions import Stop
from paceline.core.errors import SpecError
from paceline.policies.fifo import Fifo
from paceline.policies.quantiles import check_positive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Verdict
    from paceline.core.values import TrialId
    from paceline.core.views import StudyView, TrialView


class Plateau(Fifo):
    """Stops trials that have not improved for `patience` epochs."""

    def __init__(self, *, patience: int = 10, least: float = 0.0) -> None:
        check_positive("plateau: patience", patience)
        if least < 0.0:
            raise SpecError(f"plateau: least={least:g} is invalid: must be at least 0.")
        self._patience = patience
        self._least = least
        # By trial: the loss that counts as its best, and its epoch.
        self._bests: dict[TrialId, tuple[float, int]] = {}

    def see(self, entry: Entry, study: StudyView) -> None:
        for trial in study.delivered:
            best = self._bests.get(trial.id)
            if best is None or trial.loss < best[0] - self._least:
                self._bests[trial.id] = (trial.loss, trial.epoch)
        for trial in study.departed:
            self._bests.pop(trial.id, None)

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        best = self._bests.get(trial.id)
        if best is None or trial.epoch - best[1] < self._patience:
            return ()
        margin = f" by more than {self._least:g}" if self._least else ""
        why = f"{study.spec.metric} has not improved{margin} in the {self._patience} epochs since "
        return (Stop(trial=trial.id, why=f"{why}epoch {best[1]}"),)
