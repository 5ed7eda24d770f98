"""PASHA: progressive ASHA, which adds rungs only while they still change the ranking.

Rule: ASHA with two rungs; another rung is added as soon as the best 32 at the highest rung are
ranked differently than at the rung below, where losses within eps of each other count as equal.
eps, the noise, is the 0.9 quantile of the distances at the highest rung between trials whose curves
have crossed at least twice.

Bohdal et al., "PASHA: Efficient HPO and NAS with Progressive Resource Allocation", ICLR 2023.
Different from the paper: (1) only the best 32 of the highest rung are compared, so the cost of a
report does not grow with the trials; (2) distances are recorded as trials arrive, and eps keeps its
value after a rung is added until the new rung has distances; (3) when no new trials come and none
is promoted, the best trial continues rung by rung to its last epoch, so that the study ends with a
trained model. The differences of `asha` apply too.
"""

from __future__ import annotations

from bisect import insort
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

from paceline.core.ports import Pick
from paceline.core.values import NO_LOSS
from paceline.policies.asha import Asha
from paceline.policies.quantiles import RunningQuantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry
    from paceline.core.values import StudySpec
    from paceline.core.views import StudyView, TrialView
    from paceline.policies.rungs import Rung

    Losses = Sequence[float]

# The number of trials compared at the highest rung, and the quantile of noisy distances for eps.
_BEST = 32
_WITHIN = 0.9


class Pasha(Asha):
    """Adds a rung while the ranking is unsettled."""

    def __init__(
        self, *, eta: int = 3, first: int | None = None, drain: bool | None = None
    ) -> None:
        super().__init__(eta=eta, first=first, drain=drain)
        # The index of the highest rung in use, and the curves of the best trials there, best first.
        self._top = 0
        self._best: list[Losses] = []
        self._noise = RunningQuantile(_WITHIN)
        self._eps = 0.0

    def see(self, entry: Entry, study: StudyView) -> None:
        super().see(entry, study)
        for trial in study.delivered:
            if trial.epoch == self._levels[self._top] and trial.loss < NO_LOSS:
                self._compare(tuple(trial.losses))

    def next(self, study: StudyView) -> Pick | None:
        pick, best = super().next(study), study.best
        if pick is not None or study.running or not study.closed:
            return pick
        if best is None or not best.alive:
            return None
        why = f"no new trials come, none is promoted, and it is the best, at epoch {best.epoch}"
        return Pick(best.id, self._after[best.epoch], why)

    def _pick_to_finish(self) -> Pick | None:
        return None  # `next` continues the best trial instead, finished ones or not

    def _set_up(self, spec: StudySpec) -> None:
        super()._set_up(spec)
        self._add_rung()

    def _add_rung(self) -> None:
        """Add a rung: trials paused at the highest rung so far may now be promoted."""
        self._top = min(self._top + 1, len(self._levels) - 1)
        self._best, self._noise = [], RunningQuantile(_WITHIN)
        self._highest_first = [self._rungs[level] for level in self._levels[: self._top][::-1]]

    def _compare(self, curve: Losses) -> None:
        """Record the curve of a trial that has reached the highest rung."""
        if self._top == len(self._levels) - 1:
            return  # there is no further rung
        for other in self._best:
            if _count_crossings(curve, other) >= 2:
                self._noise.add(abs(curve[-1] - other[-1]))
                self._eps = self._noise.value
        insort(self._best, curve, key=itemgetter(-1))
        del self._best[_BEST:]
        if not _is_settled(self._best, self._levels[self._top - 1], self._eps):
            self._add_rung()

    def _explain_pause(self, trial: TrialView, rung: Rung, spec: StudySpec) -> str:
        if rung.level < self._levels[self._top] or trial.loss == NO_LOSS:
            return super()._explain_pause(trial, rung, spec)
        return (
            f"{spec.metric} {spec.sign * trial.loss:.4g} at epoch {rung.level}: the order of the "
            f"best {len(self._best)} is that at epoch {self._levels[self._top - 1]}, give or take "
            f"{self._eps:.4g}, so further training would tell nothing"
        )


def _is_settled(best: Sequence[Losses], before: int, eps: float) -> bool:
    """Return whether curves sorted by their last losses had this order at an earlier epoch.

    Losses within eps of each other count as equal.
    """
    losses = [curve[before - 1] for curve in best]
    return all(
        now == then or abs(now - then) <= eps
        for now, then in zip(losses, sorted(losses), strict=True)
    )


def _count_crossings(one: Losses, other: Losses) -> int:
    """Return how often two curves cross."""
    ahead = [a < b for a, b in zip(one, other, strict=True) if a != b]
    return sum(before != after for before, after in pairwise(ahead))
