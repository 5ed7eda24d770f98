"""POP: promising, opportunistic and poor trials, by the chance to reach the target in time.

Rule: every `boundary` epochs a trial's confidence p = Pr(target reached within the time left) is
forecast. p < `low`: poor, stopped. With confidences sorted, promising are those with p >= p*, where
p* attains S_promising = max_j min(k·j, S·p_(j)); they train on, first by p, in S_promising of the S
slots. The others share the rest by turns of one boundary.

Rasley et al., "HyperDrive: Exploring Hyperparameters with POP Scheduling", Middleware 2017. What it
leaves open, and our choice: Pr(m) is made monotone, as a first passage; a trial without a forecast
or before its first boundary is opportunistic and no part of the threshold; slots are rounded down
to a multiple of k, but not to none where p* is one half or more; ties take the larger p; an
opportunistic trial gives way at its own boundary, and only where somebody waits; new trials come
before paused opportunistic ones, as they have waited longest; a slot that its pool cannot use goes
to the other. Without a target the best so far is the target, a little improved: whoever is likely
to beat it before the deadline is promising. Where forecasts have been worse than the base rate, the
best third at each boundary counts as promising.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.decisions import AskForecast, Cut, Go, Open, Pause, Stop
from paceline.core.errors import SpecError
from paceline.core.events import Forecasted, Opened
from paceline.core.forecast_quantiles import confidence, horizons, promising
from paceline.core.ports import Pick
from paceline.core.text import value
from paceline.core.values import NO_LOSS, Status
from paceline.policies.quantiles import Boards, Quantile, boundary_of, one_or_more

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Verdict
    from paceline.core.values import TrialId
    from paceline.core.views import StudyView, TrialView

# Without a target: the best loss, improved by this share of what has been gained since the start.
_BETTER = 0.01


class Pop:
    """Give slots to trials as far as they deserve them."""

    def __init__(
        self,
        *,
        boundary: int | None = None,
        kill: float | None = None,
        low: float = 0.05,
        k: int = 1,
    ) -> None:
        one_or_more("pop: boundary", boundary)
        if not 0.0 <= low < 1.0:
            raise SpecError(f"pop: low={low:g} cannot be meant: give one from 0 to 1.")
        one_or_more("pop: k", k)
        self._given = boundary
        self._boundary = 1
        # The metric's value that whoever learns anything has passed.
        self._kill = kill
        self._low = low
        self._k = k
        self._confidence: dict[TrialId, float] = {}
        # Of those who are alive: the threshold p*, and the slots for whoever is above it.
        self._threshold, self._slots = 1.0, 0
        # Paused trials, longest waiting first.
        self._queue: dict[TrialId, None] = {}
        self._ranks = Boards(1.0 / 3.0)
        self._start = Quantile(0.5)
        self._foreseen: TrialId | None = None

    def see(self, entry: Entry, study: StudyView) -> None:
        self._foreseen = None
        if isinstance(entry, Opened):
            self._boundary = boundary_of(self._given, entry.spec.epochs)
        elif isinstance(entry, Cut | Pause):
            self._queue[entry.trial] = None
        elif isinstance(entry, Go | Open):
            self._queue.pop(entry.trial, None)
        elif isinstance(entry, Forecasted):
            self._foreseen = entry.trial
            self._weigh(study.trials[entry.trial], study)
        for trial in study.delivered:
            if trial.epoch == 1:
                self._start.add(trial.loss)
            if trial.epoch % self._boundary == 0:
                origin = trial.origin(trial.epoch) if study.spec.share else None
                self._ranks.record(trial.epoch, trial.best_loss, origin)
        for trial in study.departed:
            self._queue.pop(trial.id, None)
            if self._confidence.pop(trial.id, None) is not None:
                self._split(study)

    def _weigh(self, trial: TrialView, study: StudyView) -> None:
        """Work out the confidence of a trial with a new forecast, and the threshold anew."""
        if trial.forecast is None or not trial.alive:
            return
        foresight, target = study.foresight, self._target(study)
        chances = [
            (epoch, foresight.chance(trial.forecast, epoch, target))
            for epoch in trial.forecast.epochs
        ]
        self._confidence[trial.id] = confidence(chances, trial.epoch).chance
        self._split(study)

    def _split(self, study: StudyView) -> None:
        self._threshold, self._slots = promising(self._confidence.values(), study.capacity, self._k)

    def _target(self, study: StudyView) -> float:
        spec = study.spec
        if spec.budget.target is not None:
            return spec.sign * spec.budget.target.value
        best, start = study.best_loss, self._start.value
        return best - _BETTER * (start - best) if best < start < NO_LOSS else best

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        if not trial.alive:
            return ()
        if trial.id == self._foreseen:
            return self._classed(trial, study)
        if trial.epoch % self._boundary or trial.epoch >= study.spec.epochs:
            return ()
        killed = self._killed(trial, study)
        if killed:
            return (Stop(trial=trial.id, why=killed),)
        asked = horizons(trial.epoch, self._reachable(trial, study))
        if not asked:
            why = "no further epoch of it ends before the deadline"
            return (Stop(trial=trial.id, why=why),) if study.deadline_s else ()
        why = f"epoch {trial.epoch} is a boundary"
        ask = AskForecast(trial=trial.id, epoch=trial.epoch, horizons=asked, why=why)
        distrust = study.foresight.distrust
        if distrust:
            # Asked all the same: what comes of it may win the trust back.
            return (ask, self._ranked(trial, study, distrust))
        until = self._next_boundary(trial.epoch, study)
        why = "it trains on while its forecast is computed"
        return (ask, Go(trial=trial.id, until=until, why=why))

    def _killed(self, trial: TrialView, study: StudyView) -> str:
        spec = study.spec
        if self._kill is None or trial.best_loss <= spec.sign * self._kill:
            return ""
        best = value(trial.best_loss, spec)
        return f"best {spec.metric} {best} by epoch {trial.epoch}: it has not passed {self._kill:g}"

    def _next_boundary(self, epoch: int, study: StudyView) -> int:
        return min(epoch - epoch % self._boundary + self._boundary, study.spec.epochs)

    def _reachable(self, trial: TrialView, study: StudyView) -> int:
        """Return the last epoch that fits into the time left, at this trial's mean pace."""
        epochs = study.spec.epochs
        if study.deadline_s is None:
            return epochs
        pace = sum(trial.seconds) / trial.epoch
        left = study.deadline_s - study.now
        return min(epochs, trial.epoch + int(left / pace)) if pace else epochs

    def _classed(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        p = self._confidence.get(trial.id)
        if p is None or study.foresight.distrust:
            return ()
        if p < self._low:
            why = f"poor: its confidence {p:.1%} is below {self._low:.0%}"
            return (Stop(trial=trial.id, why=why),)
        if p >= self._threshold and self._slots:
            # A boundary further than it was cleared for: it never stands still for its next look.
            until = self._next_boundary(self._next_boundary(trial.epoch, study), study)
            return (Go(trial=trial.id, until=until, why=self._promise(p)),)
        if not self._somebody_waits(study):
            return ()
        if self._slots:
            reason = f"is below the threshold {self._threshold:.1%}"
        else:
            reason = f"earns no slot of {study.capacity} for good"
        why = f"opportunistic: its confidence {p:.1%} {reason}, and others wait for a turn"
        return (Cut(trial=trial.id, why=why),)

    def _ranked(self, trial: TrialView, study: StudyView, distrust: str) -> Go | Pause | Cut:
        cutoff, count = self._ranks.at(trial.epoch)
        until = self._next_boundary(trial.epoch, study)
        if trial.best_loss <= cutoff or not self._somebody_waits(study):
            why = f"it is among the best third of {count} at epoch {trial.epoch}; {distrust}"
            return Go(trial=trial.id, until=until, why=why)
        why = f"it is not among the best third of {count} at epoch {trial.epoch}; {distrust}"
        # It may have been promising, and cleared for more than this boundary.
        ahead = trial.goal > trial.epoch
        return Cut(trial=trial.id, why=why) if ahead else Pause(trial=trial.id, why=why)

    def _somebody_waits(self, study: StudyView) -> bool:
        return not study.closed or bool(self._queue) or bool(study.ready)

    def next(self, study: StudyView) -> Pick | None:
        for ready in study.ready:
            return Pick(ready, 0, "it was interrupted")
        best = self._best_promising(study)
        if best is not None:
            until = self._next_boundary(study.trials[best].epoch, study)
            return Pick(best, until, self._promise(self._confidence[best]))
        if study.new:
            first = self._next_boundary(0, study)
            return Pick(None, first, "opportunistic: a turn for a new trial")
        for trial in self._queue:
            until = self._next_boundary(study.trials[trial].epoch, study)
            return Pick(trial, until, "opportunistic: a turn for who has waited longest")
        return None

    def _promise(self, p: float) -> str:
        return (
            f"promising: confidence {p:.1%}, threshold {self._threshold:.1%}, "
            f"{self._slots} slots for such trials"
        )

    def _best_promising(self, study: StudyView) -> TrialId | None:
        """Return the surest paused trial that a slot of the promising pool is free for."""
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
