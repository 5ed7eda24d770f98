"""The costs of starting, saving and restoring, measured from a log.

Separates an attempt's epochs from the time before and between them. An exported trace carries these
costs, so that a simulation of it charges the same.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.core.decisions import AskForecast, Launch
from paceline.core.events import Forecasted, Reported, Saved
from paceline.core.values import TrialId
from paceline.machine.state import StudyState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.core.decisions import Step
    from paceline.core.values import AttemptId


class Costs(Struct, frozen=True, kw_only=True):
    """Seconds, rounded to microseconds: the rest is rounding error of clock times."""

    # From a trial's first launch to the start of its first epoch; and the mean, for trials that
    # never started from scratch. None: they cost nothing.
    setup_s: dict[TrialId, float | None]
    start_s: float | None
    # The mean over all saves, and over all restores beyond the start itself; None if there were
    # none, or they cost nothing.
    save_s: float | None
    restore_s: float | None
    # The mean time from a request for a forecast to its answer.
    forecast_s: float | None


def measure_costs(steps: Iterable[Step]) -> tuple[StudyState, Costs]:
    """Fold a log; return the state, and what its attempts spent besides epochs."""
    state, tally = StudyState(), _Tally()
    for step in steps:
        tally.take(step)
        for entry in step.entries:
            state.apply(entry)
    return state, tally.costs()


class _Tally:
    """The times of attempts that costs are computed from."""

    def __init__(self) -> None:
        self._launched: dict[AttemptId, tuple[Launch, float]] = {}
        # When the first epoch of an attempt was reported, and the time before that epoch.
        self._first_report: dict[AttemptId, float] = {}
        self._before_first: dict[AttemptId, float] = {}
        self._saves: list[float] = []
        # When forecasts were requested, and how long they took.
        self._asked: dict[tuple[TrialId, int], float] = {}
        self._forecasts: list[float] = []

    def take(self, step: Step) -> None:
        event = step.event
        if isinstance(event, Reported) and self._is_first(event):
            _, at = self._launched[event.attempt]
            self._first_report[event.attempt] = event.at
            self._before_first[event.attempt] = event.at - at - event.seconds
        elif isinstance(event, Saved):
            self._saves.append(event.seconds)
            # A first epoch reported together with its checkpoint was saved before the report.
            if (
                self._is_first(event)
                and event.at - self._first_report[event.attempt] < event.seconds / 2
            ):
                self._before_first[event.attempt] -= event.seconds
        elif isinstance(event, Forecasted):
            asked_at = self._asked.pop((event.trial, event.epoch), event.at)
            self._forecasts.append(event.at - asked_at)
        for decision in step.decisions:
            if isinstance(decision, Launch):
                self._launched[decision.attempt] = decision, event.at
            elif isinstance(decision, AskForecast):
                self._asked[decision.trial, decision.epoch] = event.at

    def costs(self) -> Costs:
        first: dict[TrialId, float] = {}
        again: list[float] = []
        for attempt, delay in self._before_first.items():
            launch, _ = self._launched[attempt]
            if launch.start == 0:
                first.setdefault(launch.trial, delay)
            else:
                again.append(delay)
        start_s = fmean(first.values()) if first else 0.0
        return Costs(
            setup_s={trial: _round_cost(took) for trial, took in first.items()},
            start_s=_round_cost(start_s),
            save_s=_round_cost(fmean(self._saves or [0.0])),
            forecast_s=_round_cost(fmean(self._forecasts or [0.0])),
            restore_s=_round_cost(fmean(again) - start_s if again else 0.0),
        )

    def _is_first(self, event: Reported | Saved) -> bool:
        launched = self._launched.get(event.attempt)
        return launched is not None and event.epoch == launched[0].start + 1


def _round_cost(seconds: float) -> float | None:
    return round(seconds, 6) if round(seconds, 6) > 0 else None
