"""Asynchronous successive halving in its promotion form.

Rule: with n scores at rung r·eta^k, a trial among the best n // eta of them goes on to the next
rung; whenever a slot is free, the highest rung with such a trial gives it its best one, and if
there is none a new trial starts.

Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020. Changed against
the paper: (1) a trial that would be promoted at once goes on in its own process, without the pause;
(2) `drain`: once no new trial can come, slots go on with the best waiting trial of the highest
rung instead of idling, since a slot that idles finds nothing; (3) trials that agree up to the
next rung are one candidate: one score, one of the n // eta, and all of them go on together at the
cost of one; those that part before it are several, though their scores are equal; (4) where
fewer than eta candidates stand for eta trials or more, and nothing else is left to do, the best
candidate goes on: its trials have not parted yet; (5) a report that is not a number counts, and
never wins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.decisions import Go, Pause
from paceline.core.events import Opened
from paceline.core.ports import Pick
from paceline.core.values import NO_LOSS
from paceline.policies.rungs import Rung, first_rung, milestones

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Verdict
    from paceline.core.values import StudySpec
    from paceline.core.views import StudyView, TrialView


class Asha:
    """Promote the best 1/eta of each rung, as soon as they are known."""

    def __init__(self, *, eta: int = 3, first: int | None = None, drain: bool = True) -> None:
        self._eta = eta
        # None: one percent of the epochs, at least one.
        self._first = first
        self._drain = drain
        self._levels: list[int] = milestones(1 if first is None else first, eta, 1)
        self._rungs: dict[int, Rung] = {}
        self._after: dict[int, int] = {}
        self._highest_first: list[Rung] = []
        self._share = False

    def see(self, entry: Entry, study: StudyView) -> None:
        if study.delivered:
            for trial in study.delivered:
                rung = self._rungs.get(trial.epoch)
                if rung is not None:
                    # Who agrees up to the next rung is one candidate; who parts before is not.
                    origin = trial.origin(self._after[rung.level]) if self._share else None
                    rung.record(trial.id, trial.loss, origin)
        elif type(entry) is Go:
            rung = self._rungs.get(study.trials[entry.trial].epoch)
            if rung is not None:
                if self._share and not self._drain and not rung.quota:
                    rung.grant()  # whoever is the same candidate follows
                rung.leave(entry.trial)
        elif type(entry) is Opened:
            self._open(entry.spec)
        for trial in study.departed:
            rung = self._rungs.get(trial.epoch)
            if rung is not None:
                rung.leave(trial.id)

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        rung = self._rungs.get(trial.epoch)
        if rung is None or trial.epoch < trial.goal or not trial.alive:
            return ()
        # Whom a freed slot would be given to goes on in its own process, without the pause.
        pick = self._waiting_pick(study)
        if pick is not None and pick.trial == trial.id:
            return (Go(trial=trial.id, until=pick.until, why=pick.why),)
        return (Pause(trial=trial.id, why=self._waits(trial, rung, study.spec)),)

    def next(self, study: StudyView) -> Pick | None:
        for ready in study.ready:
            return Pick(ready, 0, "it was interrupted before its rung")
        pick = self._waiting_pick(study)
        if pick is None and study.new:
            first = self._levels[0]
            return Pick(None, first, "a slot is free and no rung has a trial to promote")
        return pick

    def admit(self, study: StudyView) -> int | None:
        return None

    def _open(self, spec: StudySpec) -> None:
        self._levels = milestones(first_rung(self._first, spec.epochs), self._eta, spec.epochs)
        self._rungs = {level: Rung(level, self._eta) for level in self._levels[:-1]}
        self._after = dict(zip(self._levels, self._levels[1:], strict=False))
        self._highest_first = list(reversed(self._rungs.values()))
        self._share = spec.share

    def _waiting_pick(self, study: StudyView) -> Pick | None:
        for rung in self._highest_first:
            trial = rung.best_promotable()
            if trial is not None:
                why = f"it is among the best {rung.quota} of {rung.count} at epoch {rung.level}"
                return Pick(trial, self._after[rung.level], why)
        if not study.closed:
            return None
        return self._drained() if self._drain else self._undecided(study)

    def _undecided(self, study: StudyView) -> Pick | None:
        """Return the best of the highest rung, where too few candidates stand for many trials."""
        reached = next((rung for rung in self._highest_first if rung.count), None)
        if study.running or reached is None or reached.quota or reached.trials < self._eta:
            return None
        loss, trial = reached.best_waiting() or (NO_LOSS, -1)
        if loss == NO_LOSS:
            return None
        few = f"{reached.count} of {reached.trials} trials differ so far"
        why = f"only {few} and nothing else is left to do: it is the best at epoch {reached.level}"
        return Pick(trial, self._after[reached.level], why)

    def _drained(self) -> Pick | None:
        blind = None
        for rung in self._highest_first:
            waiting = rung.best_waiting()
            if waiting is None:
                continue
            loss, trial = waiting
            why = f"no new trials come, and it is the best that waits at epoch {rung.level}"
            pick = Pick(trial, self._after[rung.level], why)
            if loss < NO_LOSS:
                return pick
            # Without a number it goes on only when nobody with a number is left.
            blind = blind or pick
        return blind

    def _waits(self, trial: TrialView, rung: Rung, spec: StudySpec) -> str:
        if trial.loss == NO_LOSS:
            return f"its {spec.metric} at epoch {rung.level} is not a number"
        value = spec.sign * trial.loss
        if not rung.quota:
            return (
                f"{spec.metric} {value:.4g} at epoch {rung.level}: only {rung.count} of the "
                f"{self._eta} scores that one promotion needs are in"
            )
        if trial.loss <= rung.cutoff:
            return f"{spec.metric} {value:.4g} at epoch {rung.level}: others are promoted first"
        return (
            f"{spec.metric} {value:.4g} at epoch {rung.level} is worse than "
            f"{spec.sign * rung.cutoff:.4g}, the last of the best {rung.quota} of {rung.count}"
        )
