"""POP: promising, opportunistic and poor trials, by the chance to reach the target in time.

Rule: every `boundary` epochs a trial's confidence p = Pr(target reached within the time left) is
forecast, at every epoch left. With confidences sorted, promising are those with p >= p*, where p*
attains S_promising = max_j min(k·j, S·p_(j)); they train on, first by p, then by the expected
remaining time, with k slots each. The others, opportunistic trials, share the rest in turns of one
boundary. p < `low` for a whole training, so `low` times the share that is left: poor.

Rasley et al., "HyperDrive: Exploring Hyperparameters with POP Scheduling", Middleware 2017.
`published=True` is that paper. Otherwise, different from it: Pr(m) is made monotone, as a first
passage, and corrected by earlier forecasts. The less the chances of trials differ
(`TargetChances.trust`), the fewer trials may wait, and the fewer poor ones are stopped; wrong
forecasts are not used. If there is a last trial, poor
ones are paused until nothing better is left. Without a target, the target is slightly better than
the best so far, the best trial trains on, and none is stopped for good.
"""

from __future__ import annotations

from itertools import islice, takewhile
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from paceline.core.base_part import BasePart
from paceline.core.decisions import AskForecast, Cut, Go, Open, Pause, Stop
from paceline.core.errors import SpecError
from paceline.core.events import Forecasted, Opened
from paceline.core.forecast_quantiles import MOST_HORIZONS, choose_horizons, split_promising
from paceline.core.ports import Pick
from paceline.core.text import format_duration, format_metric
from paceline.core.values import FINITE_GENERATORS, Status
from paceline.policies.quantiles import check_positive, choose_boundary
from paceline.policies.target_chances import TargetChances

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Verdict
    from paceline.core.values import TrialId
    from paceline.core.views import StudyView, TrialView

# The classes of trials: labels of the decisions about them.
PROMISING, OPPORTUNISTIC, POOR = "promising", "opportunistic", "poor"
# The number of scored forecasts from which on more trials than slots may be poor.
_EVIDENCE = 5
# The number of poor trials per slot that are kept paused if new ones never end.
_KEPT_POOR = 4
# The number of poor trials that are looked at again with each forecast.
_REVIEWED = 8


class Turn(NamedTuple):
    """The trial whose turn it is in the opportunistic pool; None for a new one."""

    trial: TrialId | None
    why: str


class Pop(BasePart):
    """Divides the slots between promising and opportunistic trials, and ends poor ones."""

    def __init__(
        self,
        *,
        boundary: int | None = None,
        kill: float | None = None,
        low: float = 0.05,
        k: int = 1,
        quota: bool = False,
        waiting: float | None = None,
        published: bool = False,
    ) -> None:
        check_positive("pop: boundary", boundary)
        if not 0.0 <= low < 1.0:
            raise SpecError(f"pop: low={low:g} is invalid: must be at least 0 and below 1.")
        check_positive("pop: k", k)
        if waiting is not None and not waiting >= 0.0:
            raise SpecError(f"pop: waiting={waiting:g} is invalid: must be 0 or more per slot.")
        self._given = boundary
        self._boundary = 1
        # The kill threshold: a value of the metric that any useful trial passes.
        self._kill = kill
        self._low = low
        self._k = k
        # The width it requests of the scheduler; with one slot it requests none.
        self._width = float(k) if k > 1 else 0
        # Whether promising trials beyond their pool's slots take turns with the others.
        self._quota = quota
        # Opportunistic trials that may wait for a turn, for each slot; None: by trust.
        self._waiting = waiting
        self._published = published
        self._chances = TargetChances(published=published)
        # Over the live trials: the threshold p*, and the slots for promising trials.
        self._threshold, self._slots = 1.0, 0
        # Paused trials, in the order of their pauses; the poor ones apart, in that of review.
        self._queue: dict[TrialId, None] = {}
        self._poor: dict[TrialId, None] = {}
        # Whether the last turn was that of a new trial.
        self._opened_last = False
        self._forecasted: TrialId | None = None

    def see(self, entry: Entry, study: StudyView) -> None:
        self._forecasted = None
        self._chances.see(entry, study)
        if isinstance(entry, Opened):
            self._boundary = choose_boundary(self._given, entry.spec.epochs)
        elif isinstance(entry, Cut | Pause):
            paused = self._poor if entry.label == POOR else self._queue
            paused[entry.trial] = None
        elif isinstance(entry, Go | Open):
            self._queue.pop(entry.trial, None)
            self._poor.pop(entry.trial, None)
            if entry.label == OPPORTUNISTIC:
                self._opened_last = isinstance(entry, Open)
        elif isinstance(entry, Forecasted):
            self._forecasted = entry.trial
            self._chances.add(study.trials[entry.trial], entry.epoch, study)
            self._review_poor(study)
            self._update_threshold(study)
        for trial in study.departed:
            self._queue.pop(trial.id, None)
            self._poor.pop(trial.id, None)
            if self._chances.drop(trial.id):
                self._update_threshold(study)

    def _review_poor(self, study: StudyView) -> None:
        """Look again at a few poor trials, in turn: another correction may change their class."""
        if self._get_distrust(study):
            self._queue |= self._poor
            self._poor.clear()
        for trial in list(islice(self._poor, _REVIEWED)):
            del self._poor[trial]
            paused = self._poor if self._is_poor(trial, study) else self._queue
            paused[trial] = None

    def _update_threshold(self, study: StudyView) -> None:
        confidences = (p for _, p in self._chances.iterate_confidences())
        self._threshold, self._slots = split_promising(
            confidences, study.capacity, self._k, published=self._published
        )

    # Judging one trial

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
        last = self._last_reachable_epoch(trial, study)
        asked = choose_horizons(trial.epoch, last, MOST_HORIZONS)
        if not asked:
            why = "no further epoch of it ends before the deadline"
            return (Stop(trial=trial.id, why=why),) if study.deadline_s else ()
        why = f"epoch {trial.epoch} is a boundary"
        ask = AskForecast(trial=trial.id, epoch=trial.epoch, horizons=asked, why=why)
        # Still requested without trust: accurate forecasts make it trust them again.
        distrust = self._get_distrust(study)
        why = f"it trains on, since {distrust}" if distrust else ""
        until = self._get_next_boundary(trial.epoch, study)
        why = why or "it trains on while its forecast is computed"
        # It keeps its slots until then.
        width = self._width if self._is_promising(trial.id) else 0
        return (ask, Go(trial=trial.id, until=until, width=width, why=why))

    def _get_distrust(self, study: StudyView) -> str:
        return "" if self._published else study.calibration.distrust

    def _explain_kill(self, trial: TrialView, study: StudyView) -> str:
        """Return why the trial's last reports show no learning, or that it was lost again."""
        spec = study.spec
        if self._kill is None:
            return ""
        recent = trial.losses[-self._boundary :]
        if min(recent) <= spec.sign * self._kill:
            return ""
        best = format_metric(min(recent), spec)
        since = trial.epoch - len(recent) + 1
        return (
            f"best {spec.metric} {best} in epochs {since} to {trial.epoch}: not past {self._kill:g}"
        )

    def _get_next_boundary(self, epoch: int, study: StudyView) -> int:
        return min(epoch - epoch % self._boundary + self._boundary, study.spec.epochs)

    def _last_reachable_epoch(self, trial: TrialView, study: StudyView) -> int:
        """Return the last epoch before the deadline, at this trial's pace at its width."""
        epochs = study.spec.epochs
        if study.deadline_s is None:
            return epochs
        pace = self._chances.pace.get(trial.id)
        left = study.deadline_s - study.now
        return min(epochs, trial.epoch + int(left / pace)) if pace else epochs

    def _classify(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        p = self._chances.get_confidence(trial.id)
        if p is None or self._get_distrust(study):
            return ()
        # One boundary beyond its goal, so that it never waits for its next forecast.
        until = self._get_next_boundary(self._get_next_boundary(trial.epoch, study), study)
        if self._is_leader(trial, study):
            why = f"promising: it is the best so far, {self._describe(trial.id)}"
            return (self._train_on(trial.id, until, why),)
        if self._is_poor(trial.id, study):
            if self._lacks_evidence(study):
                return ()  # it trains on, and shows whether its forecast was right
            return self._end_poor(trial, study)
        if self._is_promising(trial.id):
            return (self._train_on(trial.id, until, self._explain_promising(trial.id)),)
        if study.closed and not (self._queue or self._poor or study.ready):
            return ()
        turn = self._choose_turn(study, trial.id)
        if turn is not None and turn.trial == trial.id:
            why = f"opportunistic: {self._describe(trial.id)}; {turn.why}"
            return (Go(trial=trial.id, until=until, label=OPPORTUNISTIC, why=why),)
        if self._slots:
            reason = f"is below the threshold {self._threshold:.1%}"
            if p >= self._threshold:
                reason = f"does not earn one of {self._slots} slots for promising trials"
        else:
            reason = f"earns no slot of {study.capacity} for good"
        why = f"opportunistic: its confidence {p:.1%} {reason}, and others wait for a turn"
        return (Cut(trial=trial.id, label=OPPORTUNISTIC, why=why),)

    def _train_on(self, trial: TrialId, until: int, why: str) -> Go:
        return Go(trial=trial, until=until, label=PROMISING, width=self._width, why=why)

    def _is_leader(self, trial: TrialView, study: StudyView) -> bool:
        """Say whether there is no target, and this is the trial that any other has to beat."""
        best = study.best
        is_best = best is not None and best.id == trial.id
        return is_best and study.spec.budget.target is None and not self._published

    def _get_low(self, trial: TrialId, study: StudyView) -> float:
        """Return the confidence below which a trial is poor: less if less training is left."""
        if self._published:
            return self._low
        return self._low * self._chances.get_left_share(trial, study)

    def _is_poor(self, trial: TrialId, study: StudyView) -> bool:
        p = self._chances.get_confidence(trial)
        return p is not None and p < self._get_low(trial, study)

    def _lacks_evidence(self, study: StudyView) -> bool:
        """Say whether some trials are poor by forecasts of which too few have been scored."""
        if self._published or study.calibration.scored >= _EVIDENCE:
            return False
        return len(self._poor) >= study.capacity

    def _end_poor(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        """Stop a poor trial; pause it if the forecasts are not good enough to stop it for good."""
        p, low = self._get_confidence(trial.id), self._get_low(trial.id, study)
        why = f"poor: its confidence {p:.1%} is below {low:.2g}"
        # If there is a last trial, a paused one may still get its turn: no target is missed.
        for_good = self._is_endless(study) and study.spec.budget.target is not None
        if self._published or (for_good and p < low * self._chances.trust):
            return (Stop(trial=trial.id, label=POOR, why=why),)
        if study.closed and not (self._queue or study.ready):
            return ()  # nothing better is left
        pause = Cut(trial=trial.id, label=POOR, why=f"{why}; paused until nothing better is left")
        kept = [*self._poor, trial.id]
        if not self._is_endless(study) or len(kept) <= _KEPT_POOR * study.capacity:
            return (pause,)
        worst = max(kept, key=self._rank)
        p = self._get_confidence(worst)
        why = f"poor: its confidence {p:.1%} is the lowest of {len(kept)} poor trials"
        stop = Stop(trial=worst, label=POOR, why=why)
        return (stop,) if worst == trial.id else (stop, pause)

    # The pools

    def _rank(self, trial: TrialId) -> tuple[float, float]:
        """Return the key that sorts trials by confidence, then by expected remaining time."""
        return -self._get_confidence(trial), self._chances.estimate_s(trial)

    def _get_confidence(self, trial: TrialId) -> float:
        return self._chances.get_confidence(trial) or 0.0

    def _list_promising(self) -> list[TrialId]:
        """Return the promising trials, best first; with `quota` no more than have slots."""
        if not self._slots:
            return []
        ranked = self._chances.iterate_confidences()
        above = takewhile(lambda each: each[1] >= self._threshold, ranked)
        sure = sorted((trial for trial, _ in above), key=self._rank)
        return sure[: self._slots // self._k] if self._quota else sure

    def _is_promising(self, trial: TrialId) -> bool:
        if not self._quota:
            p = self._chances.get_confidence(trial)
            return bool(self._slots) and p is not None and p >= self._threshold
        return trial in self._list_promising()

    def _is_endless(self, study: StudyView) -> bool:
        """Say whether new trials never end."""
        spec = study.spec
        return spec.budget.trials is None and spec.generator.name not in FINITE_GENERATORS

    def _count_room(self, study: StudyView) -> float:
        """Return how many opportunistic trials may wait while new ones are opened."""
        if self._waiting is not None:
            return self._waiting * study.capacity
        trust = self._chances.trust**2
        if self._published or trust >= 1.0:
            return inf
        return study.capacity * trust / (1.0 - trust)

    def _choose_turn(self, study: StudyView, own: TrialId | None = None) -> Turn | None:
        """Choose the next trial of the opportunistic pool; `own` would wait last of all."""
        waiting = list(self._queue)
        if own is not None:
            waiting.append(own)
        may_open = study.new if own is None else not study.closed
        if (may_open and len(waiting) <= self._count_room(study)) or not waiting:
            # With a last trial all are in line from the start, and never-started ones come first.
            new = not (waiting and self._opened_last and self._is_endless(study))
            if may_open and new:
                return Turn(None, "a turn for a new trial")
            if waiting:
                return Turn(waiting[0], "a turn for the trial that has waited longest")
        elif self._published or self._get_distrust(study):
            return Turn(waiting[0], "a turn for the trial that has waited longest")
        else:
            return Turn(min(waiting, key=self._rank), "a turn for the best of those that wait")
        ranked = (each for each, _ in self._chances.iterate_confidences())
        poor = next((each for each in ranked if each in self._poor), None)
        return None if poor is None else Turn(poor, "poor, but nothing better is left")

    def readmit(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        on_its_way = trial.epoch < trial.goal and trial.goal % self._boundary == 0
        if on_its_way or self._is_paused(trial.id):
            return ()
        until = self._get_next_boundary(trial.goal, study)
        why = f"the study was extended: the boundary after epoch {trial.goal} is at epoch {until}"
        return (Go(trial=trial.id, until=until, why=why),)

    def next(self, study: StudyView) -> Pick | None:
        for ready in study.ready:
            return Pick(ready, 0, "it was interrupted")
        distrusted = bool(self._get_distrust(study))
        best = None if distrusted else self._find_best_promising(study)
        if best is not None:
            until = self._get_next_boundary(study.trials[best].epoch, study)
            return Pick(best, until, self._explain_promising(best), PROMISING, self._width)
        turn = self._choose_turn(study)
        if turn is None:
            return None
        epoch = 0 if turn.trial is None else study.trials[turn.trial].epoch
        until = self._get_next_boundary(epoch, study)
        return Pick(turn.trial, until, f"opportunistic: {turn.why}", OPPORTUNISTIC)

    def _describe(self, trial: TrialId) -> str:
        p, expected_s = self._chances.get_confidence(trial), self._chances.estimate_s(trial)
        if p is None:
            return "without a forecast"
        return f"confidence {p:.1%}, expected in {format_duration(expected_s)}"

    def _explain_promising(self, trial: TrialId) -> str:
        slots = "slot" if self._slots == 1 else "slots"
        return (
            f"promising: {self._describe(trial)}, threshold {self._threshold:.1%}, "
            f"{self._slots} {slots} for such trials"
        )

    def _find_best_promising(self, study: StudyView) -> TrialId | None:
        """Return the paused promising trial of highest confidence, if its pool has a free slot."""
        best = study.best
        if best is not None and self._is_paused(best.id) and self._is_leader(best, study):
            return best.id
        sure = self._list_promising()
        running = (each for each in sure if study.trials[each].status is Status.RUNNING)
        if sum(max(self._k, self._chances.pace.get_width(each)) for each in running) >= self._slots:
            return None
        return next(filter(self._is_paused, sure), None)

    def _is_paused(self, trial: TrialId) -> bool:
        return trial in self._queue or trial in self._poor

    def count_waiting(self, study: StudyView, new: float) -> float:
        """Return how many more trials would start if slots were free, `new` of them new."""
        return new + len(self._queue) + len(self._poor)

    def admit(self, study: StudyView) -> int | None:
        return None
