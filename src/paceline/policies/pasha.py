"""Progressive ASHA: trains further only while that still changes who is ahead.

Rule: ASHA with two rungs; a further one is used as soon as the order of the best 32 at the highest
rung is not the order they had at the rung below, where losses within eps of each other count as
equal. eps is the 0.9 quantile of the distances at the highest rung between trials whose curves
have crossed at least twice: so much is noise.

Bohdal et al., "PASHA: Efficient HPO and NAS with Progressive Resource Allocation", ICLR 2023.
Changed against the paper: (1) the best of the highest rung are compared, not all there: who is last
decides nothing, and a report costs the same however many there are; (2) distances are noted as
trials arrive, and eps keeps its value when a rung is added until that has distances of its own;
(3) when no new trials come and nobody is promoted, the best goes on rung by rung to its last
epoch, so that a study ends with a trained model. Besides, it is changed as `asha` is.
"""

from __future__ import annotations

from bisect import insort
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

from paceline.core.ports import Pick
from paceline.core.values import NO_LOSS
from paceline.policies.asha import Asha
from paceline.policies.quantiles import Quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry
    from paceline.core.values import StudySpec
    from paceline.core.views import StudyView, TrialView
    from paceline.policies.rungs import Rung

    Curve = Sequence[float]

# How many of the highest rung are compared, and the share of noisy distances within eps.
_BEST = 32
_WITHIN = 0.9


class Pasha(Asha):
    """Add a rung while the order is unsettled."""

    def __init__(self, *, eta: int = 3, first: int | None = None) -> None:
        super().__init__(eta=eta, first=first, drain=False)
        # The place of the highest rung in use, and the curves of the best there, best first.
        self._top = 0
        self._best: list[Curve] = []
        self._noise = Quantile(_WITHIN)
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
        why = f"no new trials come, nobody is promoted, and it is the best, at epoch {best.epoch}"
        return Pick(best.id, self._after[best.epoch], why)

    def _open(self, spec: StudySpec) -> None:
        super()._open(spec)
        self._add_rung()

    def _add_rung(self) -> None:
        """Use one rung more: who waits at the highest so far may be promoted from now on."""
        self._top = min(self._top + 1, len(self._levels) - 1)
        self._best, self._noise = [], Quantile(_WITHIN)
        self._highest_first = [self._rungs[level] for level in self._levels[: self._top][::-1]]

    def _compare(self, curve: Curve) -> None:
        """Take the curve of a trial that has come to the highest rung."""
        if self._top == len(self._levels) - 1:
            return  # there is no further rung
        for other in self._best:
            if _crossings(curve, other) >= 2:
                self._noise.add(abs(curve[-1] - other[-1]))
                self._eps = self._noise.value
        insort(self._best, curve, key=itemgetter(-1))
        del self._best[_BEST:]
        if not _settled(self._best, self._levels[self._top - 1], self._eps):
            self._add_rung()

    def _waits(self, trial: TrialView, rung: Rung, spec: StudySpec) -> str:
        if rung.level < self._levels[self._top] or trial.loss == NO_LOSS:
            return super()._waits(trial, rung, spec)
        return (
            f"{spec.metric} {spec.sign * trial.loss:.4g} at epoch {rung.level}: the order of the "
            f"best {len(self._best)} is that at epoch {self._levels[self._top - 1]}, give or take "
            f"{self._eps:.4g}, so further training would tell nothing"
        )


def _settled(best: Sequence[Curve], before: int, eps: float) -> bool:
    """Say whether curves in the order of their last losses had this order at an earlier epoch.

    Whoever was then within eps of the one whose place it has now may as well have had it.
    """
    losses = [curve[before - 1] for curve in best]
    return all(
        now == then or abs(now - then) <= eps
        for now, then in zip(losses, sorted(losses), strict=True)
    )


def _crossings(one: Curve, other: Curve) -> int:
    """Return how often one curve changes sides with the other."""
    ahead = [a < b for a, b in zip(one, other, strict=True) if a != b]
    return sum(before != after for before, after in pairwise(ahead))
