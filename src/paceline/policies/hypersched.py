"""HyperSched: successive halving towards a deadline, with new judgements at every report.

Rule: a trial trains on while its loss at every rung it has passed is among the best 1/eta there,
checked again at each of its reports; otherwise it is paused until the rung's cutoff has moved past
its loss. New trials start only while time left >= min(eta · longest trial, epochs · epoch time).

Liaw et al., "HyperSched: Dynamic Resource Reallocation for Model Development on a Deadline", SoCC
2019. Different from its code: (1) paused trials are kept when admission closes: a slot that no
other trial can use continues the best of them (`drain`); if trials may span several slots and
`drain` is not set, the leaders are widened first, and paused trials continue when no leader runs;
(2) the longest trial is measured in training
time, without starts; (3) with `chance`, a new or paused trial starts only if forecasts give it that
chance to beat the best by the deadline; a new trial has the mean chance of the last twenty at their
first rung; if forecasts were worse than the base rate, only the rule counts. The allocator
`uniform` does its resizing.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from paceline.core.base_part import BasePart
from paceline.core.decisions import AskForecast, Close, Cut, Go, Pause
from paceline.core.errors import SpecError
from paceline.core.events import Forecasted, Opened
from paceline.core.ports import Pick, train_to_the_end
from paceline.core.text import format_metric
from paceline.core.values import NO_LOSS
from paceline.policies.budget_rules import DeadlineAdmission, may_drain
from paceline.policies.quantiles import EpochQuantiles
from paceline.policies.rungs import choose_first_rung, compute_milestones

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Verdict
    from paceline.core.values import TrialId
    from paceline.core.views import StudyView, TrialView

# A new trial's chance is the mean chance of this many trials before it.
_RECENT = 20


class _MissedCutoff(NamedTuple):
    """A rung at which a trial is not among the best 1/eta."""

    level: int
    cutoff: float
    total: int


class _PausedRank(NamedTuple):
    """The order in which paused trials continue: caught up first, then by rung, then by loss."""

    is_behind: bool
    is_without_loss: bool
    minus_level: int
    loss: float
    trial: TrialId

    @property
    def level(self) -> int:
        """The rung at which it was paused."""
        return -self.minus_level


class HyperSched(BasePart):
    """Gives the time left to the deadline to trials that can still win."""

    def __init__(
        self,
        *,
        eta: int = 4,
        first: int | None = None,
        drain: bool | None = None,
        chance: float | None = None,
    ) -> None:
        compute_milestones(1 if first is None else first, eta, 1)  # raises for invalid parameters
        if chance is not None and not 0.0 < chance < 1.0:
            raise SpecError(f"hypersched: chance={chance:g} is invalid: must be between 0 and 1.")
        self._eta = eta
        self._first = first
        self._drain = drain
        self._chance = chance
        self._levels: list[int] = []
        self._quantiles = EpochQuantiles(1.0 / eta)
        # By trial: its losses at the rungs it has passed, and the cutoff at the newest of them.
        self._scores: dict[TrialId, dict[int, float]] = {}
        self._cutoffs: dict[TrialId, _MissedCutoff] = {}
        # By paused trial its rung, and by rung a heap of (loss, trial).
        self._paused: dict[TrialId, int] = {}
        self._queues: dict[int, list[tuple[float, TrialId]]] = {}
        # Trials that were continued although they are behind.
        self._drained: set[TrialId] = set()
        self._admission = DeadlineAdmission(eta)
        self._chances: dict[TrialId, float] = {}
        self._firsts: deque[float] = deque(maxlen=_RECENT)

    def see(self, entry: Entry, study: StudyView) -> None:
        self._admission.see(entry)
        if isinstance(entry, Opened):
            first = choose_first_rung(self._first, entry.spec.epochs)
            self._levels = compute_milestones(first, self._eta, entry.spec.epochs)[:-1]
        elif isinstance(entry, Cut | Pause):
            self._queue_paused(study.trials[entry.trial])
            self._drained.discard(entry.trial)
        elif isinstance(entry, Go):
            level = self._paused.pop(entry.trial, None)
            if level is not None and self._rank(entry.trial, level).is_behind:
                self._drained.add(entry.trial)
            self._drop_stale()
        elif isinstance(entry, Forecasted):
            self._record_chance(entry, study)
        for trial in study.delivered:
            self._record(trial, entry, study)
        for trial in study.departed:
            for known in (self._scores, self._cutoffs, self._paused, self._chances):
                known.pop(trial.id, None)
            self._drained.discard(trial.id)
            self._admission.forget(trial.id)
            self._drop_stale()

    def _record(self, trial: TrialView, entry: Entry, study: StudyView) -> None:
        self._admission.record(trial, entry)
        if trial.epoch in self._levels:
            origin = trial.origin(trial.epoch) if study.spec.share else None
            before = self._quantiles.record(trial.epoch, trial.loss, origin)
            self._scores.setdefault(trial.id, {})[trial.epoch] = trial.loss
            self._cutoffs[trial.id] = _MissedCutoff(trial.epoch, *before)

    def _queue_paused(self, trial: TrialView) -> None:
        behind = self._find_missed_cutoff(trial)
        if behind is not None:
            self._paused[trial.id] = behind.level
            score = self._scores[trial.id][behind.level]
            heappush(self._queues.setdefault(behind.level, []), (score, trial.id))

    def _record_chance(self, entry: Forecasted, study: StudyView) -> None:
        if entry.forecast is None:
            return
        last = entry.forecast.epochs[-1]
        chance = study.calibration.chance(entry.forecast, last, study.best_loss)
        if entry.trial not in self._chances:
            self._firsts.append(chance)
        self._chances[entry.trial] = chance

    def _drop_stale(self) -> None:
        """Drop trials that are no longer paused from the fronts of the queues."""
        for level, queue in self._queues.items():
            while queue and self._paused.get(queue[0][1]) != level:
                heappop(queue)

    def _find_missed_cutoff(self, trial: TrialView) -> _MissedCutoff | None:
        """Return the highest rung at which the trial is not among the best."""
        scores, cutoff = self._scores.get(trial.id, {}), self._cutoffs.get(trial.id)
        for level in reversed(scores):
            # At the rung just reached, the cutoff is without this trial; later, with it.
            is_new = cutoff is not None and cutoff.level == level == trial.epoch
            behind = cutoff if is_new else _MissedCutoff(level, *self._quantiles.at(level))
            if behind is not None and behind.total >= 2 and scores[level] > behind.cutoff:
                return behind
        return None

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        verdicts: list[Verdict] = []
        refusal = "" if study.closed else self._explain_refusal(study)
        if refusal:
            verdicts.append(Close(why=refusal))
        if not trial.alive:
            return verdicts
        behind = self._find_missed_cutoff(trial)
        spec = study.spec
        if (
            behind is not None
            and trial.goal > trial.epoch
            and self._is_slot_wanted(trial.id, behind.level, study)
        ):
            score = self._scores[trial.id][behind.level]
            why = (
                f"{spec.metric} {format_metric(score, spec)} at epoch {behind.level} is worse than "
                f"{format_metric(behind.cutoff, spec)}, the best 1/{self._eta} of {behind.total}"
            )
            verdicts.append(Cut(trial=trial.id, why=why))
        if self._chance is not None and trial.epoch in self._levels:
            last = self._last_reachable_epoch(trial.epoch, study)
            if last > trial.epoch:
                why = f"what it can reach by the deadline, epoch {last}, decides on new trials"
                horizons = (last,)
                verdicts.append(
                    AskForecast(trial=trial.id, epoch=trial.epoch, horizons=horizons, why=why)
                )
        return verdicts

    def _is_slot_wanted(self, trial: TrialId, level: int, study: StudyView) -> bool:
        """Return whether another trial should have the slot of a trial that missed this cutoff."""
        own, best = self._rank(trial, level), self._find_best_paused(study)
        if study.ready or (best is not None and best < own):
            return True
        return own.is_behind and not self._may_drain(study)

    def _rank(self, trial: TrialId, level: int) -> _PausedRank:
        loss = self._scores[trial][level]
        is_behind = loss > self._quantiles.at(level)[0]
        return _PausedRank(is_behind, loss == NO_LOSS, -level, loss, trial)

    def _find_best_paused(self, study: StudyView) -> _PausedRank | None:
        """Return the paused trial that a free slot would continue first, if it may."""
        fronts = (self._rank(queue[0][1], level) for level, queue in self._queues.items() if queue)
        return min(
            (each for each in fronts if not self._is_hopeless(each.trial, study)), default=None
        )

    def _may_drain(self, study: StudyView) -> bool:
        """Return whether a paused trial may have a slot that no other can use."""
        if not study.closed or not may_drain(self._drain, study):
            return False
        if self._drain is not None or study.spec.span == 1:
            return True
        # The leaders are widened first: it may once all that run were paused before.
        return study.running <= len(self._drained)

    def _last_reachable_epoch(self, epoch: int, study: StudyView) -> int:
        """Return the last epoch that a trial at this epoch can reach by the deadline."""
        epochs = study.spec.epochs
        epoch_s = self._admission.epoch_s
        if study.deadline_s is None or not epoch_s:
            return epochs
        return min(epochs, epoch + int((study.deadline_s - study.now) / epoch_s))

    def _explain_refusal(self, study: StudyView) -> str:
        """Return why no new trial should start; empty if one may."""
        trusted = not study.calibration.distrust
        if self._chance is not None and len(self._firsts) == _RECENT and trusted:
            mean = sum(self._firsts) / _RECENT
            if mean < self._chance and study.deadline_s is not None:
                return (
                    f"a new trial's chance to beat the best by the deadline is {mean:.1%}, by the "
                    f"last {_RECENT}: below {self._chance:.0%}"
                )
        return self._admission.explain_refusal(study)

    def readmit(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        return () if trial.id in self._paused else train_to_the_end(trial, study)

    def next(self, study: StudyView) -> Pick | None:
        for ready in study.ready:
            return Pick(ready, 0, "it was interrupted")
        epochs, best = study.spec.epochs, self._find_best_paused(study)
        if best is not None and not best.is_behind:
            level, count = best.level, self._quantiles.at(best.level)[1]
            why = f"it is by now among the best 1/{self._eta} of {count} at epoch {level}"
            return Pick(best.trial, epochs, why)
        if study.new:
            return Pick(None, epochs, "a slot is free and no paused trial has caught up")
        if best is None or not self._may_drain(study):
            return None
        why = f"no new trials come, and it is the best that is paused at epoch {best.level}"
        return Pick(best.trial, epochs, why)

    def _is_hopeless(self, trial: TrialId, study: StudyView) -> bool:
        if self._chance is None or study.calibration.distrust:
            return False
        return self._chances.get(trial, 1.0) < self._chance

    def count_waiting(self, study: StudyView, new: float) -> float:
        """Return how many more trials would start if slots were free, `new` of them new."""
        if self._may_drain(study):
            return new + len(self._paused)
        cutoffs = {level: self._quantiles.at(level)[0] for level in self._levels}
        caught_up = sum(
            self._scores[trial][level] <= cutoffs[level] for trial, level in self._paused.items()
        )
        return new + caught_up

    def admit(self, study: StudyView) -> int | None:
        return None
