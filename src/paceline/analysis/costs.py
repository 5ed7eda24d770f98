"""What things cost, read off a log: starting, saving, loading.

Knows which times in a log lie before and between an attempt's epochs. What a study measured of
itself goes into its trace, so that a simulation of it charges the same.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.core.decisions import Launch
from paceline.core.events import Reported, Saved
from paceline.core.values import TrialId
from paceline.machine.state import StudyState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.core.decisions import Step
    from paceline.core.values import AttemptId


class Costs(Struct, frozen=True, kw_only=True):
    """Seconds, to the microsecond: what is less is dust from adding and subtracting clock times."""

    # From a trial's first launch to the start of its first epoch.
    setup_s: dict[TrialId, float]
    # The means over all saves, and over all attempts that went on from one: what that takes beyond
    # what starting takes. None: there were none, or they cost nothing.
    save_s: float | None
    restore_s: float | None


def measured(steps: Iterable[Step]) -> tuple[StudyState, Costs]:
    """Fold a log; return with the state what its attempts paid for beside their epochs."""
    state, tally = StudyState(), _Tally()
    for step in steps:
        tally.take(step)
        for entry in step.entries:
            state.apply(entry)
    return state, tally.costs()


class _Tally:
    """Times of attempts, as far as they tell costs."""

    def __init__(self) -> None:
        self._launched: dict[AttemptId, tuple[Launch, float]] = {}
        # When the first epoch of an attempt was told, and what had passed before it.
        self._told: dict[AttemptId, float] = {}
        self._waited: dict[AttemptId, float] = {}
        self._saves: list[float] = []

    def take(self, step: Step) -> None:
        event = step.event
        if isinstance(event, Reported) and self._is_first(event):
            _, at = self._launched[event.attempt]
            self._told[event.attempt] = event.at
            self._waited[event.attempt] = event.at - at - event.seconds
        elif isinstance(event, Saved):
            self._saves.append(event.seconds)
            # A first epoch that was told with its checkpoint was saved before it was told.
            if self._is_first(event) and event.at - self._told[event.attempt] < event.seconds / 2:
                self._waited[event.attempt] -= event.seconds
        for decision in step.decisions:
            if isinstance(decision, Launch):
                self._launched[decision.attempt] = decision, event.at

    def costs(self) -> Costs:
        first: dict[TrialId, float] = {}
        again: list[float] = []
        for attempt, waited in self._waited.items():
            launch, _ = self._launched[attempt]
            if launch.start == 0:
                first.setdefault(launch.trial, waited)
            else:
                again.append(waited)
        start_s = fmean(first.values()) if first else 0.0
        return Costs(
            setup_s={trial: cost for trial, took in first.items() if (cost := _settled(took))},
            save_s=_settled(fmean(self._saves or [0.0])),
            restore_s=_settled(fmean(again) - start_s if again else 0.0),
        )

    def _is_first(self, event: Reported | Saved) -> bool:
        launched = self._launched.get(event.attempt)
        return launched is not None and event.epoch == launched[0].start + 1


def _settled(seconds: float) -> float | None:
    return round(seconds, 6) if round(seconds, 6) > 0 else None
