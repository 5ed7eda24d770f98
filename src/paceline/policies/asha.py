"""ASHA: asynchronous successive halving, promotion variant.

Rule: with n scores at rung r·eta^k, the best n // eta may train on to the next rung. A free slot
goes to the best such trial of the highest rung that has one; if there is none, a new trial starts.

Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020. Different from the
paper: (1) a trial that would be promoted at once trains on in its own process, without a pause;
(2) `drain`: when no new trials will come, a free slot continues the best paused trial of the
highest rung instead of staying idle; by default where a deadline, a target or the slot time ends
the study, and otherwise only the best trial of the highest rung trains to its last epoch, if no
trial has got there; (3) trials with the same settings up to the next rung are one
candidate: one score, one of the n // eta, promoted together at the cost of one; trials that differ
before the next rung are separate candidates, even with equal scores; (4) if fewer than eta
candidates represent eta or more trials and nothing else is left to run, the best candidate is
promoted, so that its trials can diverge; (5) a report that is not a number counts and never wins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.base_part import BasePart
from paceline.core.decisions import Go, Pause
from paceline.core.events import Opened
from paceline.core.ports import Pick
from paceline.core.values import NO_LOSS, Status
from paceline.policies.budget_rules import may_drain
from paceline.policies.rungs import Rung, choose_first_rung, compute_milestones

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Verdict
    from paceline.core.values import StudySpec
    from paceline.core.views import StudyView, TrialView


class Asha(BasePart):
    """Promotes the best 1/eta of each rung as soon as they are known."""

    def __init__(
        self, *, eta: int = 3, first: int | None = None, drain: bool | None = None
    ) -> None:
        self._eta = eta
        # None: one percent of the epochs, at least one.
        self._first = first
        # None: by the study's budget.
        self._drain = drain
        # Whether a trial with a number has finished.
        self._finished = False
        self._levels: list[int] = compute_milestones(1 if first is None else first, eta, 1)
        self._rungs: dict[int, Rung] = {}
        self._after: dict[int, int] = {}
        self._highest_first: list[Rung] = []
        self._share = False

    def see(self, entry: Entry, study: StudyView) -> None:
        if study.delivered:
            for trial in study.delivered:
                rung = self._rungs.get(trial.epoch)
                if rung is not None:
                    # Trials with the same settings up to the next rung are one candidate.
                    origin = trial.origin(self._after[rung.level]) if self._share else None
                    rung.record(trial.id, trial.loss, origin)
        elif type(entry) is Go:
            rung = self._rungs.get(study.trials[entry.trial].epoch)
            if rung is not None:
                if self._share and not rung.quota and not may_drain(self._drain, study):
                    rung.allow_one()  # trials of the same candidate follow
                rung.remove(entry.trial)
        elif type(entry) is Opened:
            self._set_up(entry.spec)
        for trial in study.departed:
            rung = self._rungs.get(trial.epoch)
            if rung is not None:
                rung.remove(trial.id)
            if trial.status is Status.FINISHED and trial.loss < NO_LOSS:
                self._finished = True

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        if trial.epoch < trial.goal or not trial.alive:
            return ()
        rung = self._rungs.get(trial.epoch)
        if rung is None:
            return ()
        # The trial that the freed slot would go to trains on in its own process, without a pause.
        pick = self._pick_paused(study, ending=1)
        if pick is not None and pick.trial == trial.id:
            return (Go(trial=trial.id, until=pick.until, why=pick.why),)
        return (Pause(trial=trial.id, why=self._explain_pause(trial, rung, study.spec)),)

    def readmit(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        if trial.goal in self._levels:
            return ()  # it is at a rung, or on its way to one
        after = next(level for level in self._levels if level > trial.goal)
        why = f"the study was extended: the rung after epoch {trial.goal} is at epoch {after}"
        return (Go(trial=trial.id, until=after, why=why),)

    def next(self, study: StudyView) -> Pick | None:
        if study.ready:
            return Pick(next(iter(study.ready)), 0, "it was interrupted before its rung")
        pick = self._pick_paused(study)
        if pick is None and study.new:
            first = self._levels[0]
            return Pick(None, first, "a slot is free and no rung has a trial to promote")
        return pick

    def admit(self, study: StudyView) -> int | None:
        return None

    def count_waiting(self, study: StudyView, new: float) -> float:
        """Return how many more trials would start if slots were free, `new` of them new."""
        if study.closed and may_drain(self._drain, study):
            return sum(rung.paused_count for rung in self._rungs.values())
        return new + sum(rung.promotable_count for rung in self._highest_first)

    def _set_up(self, spec: StudySpec) -> None:
        self._levels = compute_milestones(
            choose_first_rung(self._first, spec.epochs), self._eta, spec.epochs
        )
        self._rungs = {level: Rung(level, self._eta) for level in self._levels[:-1]}
        self._after = dict(zip(self._levels, self._levels[1:], strict=False))
        self._highest_first = list(reversed(self._rungs.values()))
        self._share = spec.share
        self._finished = False

    def _pick_paused(self, study: StudyView, ending: int = 0) -> Pick | None:
        """Pick a paused trial; `ending` of the running attempts count as ended."""
        for rung in self._highest_first:
            trial = rung.best_promotable
            if trial is not None:
                why = f"it is among the best {rung.quota} of {rung.count} at epoch {rung.level}"
                return Pick(trial, self._after[rung.level], why)
        if not study.closed:
            return None
        if may_drain(self._drain, study):
            return self._pick_to_drain()
        running = study.running
        if running > ending or study.ready:
            return None
        pick = None if running else self._pick_undecided()
        if pick is not None or self._drain is not None or self._finished:
            return pick
        return self._pick_to_finish()

    def _pick_undecided(self) -> Pick | None:
        """Pick the best of the highest rung when few candidates represent eta or more trials."""
        reached = next((rung for rung in self._highest_first if rung.count), None)
        if reached is None or reached.quota or reached.trials < self._eta:
            return None
        loss, trial = reached.best_paused or (NO_LOSS, -1)
        if loss == NO_LOSS:
            return None
        few = f"{reached.count} of {reached.trials} trials differ so far"
        why = f"only {few} and nothing else is left to do: it is the best at epoch {reached.level}"
        return Pick(trial, self._after[reached.level], why)

    def _pick_to_finish(self) -> Pick | None:
        """Pick the best of the highest rung, so that one trial reaches the last epoch."""
        for rung in self._highest_first:
            loss, trial = rung.best_paused or (NO_LOSS, -1)
            if loss < NO_LOSS:
                why = (
                    f"no trial is promoted and none has finished: it is the best at epoch "
                    f"{rung.level}"
                )
                return Pick(trial, self._after[rung.level], why)
        return None

    def _pick_to_drain(self) -> Pick | None:
        without_loss = None
        for rung in reversed(self._rungs.values()):
            best = rung.best_paused
            if best is None:
                continue
            loss, trial = best
            why = f"no new trials come, and it is the best that waits at epoch {rung.level}"
            pick = Pick(trial, self._after[rung.level], why)
            if loss < NO_LOSS:
                return pick
            # A trial without a loss is continued only when no trial with one is left.
            without_loss = without_loss or pick
        return without_loss

    def _explain_pause(self, trial: TrialView, rung: Rung, spec: StudySpec) -> str:
        if trial.loss == NO_LOSS:
            return f"its {spec.metric} at epoch {rung.level} is not a number"
        sign, cutoff = spec.sign, rung.cutoff
        value = sign * trial.loss
        if not rung.quota:
            return (
                f"{spec.metric} {value:.4g} at epoch {rung.level}: only {rung.count} of the "
                f"{self._eta} scores that one promotion needs are in"
            )
        if trial.loss <= cutoff:
            return f"{spec.metric} {value:.4g} at epoch {rung.level}: others are promoted first"
        return (
            f"{spec.metric} {value:.4g} at epoch {rung.level} is worse than "
            f"{sign * cutoff:.4g}, the last of the best {rung.quota} of {rung.count}"
        )
