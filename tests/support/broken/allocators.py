"""Allocators that break one promise each."""

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
    """Gives whoever asks the same."""

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
    """Takes turns by a count that no log knows."""

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
    """Cuts a slot into the more pieces the more slots there are."""

    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        share = 1.0 / max(1, min(study.capacity, study.spec.pack))
        return dict.fromkeys(super().place(demands, study), share)


class KeepsOneInReserve(Gives):
    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        wide = max(1, study.spec.span // (study.capacity - 1))
        return dict.fromkeys(super().place(demands, study), float(wide))


class Restless(Gives):
    """Has another favourite every second, for whom two others must share a slot."""

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
    "test_nobody_is_given_less_than_it_needs": (Gives, AssertionError),
    "test_it_speaks_of_those_who_ask_or_run": (GivesToTheFirst, AssertionError),
    "test_placing_writes_nothing": (WritesWhilePlacing, AssertionError),
    "test_nobody_starves": (GivesNothing, SpecError),
    "test_the_same_facts_cause_the_same_widths": (TakesTurnsWithEverybody, AssertionError),
    "test_its_memory_is_a_fold_of_the_log": (WritesWhilePlacing, AssertionError),
    "test_it_widens_only_into_slots_that_are_there": (
        GivesEverythingToEach,
        AssertionError,
    ),
    "test_fewer_slots_give_no_wider_start": (CutsByCapacity, AssertionError),
    "test_it_shrinks_when_slots_go": (KeepsOneInReserve, ZeroDivisionError),
    "test_it_does_not_move_without_gain": (Restless, AssertionError),
}
