"""TuPAQ's bandit (action elimination): stop trials that are far behind the best.

Rule: every `boundary` epochs, keep a trial iff its best value times (1 + slack) > best of all. With
the metric's range, values are normalised by it first: r_norm = (r - r_min) / (r_max - r_min).

Sparks et al., "Automating Model Search for Large Scale Machine Learning", SoCC 2015; HyperDrive's
Bandit, and its Eq. 4 for rewards: Rasley et al., Middleware 2017. Different from them: the rule
needs non-negative values that are larger when better, so without a range, for a metric that is
minimised or was ever negative, it compares gains, the distance of a loss below the median loss of
all first epochs. A trial without any gain counts as far behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.decisions import Stop
from paceline.core.errors import SpecError
from paceline.core.events import Opened
from paceline.core.text import format_metric
from paceline.core.values import NO_LOSS
from paceline.policies.fifo import Fifo
from paceline.policies.quantiles import RunningQuantile, check_positive, choose_boundary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Verdict
    from paceline.core.views import StudyView, TrialView


class Bandit(Fifo):
    """Stops trials that are far behind the best."""

    def __init__(self, *, boundary: int | None = None, slack: float = 0.5) -> None:
        check_positive("bandit: boundary", boundary)
        if slack < 0.0:
            raise SpecError(f"bandit: slack={slack:g} is invalid: must be at least 0.")
        self._given = boundary
        self._boundary = 1
        self._slack = slack
        self._gains = False
        self._start = RunningQuantile(0.5)

    def see(self, entry: Entry, study: StudyView) -> None:
        for trial in study.delivered:
            if trial.epoch == 1:
                self._start.add(trial.loss)
            # A positive loss is a negative metric, since the metric is maximised.
            self._gains = self._gains or 0.0 < trial.loss < NO_LOSS
        if isinstance(entry, Opened):
            self._boundary = choose_boundary(self._given, entry.spec.epochs)
            self._gains = entry.spec.mode == "min"

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        if trial.epoch % self._boundary or not trial.alive or study.best_loss == NO_LOSS:
            return ()
        # The loss that counts as 0, the worst.
        bounds = study.spec.bounds
        unknown = self._start.value if self._gains else 0.0
        start = unknown if bounds is None else bounds[1]
        if start == NO_LOSS:
            return ()
        own, best = start - trial.best_loss, start - study.best_loss
        # A trial as good as the best is never behind it, whatever the sign.
        if own * (1.0 + self._slack) > best or trial.best_loss <= study.best_loss:
            return ()
        spec = study.spec
        if bounds is not None:
            measure = f", both measured from {format_metric(start, spec)}, the worst of its range"
        else:
            measure = f" as gains over {format_metric(start, spec)}" if self._gains else ""
        why = (
            f"best {spec.metric} {format_metric(trial.best_loss, spec)} by epoch {trial.epoch} "
            f"times {1.0 + self._slack:g} does not reach the best of all, "
            f"{format_metric(study.best_loss, spec)}{measure}"
        )
        return (Stop(trial=trial.id, why=why),)
