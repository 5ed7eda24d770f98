"""Action elimination, as in TuPAQ: stop whoever is far behind the best.

Rule: every `boundary` epochs, keep a trial iff its best value times (1 + slack) > best of all.

Sparks et al., "Automating Model Search for Large Scale Machine Learning", SoCC 2015; as
HyperDrive's Bandit: Rasley et al., Middleware 2017. The rule needs values that are larger where
they are better, and not negative. Where a metric is minimised, or was ever negative, values are
therefore gains: how far a loss lies below the median loss of all first epochs; a trial without any
gain is as far behind as can be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.decisions import Stop
from paceline.core.errors import SpecError
from paceline.core.events import Opened
from paceline.core.text import value
from paceline.core.values import NO_LOSS
from paceline.policies.fifo import Fifo
from paceline.policies.quantiles import Quantile, boundary_of, one_or_more

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Verdict
    from paceline.core.views import StudyView, TrialView


class Bandit(Fifo):
    """Keep who is within reach of the best."""

    def __init__(self, *, boundary: int | None = None, slack: float = 0.5) -> None:
        one_or_more("bandit: boundary", boundary)
        if slack < 0.0:
            raise SpecError(f"bandit: slack={slack:g} cannot be meant: give 0 or more.")
        self._given = boundary
        self._boundary = 1
        self._slack = slack
        self._gains = False
        self._start = Quantile(0.5)

    def see(self, entry: Entry, study: StudyView) -> None:
        for trial in study.delivered:
            if trial.epoch == 1:
                self._start.add(trial.loss)
            # A loss above zero is a metric below it, where higher is better.
            self._gains = self._gains or 0.0 < trial.loss < NO_LOSS
        if isinstance(entry, Opened):
            self._boundary = boundary_of(self._given, entry.spec.epochs)
            self._gains = entry.spec.mode == "min"

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        if trial.epoch % self._boundary or not trial.alive or study.best_loss == NO_LOSS:
            return ()
        start = self._start.value if self._gains else 0.0
        if start == NO_LOSS:
            return ()
        own, best = start - trial.best_loss, start - study.best_loss
        # Who equals the best is never behind it, whatever the sign.
        if own * (1.0 + self._slack) > best or trial.best_loss <= study.best_loss:
            return ()
        spec = study.spec
        measure = f" as gains over {value(start, spec)}" if self._gains else ""
        why = (
            f"best {spec.metric} {value(trial.best_loss, spec)} by epoch {trial.epoch} times "
            f"{1.0 + self._slack:g} does not reach the best of all, "
            f"{value(study.best_loss, spec)}{measure}"
        )
        return (Stop(trial=trial.id, why=why),)
