"""Policies that break one clause each."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from paceline.core.decisions import Go, Pause, Stop, WakeAt
from paceline.core.errors import SpecError
from paceline.core.events import Reported
from paceline.core.ports import Pick
from paceline.core.values import NO_LOSS, Status
from paceline.policies.fifo import Fifo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Verdict
    from paceline.core.values import TrialId
    from paceline.core.views import StudyView, TrialView

_calls = count()


class IgnoresReadyTrials(Fifo):
    """Starts new trials only, and never those whose attempt was lost."""

    def next(self, study: StudyView) -> Pick | None:
        return Pick(None, study.spec.epochs, "a slot is free") if study.new else None


class DividesByCapacity(Fifo):
    """Divides by the capacity, which may be zero."""

    share = 0.0

    def see(self, entry: Entry, study: StudyView) -> None:
        if study.trials:
            self.share = study.running / study.capacity


class DecidesByCounter(Fifo):
    """Decides by a counter that is not in the log."""

    def next(self, study: StudyView) -> Pick | None:
        pick = super().next(study)
        return pick and Pick(pick.trial, pick.until, f"this is call {next(_calls)} of all")


class WritesWhileJudging(Fifo):
    """Remembers in `judge`, which is not called when a log is folded."""

    def __init__(self) -> None:
        self.judged: dict[TrialId, list[int]] = {}

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        seen = self.judged.setdefault(trial.id % 3, [])
        seen.append(trial.epoch)
        return (Stop(trial=trial.id, why="its turn has come"),) if len(seen) % 7 == 0 else ()


class PicksEndedTrials(Fifo):
    """Gives a slot to a trial that has ended."""

    def next(self, study: StudyView) -> Pick | None:
        return super().next(study) or Pick(0, study.spec.epochs, "it was first after all")


class GivesNoReason(Fifo):
    """Gives no useful reason."""

    def next(self, study: StudyView) -> Pick | None:
        pick = super().next(study)
        return pick and Pick(pick.trial, pick.until, "because")


class CountsReports(Fifo):
    """Counts every report it sees, instead of `study.delivered`."""

    def __init__(self) -> None:
        self.count = 0

    def see(self, entry: Entry, study: StudyView) -> None:
        self.count += isinstance(entry, Reported)

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        stop = Stop(trial=trial.id, why=f"{self.count} reports are in")
        return (stop,) if self.count % 5 == 0 else ()


class Polls(Fifo):
    """Wakes every second while `wants` is true."""

    def wants(self, trial: TrialView, study: StudyView) -> bool:
        return True

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        if trial.epoch < trial.goal:
            return ()
        if self.wants(trial, study):
            again = WakeAt(at=study.now + 1.0, trial=trial.id, why="a trial is still missing")
            return (again, Pause(trial=trial.id, why="a trial is still missing"))
        return (Go(trial=trial.id, until=study.spec.epochs, why="all trials are there"),)

    def next(self, study: StudyView) -> Pick | None:
        pick = super().next(study)
        return pick and Pick(pick.trial, 2, pick.why)


class WaitsForTheShort(Polls):
    """Waits until all trials have reached epoch 2, even those that ended before."""

    def wants(self, trial: TrialView, study: StudyView) -> bool:
        return any(other.epoch < 2 for other in study.trials)


class WaitsForANumber(Polls):
    """Waits for a number instead of NaN."""

    def wants(self, trial: TrialView, study: StudyView) -> bool:
        return trial.loss == NO_LOSS


class OneReportOneTrial(Fifo):
    """Assumes that a report belongs to one trial only."""

    def see(self, entry: Entry, study: StudyView) -> None:
        if study.delivered:
            (_,) = study.delivered


class GoesBackwards(Fifo):
    """Opens trials with a negative goal."""

    def next(self, study: StudyView) -> Pick | None:
        return Pick(None, -1, "a slot is free") if study.new else None


class OneByOne(Fifo):
    """Continues the paused trial with the lowest `key`, one epoch at a time."""

    def key(self, trial: TrialView) -> float:
        return trial.loss

    def next(self, study: StudyView) -> Pick | None:
        for ready in study.ready:
            return Pick(ready, 0, "it was interrupted before")
        if study.new:
            return Pick(None, 1, "a slot is free")
        paused = [trial for trial in study.trials if trial.status is Status.PAUSED]
        best = min(paused, key=self.key, default=None)
        if best is None:
            return None
        return Pick(best.id, best.epoch + 1, "it is the best paused trial")


class PrefersNan(OneByOne):
    """Ranks in the wrong direction."""

    def key(self, trial: TrialView) -> float:
        return -trial.loss


class PromotesTheNewest(Fifo):
    """Promotes a trial only if it leads on arrival; of equal losses the lower number leads."""

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        if trial.epoch != 1:
            return ()
        leads = min((other.loss, other.id) for other in study.trials if other.epoch) == (
            trial.loss,
            trial.id,
        )
        if leads:
            return (Go(trial=trial.id, until=study.spec.epochs, why="it leads the others"),)
        return (Stop(trial=trial.id, why="it does not lead"),)

    def next(self, study: StudyView) -> Pick | None:
        pick = super().next(study)
        return pick and Pick(pick.trial, 1, pick.why)


class NeverStarts(Fifo):
    """Never starts a trial."""

    def next(self, study: StudyView) -> Pick | None:
        return None


class ReadsRawValues(Fifo):
    """Compares the metric as it was reported."""

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        value = trial.metric(study.spec.metric)[-1]
        bad = value is not None and value > 1.0
        return (Stop(trial=trial.id, why=f"{value} is too much"),) if bad else ()


class StopsEveryTrial(Fifo):
    """Stops every trial after one epoch."""

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        return (Stop(trial=trial.id, why="one epoch is enough"),)


BREAKERS: dict[str, tuple[Callable[..., Any], type[Exception]]] = {
    "test_a_study_ends_and_frees_all_slots": (IgnoresReadyTrials, AssertionError),
    "test_a_deadline_ends_the_study_even_without_slots": (
        DividesByCapacity,
        ZeroDivisionError,
    ),
    "test_the_same_events_cause_the_same_decisions": (DecidesByCounter, AssertionError),
    "test_its_memory_is_rebuilt_from_the_log": (WritesWhileJudging, AssertionError),
    "test_judging_does_not_change_its_memory": (WritesWhileJudging, AssertionError),
    "test_it_picks_only_trials_that_can_use_a_slot": (PicksEndedTrials, AssertionError),
    "test_every_decision_gives_a_reason": (GivesNoReason, AssertionError),
    "test_late_and_duplicate_reports_are_harmless": (CountsReports, AssertionError),
    "test_runs_that_end_early_do_not_stall_the_study": (WaitsForTheShort, AssertionError),
    "test_runs_without_numbers_do_not_stall_the_study": (WaitsForANumber, AssertionError),
    "test_it_works_when_trials_share_prefixes": (OneReportOneTrial, ValueError),
    "test_no_intermediate_state_breaks_an_invariant": (GoesBackwards, SpecError),
    "test_nan_and_infinity_never_win": (PrefersNan, AssertionError),
    "test_the_order_of_equal_losses_does_not_matter": (PromotesTheNewest, AssertionError),
    "test_a_lone_trial_is_never_starved": (NeverStarts, AssertionError),
    "test_the_best_run_is_trained_to_its_last_epoch": (StopsEveryTrial, AssertionError),
    "test_minimising_and_maximising_give_the_same_decisions": (ReadsRawValues, AssertionError),
    "test_the_cost_of_a_report_does_not_grow_with_the_number_of_trials": (OneByOne, AssertionError),
}
