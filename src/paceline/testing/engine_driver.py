"""Engine driver: applies steps to an engine one at a time and records its events.

Knows the engine's port. Uses no clock: it waits for events, and gives up after too many of them.
"""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.forecast_quantiles import LEVELS, Forecast
from paceline.core.values import Config, to_loss

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.ports import Engine
    from paceline.core.values import AttemptId, TrialId

T = TypeVar("T")

# No clause needs more events than this; an engine that sends more will never send the right one.
MAX_EVENTS = 2_000
# An epoch that no attempt of a clause reaches.
FAR = 100_000
WHY = "the kit asks for it"


class DrivenStudy:
    """The study that a driven engine sees: the trials opened, the losses and checkpoints so far."""

    def __init__(self) -> None:
        self._configs: dict[TrialId, Config] = {}
        self._best = math.inf
        self._launched: set[AttemptId] = set()
        self._digests: dict[tuple[AttemptId, int], str | None] = {}

    def take(self, step: d.Step) -> None:
        """Take a step of the driver."""
        event = step.event
        if isinstance(event, e.Reported):
            self._best = min(self._best, to_loss(event.metrics.get("loss"), 1.0))
        elif isinstance(event, e.Saved):
            self._digests[event.attempt, event.epoch] = event.digest
        for decision in step.decisions:
            if isinstance(decision, d.Open):
                self._configs[decision.trial] = decision.config
            elif isinstance(decision, d.Launch):
                self._launched.add(decision.attempt)
            elif isinstance(decision, d.Drop):
                self._digests |= dict.fromkeys(decision.checkpoints)

    def config(self, trial: TrialId) -> Config:
        return self._configs[trial]

    def group(self, trial: TrialId) -> int:
        return 0

    def best_loss_for(self, trial: TrialId) -> float:
        return self._best

    def checkpoint_digest(self, checkpoint: tuple[AttemptId, int]) -> str | None:
        # A checkpoint of an earlier engine has no digest here, and is read unchecked.
        return self._digests.get(checkpoint, None if checkpoint[0] in self._launched else "")


class EngineDriver:
    """Applies steps to an engine, one at a time, and records its events."""

    def __init__(self, engine: Engine, epoch_s: float) -> None:
        self.engine = engine
        self.events: list[e.AnyEvent] = []
        # The engine's clock after each wait.
        self.clock_readings: list[float] = [engine.now]
        # Whether each step is applied a second time at once.
        self.applies_twice = False
        self._epoch_s = epoch_s
        self._study = DrivenStudy()
        self._steps: list[d.Step] = []
        self._number = 0
        self._slots = count()
        self.wait_for(lambda: bool(self.list_events(e.CapacityChanged)), "its slots")

    def apply(self, *decisions: d.AnyDecision) -> None:
        """Apply a step with these decisions."""
        self._apply(e.Resumed(at=self.engine.now), *decisions)

    def repeat_steps(self) -> None:
        """Apply every step so far once more."""
        for step in self._steps:
            self.engine.apply(step, self._study)

    def make_launch(
        self,
        attempt: AttemptId,
        *,
        goal: int,
        trial: int = 0,
        start: int = 0,
        source: AttemptId | None = None,
        save_at: tuple[int, ...] = (),
    ) -> d.Launch:
        """Return a Launch on the next slot, in turn."""
        slots = self.list_events(e.CapacityChanged)[-1].slots
        slot = slots[next(self._slots) % len(slots)]
        return d.Launch(
            attempt=attempt,
            trial=trial,
            start=start,
            source=source,
            goal=goal,
            save_at=save_at,
            slots=(slot,),
            width=1.0,
            why=WHY,
        )

    def wait_for(self, met: Callable[[], bool], what: str) -> None:
        """Wait for events until a condition is met."""
        while not met():
            events = self.engine.wait() or ()
            self.events += events
            self.clock_readings.append(self.engine.now)
            for event in events:
                self._apply(event)
            missing = not events or len(self.events) > MAX_EVENTS
            assert not missing, f"the engine never sent {what}; its last events: {self.events[-9:]}"

    def _apply(self, event: e.AnyEvent, *decisions: d.AnyDecision) -> None:
        step = d.Step(self._number, event, decisions)
        self._number = step.after
        self._steps.append(step)
        self._study.take(step)
        for _ in range(1 + self.applies_twice):
            self.engine.apply(step, self._study)

    def wait_for_report(self, attempt: AttemptId, epoch: int) -> None:
        """Wait for an attempt's report of this epoch."""
        self.wait_for(
            lambda: any(seen >= epoch for seen, _ in self.list_reports(attempt)),
            f"epoch {epoch} of attempt {attempt}",
        )

    def wait_for_end(self, attempt: AttemptId) -> e.Ended:
        """Wait for an attempt's end and return it."""

        def ended() -> list[e.Ended]:
            return [event for event in self.list_events(e.Ended) if event.attempt == attempt]

        self.wait_for(lambda: bool(ended()), f"the end of attempt {attempt}")
        return ended()[0]

    def settle(self) -> None:
        """Wait for the duration of an epoch, so that pending events arrive."""
        at = self.engine.now + self._epoch_s
        self.apply(d.WakeAt(at=at, why=WHY))
        self.wait_for(
            lambda: any(event.at == at for event in self.list_events(e.Woke)), f"the wake at {at}"
        )

    def list_events(self, kind: type[T]) -> list[T]:
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def list_attempt_events(
        self, attempt: AttemptId
    ) -> list[e.Reported | e.Saved | e.Missed | e.Ended]:
        """Return the events of an attempt."""
        kinds = (e.Reported, e.Saved, e.Missed, e.Ended)
        return [
            event for event in self.events if isinstance(event, kinds) and event.attempt == attempt
        ]

    def list_reports(self, attempt: AttemptId) -> list[tuple[int, float | None]]:
        """Return an attempt's reports as (epoch, value)."""
        reports = (event for event in self.list_events(e.Reported) if event.attempt == attempt)
        return [(report.epoch, report.metrics["loss"]) for report in reports]

    def summarize(self, attempt: AttemptId, saves: tuple[int, ...]) -> list[tuple[str, int | None]]:
        """Return the events of an attempt, without times and without unrequested checkpoints."""
        return [
            (type(event).__name__, getattr(event, "epoch", None))
            for event in self.list_attempt_events(attempt)
            if not isinstance(event, e.Saved | e.Missed) or event.epoch in saves
        ]


FLAT = Forecast((5, 9), ((0.5,) * len(LEVELS),) * 2)


class StubAdvisor:
    """Answers with one forecast, for epoch 1, and with one config."""

    def answer(self, ask: d.AskForecast | d.AskProposal) -> Callable[[], e.Forecasted | e.Proposed]:
        """Return the forecast or the config, or an empty answer."""
        if isinstance(ask, d.AskProposal):
            config: Config | None = {"step": 3.0} if ask.number == 0 else None
            return lambda: e.Proposed(at=0.0, number=ask.number, config=config)
        forecast, note = (FLAT, "") if ask.epoch == 1 else (None, "only epoch 1 has a forecast")
        return lambda: e.Forecasted(
            at=0.0, trial=ask.trial, epoch=ask.epoch, forecast=forecast, note=note
        )


def make_open(trial: int, config: Config) -> d.Open:
    """Return the decision that opens a trial."""
    return d.Open(trial=trial, config=config, until=FAR, why=WHY)


def make_halt(attempt: AttemptId) -> d.Halt:
    """Return the decision that ends an attempt now."""
    return d.Halt(attempt=attempt, why=WHY)


def make_amend(
    attempt: AttemptId, *, version: int, goal: int, trial: int = 0, save_at: tuple[int, ...] = ()
) -> d.Amend:
    """Return a new order for a running attempt."""
    return d.Amend(
        attempt=attempt, version=version, trial=trial, goal=goal, save_at=save_at, why=WHY
    )
