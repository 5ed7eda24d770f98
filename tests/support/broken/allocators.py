"""Allocators that break one clause each."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from paceline.allocation.fixed import Fixed
from paceline.core.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from paceline.core.ports import Demands
    from paceline.core.values import TrialId
    from paceline.core.views import StudyView

_calls = count()


class Gives(Fixed):
    """Gives every asking trial the same width."""

    width = 1.0

    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        return {} if demands.asking is None else {demands.asking.trial: self.width}


class GivesLessThanNothing(Gives):
    width = -0.5


class GivesABillion(Gives):
    width = 1e9


class GivesNothing(Gives):
    width = 0.0


class GivesToTheFirst(Gives):
    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        return {**super().place(demands, study), 0: 1.0}


class WritesWhilePlacing(Gives):
    """Alternates widths by a counter that is not in the log."""

    def __init__(self) -> None:
        self.turn = 0

    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        self.turn += 1
        wide = min(self.turn % 2 + 1, study.spec.span)
        return {trial: float(wide) for trial in super().place(demands, study)}


class TakesTurnsWithEverybody(Gives):
    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        wide = min(next(_calls) % 2 + 1, study.spec.span)
        return {trial: float(wide) for trial in super().place(demands, study)}


class GivesEverythingToEach(Gives):
    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        whole = float(max(1, min(study.capacity, study.spec.span)))
        running = {demand.trial: whole for demand in demands.running()}
        return {**super().place(demands, study), **running}


class CutsByCapacity(Gives):
    """Splits a slot into more shares the more slots there are."""

    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        share = 1.0 / max(1, min(study.capacity, study.spec.pack))
        return dict.fromkeys(super().place(demands, study), share)


class KeepsOneInReserve(Gives):
    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        wide = max(1, study.spec.span // (study.capacity - 1))
        return dict.fromkeys(super().place(demands, study), float(wide))


class Restless(Gives):
    """Widens another trial every second and makes two others share a slot."""

    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        running = [demand.trial for demand in demands.running()]
        if demands.asking is not None or len(running) < 4:
            return super().place(demands, study)
        at = int(study.now) % len(running)
        first, second, third, *_ = running[at:] + running[:at]
        return {first: 2.0, second: 0.5, third: 0.5}


BREAKERS: dict[str, tuple[Callable[..., Any], type[Exception]]] = {
    "test_no_slot_is_ever_granted_twice": (GivesLessThanNothing, SpecError),
    "test_widths_are_shares_of_a_slot_or_whole_slots": (GivesABillion, AssertionError),
    "test_no_trial_gets_less_than_it_needs": (Gives, AssertionError),
    "test_it_sets_widths_only_of_asking_and_running_trials": (GivesToTheFirst, AssertionError),
    "test_placing_does_not_change_its_memory": (WritesWhilePlacing, AssertionError),
    "test_no_trial_starves": (GivesNothing, SpecError),
    "test_the_same_events_cause_the_same_widths": (TakesTurnsWithEverybody, AssertionError),
    "test_its_memory_is_rebuilt_from_the_log": (WritesWhilePlacing, AssertionError),
    "test_it_widens_only_into_existing_slots": (
        GivesEverythingToEach,
        AssertionError,
    ),
    "test_fewer_slots_give_no_wider_start": (CutsByCapacity, AssertionError),
    "test_it_shrinks_when_capacity_shrinks": (KeepsOneInReserve, ZeroDivisionError),
    "test_it_does_not_resize_without_gain": (Restless, AssertionError),
}
