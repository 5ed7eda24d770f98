"""HyperSched: speculative and retrospective halving up to a deadline.

Rule: a trial trains on while its loss at every rung it has passed is among the best 1/eta there,
judged again at each of its reports; else it is paused, and may go on when its rung's cutoff has
moved past it. New trials start only while time left >= min(eta · longest trial, epochs · epoch).

Liaw et al., "HyperSched: Dynamic Resource Reallocation for Model Development on a Deadline", SoCC
2019. Changed against its code: (1) paused trials are not thrown away when admission closes: a slot
that nobody else can use goes on with the best of them (`drain`), so that the runner-up is not
lost; where trials may span several slots the leaders are widened first, unless it is said; (2)
the longest trial is measured in training time, without starts; (3) with `chance`, whoever is new or
was paused starts only where forecasts give it that chance to beat the best by the deadline: a new
trial the mean chance of the last twenty at their first rung; where forecasts have been worse than
the base rate, by the rule alone. Its resizing is the allocator's: `uniform`.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from paceline.core.decisions import AskForecast, Close, Cut, Go, Pause
from paceline.core.errors import SpecError
from paceline.core.events import Forecasted, Opened
from paceline.core.ports import Pick
from paceline.core.text import value
from paceline.core.values import NO_LOSS
from paceline.policies.quantiles import Boards, Quantile
from paceline.policies.rungs import first_rung, milestones

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Verdict
    from paceline.core.values import TrialId
    from paceline.core.views import StudyView, TrialView

# New trials are thought to be like the last so many.
_RECENT = 20


class _Behind(NamedTuple):
    """A rung at which a trial is not among the best."""

    level: int
    cutoff: float
    among: int


class HyperSched:
    """Give the time that is left to those who can still win."""

    def __init__(
        self,
        *,
        eta: int = 4,
        first: int | None = None,
        drain: bool | None = None,
        chance: float | None = None,
    ) -> None:
        milestones(1 if first is None else first, eta, 1)  # refuses what cannot be meant
        if chance is not None and not 0.0 < chance < 1.0:
            raise SpecError(f"hypersched: chance={chance:g} cannot be meant: give one from 0 to 1.")
        self._eta = eta
        self._first = first
        self._drain = drain
        self._chance = chance
        self._levels: list[int] = []
        self._boards = Boards(1.0 / eta)
        # By trial, its losses at the rungs it has passed, and the cutoff it met at the newest.
        self._scores: dict[TrialId, dict[int, float]] = {}
        self._met: dict[TrialId, _Behind] = {}
        # Who is paused, at which rung; and by rung, (loss, trial) with the best in front.
        self._paused: dict[TrialId, int] = {}
        self._queues: dict[int, list[tuple[float, TrialId]]] = {}
        self._longest = 0.0
        self._totals: dict[TrialId, float] = {}
        self._epoch_s = Quantile(0.5)
        self._chances: dict[TrialId, float] = {}
        self._firsts: deque[float] = deque(maxlen=_RECENT)

    def see(self, entry: Entry, study: StudyView) -> None:
        if isinstance(entry, Opened):
            first = first_rung(self._first, entry.spec.epochs)
            self._levels = milestones(first, self._eta, entry.spec.epochs)[:-1]
        elif isinstance(entry, Cut | Pause):
            self._file(study.trials[entry.trial])
        elif isinstance(entry, Go):
            self._paused.pop(entry.trial, None)
            self._clean()
        elif isinstance(entry, Forecasted):
            self._foresee(entry, study)
        for trial in study.delivered:
            self._record(trial, study)
        for trial in study.departed:
            for known in (self._scores, self._met, self._paused, self._totals, self._chances):
                known.pop(trial.id, None)
            self._clean()

    def _record(self, trial: TrialView, study: StudyView) -> None:
        seconds = trial.seconds[-1]
        self._epoch_s.add(seconds)
        total = self._totals[trial.id] = self._totals.get(trial.id, 0.0) + seconds
        self._longest = max(self._longest, total)
        if trial.epoch in self._levels:
            origin = trial.origin(trial.epoch) if study.spec.share else None
            before = self._boards.record(trial.epoch, trial.loss, origin)
            self._scores.setdefault(trial.id, {})[trial.epoch] = trial.loss
            self._met[trial.id] = _Behind(trial.epoch, *before)

    def _file(self, trial: TrialView) -> None:
        behind = self._behind(trial)
        if behind is not None:
            self._paused[trial.id] = behind.level
            score = self._scores[trial.id][behind.level]
            heappush(self._queues.setdefault(behind.level, []), (score, trial.id))

    def _foresee(self, entry: Forecasted, study: StudyView) -> None:
        if entry.forecast is None:
            return
        last = entry.forecast.epochs[-1]
        chance = study.foresight.chance(entry.forecast, last, study.best_loss)
        if entry.trial not in self._chances:
            self._firsts.append(chance)
        self._chances[entry.trial] = chance

    def _clean(self) -> None:
        """Drop whoever is not paused any more from the fronts of the queues."""
        for level, queue in self._queues.items():
            while queue and self._paused.get(queue[0][1]) != level:
                heappop(queue)

    def _behind(self, trial: TrialView) -> _Behind | None:
        """Return the highest rung at which the trial is not among the best."""
        scores, met = self._scores.get(trial.id, {}), self._met.get(trial.id)
        for level in reversed(scores):
            # At the rung it has just come to it meets those before it, later itself too.
            fresh = met is not None and met.level == level == trial.epoch
            behind = met if fresh else _Behind(level, *self._boards.at(level))
            if behind is not None and behind.among >= 2 and scores[level] > behind.cutoff:
                return behind
        return None

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        verdicts: list[Verdict] = []
        refusal = "" if study.closed else self._refusal(study)
        if refusal:
            verdicts.append(Close(why=refusal))
        if not trial.alive:
            return verdicts
        behind = self._behind(trial)
        spec = study.spec
        if behind is not None and trial.goal > trial.epoch and self._wanted(trial.id, study):
            score = self._scores[trial.id][behind.level]
            why = (
                f"{spec.metric} {value(score, spec)} at epoch {behind.level} is worse than "
                f"{value(behind.cutoff, spec)}, the best 1/{self._eta} of {behind.among}"
            )
            verdicts.append(Cut(trial=trial.id, why=why))
        if self._chance is not None and trial.epoch in self._levels:
            last = self._reachable(trial.epoch, study)
            if last > trial.epoch:
                why = f"what it can reach by the deadline, epoch {last}, decides on new trials"
                horizons = (last,)
                verdicts.append(
                    AskForecast(trial=trial.id, epoch=trial.epoch, horizons=horizons, why=why)
                )
        return verdicts

    def _wanted(self, trial: TrialId, study: StudyView) -> bool:
        """Say whether somebody else should have this trial's slot."""
        if not self._drains(study):
            return True
        # No new trials come: it makes room for a paused one that got further, or was better there.
        scores = self._scores[trial]
        return bool(study.ready) or any(
            queue and queue[0][0] < scores.get(level, NO_LOSS)
            for level, queue in self._queues.items()
            if level >= max(scores)
        )

    def _drains(self, study: StudyView) -> bool:
        """Say whether a paused trial may have a slot that no other can use."""
        if not study.closed or self._drain is not None:
            return study.closed and bool(self._drain)
        return study.spec.span == 1 or study.running == 0

    def _reachable(self, epoch: int, study: StudyView) -> int:
        """Return the last epoch that a trial which is there now can reach by the deadline."""
        epochs = study.spec.epochs
        if study.deadline_s is None or not self._epoch_s.value:
            return epochs
        return min(epochs, epoch + int((study.deadline_s - study.now) / self._epoch_s.value))

    def _refusal(self, study: StudyView) -> str:
        """Say why no new trial should start; empty where one may."""
        if study.deadline_s is None or not self._epoch_s.count:
            return ""
        left = study.deadline_s - study.now
        trusted = not study.foresight.distrust
        if self._chance is not None and len(self._firsts) == _RECENT and trusted:
            mean = sum(self._firsts) / _RECENT
            if mean < self._chance:
                return (
                    f"a new trial's chance to beat the best by the deadline is {mean:.1%}, by the "
                    f"last {_RECENT}: below {self._chance:.0%}"
                )
        fair = min(self._longest * self._eta, study.spec.epochs * self._epoch_s.value)
        if left >= fair:
            return ""
        return f"{left:.4g} s are left, and a new trial would need {fair:.4g} s to matter"

    def next(self, study: StudyView) -> Pick | None:
        for ready in study.ready:
            return Pick(ready, 0, "it was interrupted")
        epochs = study.spec.epochs
        waiting = None
        for level in reversed(self._levels):
            queue = self._queues.get(level)
            if not queue:
                continue
            (loss, trial), (cutoff, count) = queue[0], self._boards.at(level)
            if self._hopeless(trial, study):
                continue
            if loss <= cutoff:
                why = f"it is by now among the best 1/{self._eta} of {count} at epoch {level}"
                return Pick(trial, epochs, why)
            if waiting is None or waiting[0] == NO_LOSS:
                waiting = (loss, trial, level)
        if study.new:
            return Pick(None, epochs, "a slot is free and no paused trial has caught up")
        if waiting is None or not self._drains(study):
            return None
        why = f"no new trials come, and it is the best that is paused at epoch {waiting[2]}"
        return Pick(waiting[1], epochs, why)

    def _hopeless(self, trial: TrialId, study: StudyView) -> bool:
        if self._chance is None or study.foresight.distrust:
            return False
        return self._chances.get(trial, 1.0) < self._chance

    def admit(self, study: StudyView) -> int | None:
        return None
