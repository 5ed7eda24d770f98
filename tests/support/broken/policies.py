"""Policies that break one promise each."""

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


class LeavesTheReady(Fifo):
    """Starts trials, and forgets those whose attempt was lost."""

    def next(self, study: StudyView) -> Pick | None:
        return Pick(None, study.spec.epochs, "a slot is free") if study.new else None


class DividesByCapacity(Fifo):
    """Does arithmetic that needs a slot to be there."""

    share = 0.0

    def see(self, entry: Entry, study: StudyView) -> None:
        if study.trials:
            self.share = study.running / study.capacity


class Moody(Fifo):
    """Decides by something that is not in the log."""

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


class PicksTheDead(Fifo):
    """Gives a slot to a trial that is long over."""

    def next(self, study: StudyView) -> Pick | None:
        return super().next(study) or Pick(0, study.spec.epochs, "it was first after all")


class Silent(Fifo):
    """Does not say why."""

    def next(self, study: StudyView) -> Pick | None:
        pick = super().next(study)
        return pick and Pick(pick.trial, pick.until, "because")


class CountsReports(Fifo):
    """Believes every report it sees, instead of what was delivered."""

    def __init__(self) -> None:
        self.count = 0

    def see(self, entry: Entry, study: StudyView) -> None:
        self.count += isinstance(entry, Reported)

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        stop = Stop(trial=trial.id, why=f"{self.count} reports are in")
        return (stop,) if self.count % 5 == 0 else ()


class Polls(Fifo):
    """Looks again every second, for as long as `wants` is not met."""

    def wants(self, trial: TrialView, study: StudyView) -> bool:
        return True

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        if trial.epoch < trial.goal:
            return ()
        if self.wants(trial, study):
            again = WakeAt(at=study.now + 1.0, trial=trial.id, why="somebody is still missing")
            return (again, Pause(trial=trial.id, why="somebody is still missing"))
        return (Go(trial=trial.id, until=study.spec.epochs, why="everybody is there"),)

    def next(self, study: StudyView) -> Pick | None:
        pick = super().next(study)
        return pick and Pick(pick.trial, 2, pick.why)


class WaitsForTheShort(Polls):
    """Waits until everybody has come to epoch 2, also those who have ended before."""

    def wants(self, trial: TrialView, study: StudyView) -> bool:
        return any(other.epoch < 2 for other in study.trials)


class WaitsForANumber(Polls):
    """Waits until a number comes where there was none."""

    def wants(self, trial: TrialView, study: StudyView) -> bool:
        return trial.loss == NO_LOSS


class OneReportOneTrial(Fifo):
    """Does not expect that two trials share an epoch."""

    def see(self, entry: Entry, study: StudyView) -> None:
        if study.delivered:
            (_,) = study.delivered


class GoesBackwards(Fifo):
    """Opens trials with a goal before their beginning."""

    def next(self, study: StudyView) -> Pick | None:
        return Pick(None, -1, "a slot is free") if study.new else None


class OneByOne(Fifo):
    """Goes on with the waiting trial that `key` puts first, one epoch at a time."""

    def key(self, trial: TrialView) -> float:
        return trial.loss

    def next(self, study: StudyView) -> Pick | None:
        for ready in study.ready:
            return Pick(ready, 0, "it was interrupted before")
        if study.new:
            return Pick(None, 1, "a slot is free")
        waiting = [trial for trial in study.trials if trial.status is Status.WAITING]
        best = min(waiting, key=self.key, default=None)
        if best is None:
            return None
        return Pick(best.id, best.epoch + 1, "it is the best that waits")


class LikesWhatIsNoNumber(OneByOne):
    """Ranks from the wrong end."""

    def key(self, trial: TrialView) -> float:
        return -trial.loss


class PromotesTheNewest(Fifo):
    """Lets a trial go on only if it leads at the moment it arrives; equal ones lead by number."""

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
    """Wants nobody."""

    def next(self, study: StudyView) -> Pick | None:
        return None


class ReadsRawValues(Fifo):
    """Compares the metric as it was reported."""

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        value = trial.metric(study.spec.metric)[-1]
        bad = value is not None and value > 1.0
        return (Stop(trial=trial.id, why=f"{value} is too much"),) if bad else ()


class StopsEverybody(Fifo):
    """Has no patience."""

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        return (Stop(trial=trial.id, why="one epoch is enough"),)


BREAKERS: dict[str, tuple[Callable[..., Any], type[Exception]]] = {
    "test_a_study_ends_and_frees_all_slots": (LeavesTheReady, AssertionError),
    "test_a_deadline_ends_the_study_even_without_slots": (
        DividesByCapacity,
        ZeroDivisionError,
    ),
    "test_the_same_facts_cause_the_same_decisions": (Moody, AssertionError),
    "test_its_memory_is_a_fold_of_the_log": (WritesWhileJudging, AssertionError),
    "test_judging_writes_nothing": (WritesWhileJudging, AssertionError),
    "test_it_picks_only_whom_a_slot_is_of_use_to": (PicksTheDead, AssertionError),
    "test_every_decision_says_why": (Silent, AssertionError),
    "test_late_and_doubled_reports_are_harmless": (CountsReports, AssertionError),
    "test_runs_that_end_early_do_not_hold_it_up": (WaitsForTheShort, AssertionError),
    "test_runs_without_numbers_do_not_hold_it_up": (WaitsForANumber, AssertionError),
    "test_it_works_where_trials_share_their_prefixes": (OneReportOneTrial, ValueError),
    "test_no_state_on_the_way_contradicts_itself": (GoesBackwards, SpecError),
    "test_what_is_not_a_number_never_wins": (LikesWhatIsNoNumber, AssertionError),
    "test_the_order_of_equal_losses_does_not_matter": (PromotesTheNewest, AssertionError),
    "test_a_lone_trial_is_never_starved": (NeverStarts, AssertionError),
    "test_the_best_run_is_trained_to_its_end": (StopsEverybody, AssertionError),
    "test_lower_and_higher_are_better_alike": (ReadsRawValues, AssertionError),
    "test_the_cost_of_a_report_does_not_grow_with_the_trials": (OneByOne, AssertionError),
}
