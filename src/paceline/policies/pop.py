"""POP: promising, opportunistic and poor trials, by the chance to reach the target in time.

Rule: every `boundary` epochs a trial's confidence p = Pr(target reached within the time left) is
forecast. p < `low`: poor, stopped. With confidences sorted, promising are those with p >= p*, where
p* attains S_promising = max_j min(k·j, S·p_(j)); they train on, first by p, in S_promising of the S
slots. The others, opportunistic trials, share the rest in turns of one boundary.

Rasley et al., "HyperDrive: Exploring Hyperparameters with POP Scheduling", Middleware 2017. Where
the paper leaves a choice: Pr(m) is made monotone, as a first passage; a trial without a forecast or
before its first boundary is opportunistic and does not count for the threshold; slots are rounded
down to a multiple of k, but not to zero if p* is one half or more; ties take the larger p; an
opportunistic trial is paused at its own boundary, and only if another trial needs its slot; new
trials come before paused opportunistic ones; a slot that its pool cannot use goes to the other
pool. Different from the paper: without a target, the target is slightly better than the best so
far; if forecasts were worse than the base rate, the best third at each boundary is promising.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.base_part import BasePart
from paceline.core.decisions import AskForecast, Cut, Go, Open, Pause, Stop
from paceline.core.errors import SpecError
from paceline.core.events import Forecasted, Opened
from paceline.core.forecast_quantiles import choose_horizons, compute_confidence, split_promising
from paceline.core.ports import Pick
from paceline.core.text import format_metric
from paceline.core.values import NO_LOSS, Status
from paceline.policies.quantiles import (
    EpochQuantiles,
    RunningQuantile,
    check_positive,
    choose_boundary,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Verdict
    from paceline.core.values import TrialId
    from paceline.core.views import StudyView, TrialView

# The classes of trials: labels of the decisions about them.
PROMISING, OPPORTUNISTIC, POOR = "promising", "opportunistic", "poor"
# Without a target: the best loss, improved by this share of the gain since the start.
_BETTER = 0.01


class Pop(BasePart):
    """Divides the slots between promising and opportunistic trials, and stops poor ones."""

    def __init__(
        self,
        *,
        boundary: int | None = None,
        kill: float | None = None,
        low: float = 0.05,
        k: int = 1,
    ) -> None:
        check_positive("pop: boundary", boundary)
        if not 0.0 <= low < 1.0:
            raise SpecError(f"pop: low={low:g} is invalid: must be at least 0 and below 1.")
        check_positive("pop: k", k)
        self._given = boundary
        self._boundary = 1
        # The kill threshold: a value of the metric that any useful trial passes.
        self._kill = kill
        self._low = low
        self._k = k
        self._confidence: dict[TrialId, float] = {}
        # Over the live trials: the threshold p*, and the slots for promising trials.
        self._threshold, self._slots = 1.0, 0
        # Paused trials, in the order of their pauses.
        self._queue: dict[TrialId, None] = {}
        self._ranks = EpochQuantiles(1.0 / 3.0)
        self._start = RunningQuantile(0.5)
        self._forecasted: TrialId | None = None

    def see(self, entry: Entry, study: StudyView) -> None:
        self._forecasted = None
        if isinstance(entry, Opened):
            self._boundary = choose_boundary(self._given, entry.spec.epochs)
        elif isinstance(entry, Cut | Pause):
            self._queue[entry.trial] = None
        elif isinstance(entry, Go | Open):
            self._queue.pop(entry.trial, None)
        elif isinstance(entry, Forecasted):
            self._forecasted = entry.trial
            self._update_confidence(study.trials[entry.trial], study)
        for trial in study.delivered:
            if trial.epoch == 1:
                self._start.add(trial.loss)
            if trial.epoch % self._boundary == 0:
                origin = trial.origin(trial.epoch) if study.spec.share else None
                self._ranks.record(trial.epoch, trial.best_loss, origin)
        for trial in study.departed:
            self._queue.pop(trial.id, None)
            if self._confidence.pop(trial.id, None) is not None:
                self._update_threshold(study)

    def _update_confidence(self, trial: TrialView, study: StudyView) -> None:
        """Compute the confidence of a trial with a new forecast, and the threshold."""
        if trial.forecast is None or not trial.alive:
            return
        foresight, target = study.calibration, self._get_target_loss(study)
        chances = [
            (epoch, foresight.chance(trial.forecast, epoch, target))
            for epoch in trial.forecast.epochs
        ]
        self._confidence[trial.id] = compute_confidence(chances, trial.epoch).chance
        self._update_threshold(study)

    def _update_threshold(self, study: StudyView) -> None:
        self._threshold, self._slots = split_promising(
            self._confidence.values(), study.capacity, self._k
        )

    def _get_target_loss(self, study: StudyView) -> float:
        spec = study.spec
        if spec.budget.target is not None:
            return spec.sign * spec.budget.target.value
        best, start = study.best_loss, self._start.value
        return best - _BETTER * (start - best) if best < start < NO_LOSS else best

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        if not trial.alive:
            return ()
        if trial.id == self._forecasted:
            return self._classify(trial, study)
        if trial.epoch % self._boundary or trial.epoch >= study.spec.epochs:
            return ()
        killed = self._explain_kill(trial, study)
        if killed:
            return (Stop(trial=trial.id, why=killed),)
        asked = choose_horizons(trial.epoch, self._last_reachable_epoch(trial, study))
        if not asked:
            why = "no further epoch of it ends before the deadline"
            return (Stop(trial=trial.id, why=why),) if study.deadline_s else ()
        why = f"epoch {trial.epoch} is a boundary"
        ask = AskForecast(trial=trial.id, epoch=trial.epoch, horizons=asked, why=why)
        distrust = study.calibration.distrust
        if distrust:
            # Still requested: accurate forecasts make it trust them again.
            return (ask, self._judge_by_rank(trial, study, distrust))
        until = self._get_next_boundary(trial.epoch, study)
        why = "it trains on while its forecast is computed"
        return (ask, Go(trial=trial.id, until=until, why=why))

    def _explain_kill(self, trial: TrialView, study: StudyView) -> str:
        spec = study.spec
        if self._kill is None or trial.best_loss <= spec.sign * self._kill:
            return ""
        best = format_metric(trial.best_loss, spec)
        return f"best {spec.metric} {best} by epoch {trial.epoch}: it has not passed {self._kill:g}"

    def _get_next_boundary(self, epoch: int, study: StudyView) -> int:
        return min(epoch - epoch % self._boundary + self._boundary, study.spec.epochs)

    def _last_reachable_epoch(self, trial: TrialView, study: StudyView) -> int:
        """Return the last epoch before the deadline, at this trial's mean epoch time."""
        epochs = study.spec.epochs
        if study.deadline_s is None:
            return epochs
        pace = sum(trial.seconds) / trial.epoch
        left = study.deadline_s - study.now
        return min(epochs, trial.epoch + int(left / pace)) if pace else epochs

    def _classify(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        p = self._confidence.get(trial.id)
        if p is None or study.calibration.distrust:
            return ()
        if p < self._low:
            why = f"poor: its confidence {p:.1%} is below {self._low:.0%}"
            return (Stop(trial=trial.id, label=POOR, why=why),)
        if p >= self._threshold and self._slots:
            # One boundary beyond its goal, so that it never waits for its next forecast.
            until = self._get_next_boundary(self._get_next_boundary(trial.epoch, study), study)
            why = self._explain_promising(p)
            return (Go(trial=trial.id, until=until, label=PROMISING, why=why),)
        if not self._is_slot_wanted(study):
            return ()
        if self._slots:
            reason = f"is below the threshold {self._threshold:.1%}"
        else:
            reason = f"earns no slot of {study.capacity} for good"
        why = f"opportunistic: its confidence {p:.1%} {reason}, and others wait for a turn"
        return (Cut(trial=trial.id, label=OPPORTUNISTIC, why=why),)

    def _judge_by_rank(self, trial: TrialView, study: StudyView, distrust: str) -> Go | Pause | Cut:
        cutoff, count = self._ranks.at(trial.epoch)
        until = self._get_next_boundary(trial.epoch, study)
        if trial.best_loss <= cutoff or not self._is_slot_wanted(study):
            why = f"it is among the best third of {count} at epoch {trial.epoch}; {distrust}"
            return Go(trial=trial.id, until=until, why=why)
        why = f"it is not among the best third of {count} at epoch {trial.epoch}; {distrust}"
        # A trial that was promising has a goal beyond this boundary.
        ahead = trial.goal > trial.epoch
        return Cut(trial=trial.id, why=why) if ahead else Pause(trial=trial.id, why=why)

    def _is_slot_wanted(self, study: StudyView) -> bool:
        return not study.closed or bool(self._queue) or bool(study.ready)

    def readmit(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        on_its_way = trial.epoch < trial.goal and trial.goal % self._boundary == 0
        if on_its_way or trial.id in self._queue:
            return ()
        until = self._get_next_boundary(trial.goal, study)
        why = f"the study was extended: the boundary after epoch {trial.goal} is at epoch {until}"
        return (Go(trial=trial.id, until=until, why=why),)

    def next(self, study: StudyView) -> Pick | None:
        for ready in study.ready:
            return Pick(ready, 0, "it was interrupted")
        best = self._find_best_promising(study)
        if best is not None:
            until = self._get_next_boundary(study.trials[best].epoch, study)
            return Pick(best, until, self._explain_promising(self._confidence[best]), PROMISING)
        if study.new:
            first = self._get_next_boundary(0, study)
            return Pick(None, first, "opportunistic: a turn for a new trial", OPPORTUNISTIC)
        for trial in self._queue:
            until = self._get_next_boundary(study.trials[trial].epoch, study)
            why = "opportunistic: a turn for the trial that has waited longest"
            return Pick(trial, until, why, OPPORTUNISTIC)
        return None

    def _explain_promising(self, p: float) -> str:
        return (
            f"promising: confidence {p:.1%}, threshold {self._threshold:.1%}, "
            f"{self._slots} slots for such trials"
        )

    def _find_best_promising(self, study: StudyView) -> TrialId | None:
        """Return the paused promising trial of highest confidence, if its pool has a free slot."""
        if not self._slots:
            return None
        sure = [each for each, p in self._confidence.items() if p >= self._threshold]
        held = sum(study.trials[each].status is Status.RUNNING for each in sure)
        if held >= self._slots:
            return None
        paused = [each for each in sure if each in self._queue]
        return max(paused, key=lambda each: (self._confidence[each], -each), default=None)

    def admit(self, study: StudyView) -> int | None:
        return None
