"""An engine driven by hand: orders are given one step at a time, and every fact is kept.

Knows the engine's port. Knows no clock: it waits for facts, and gives up after too many of them.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, TypeVar

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.values import LEVELS, Config, Forecast

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.ports import Engine
    from paceline.core.values import AttemptId

T = TypeVar("T")

# No clause needs more facts than this; an engine that goes on for longer never gets there.
MOST_FACTS = 2_000
# Further than any clause lets an attempt go.
FAR = 100_000
WHY = "the kit asks for it"


class Hand:
    """Gives an engine orders, one step at a time, and keeps what it is told."""

    def __init__(self, engine: Engine, epoch_s: float) -> None:
        self.engine = engine
        self.told: list[e.AnyEvent] = []
        # What the engine's clock said after each wait.
        self.clock: list[float] = [engine.now]
        # Whether each step is applied a second time at once.
        self.twice = False
        self._epoch_s = epoch_s
        self._steps: list[d.Step] = []
        self._number = 0
        self._slots = count()
        self.until(lambda: bool(self.of(e.CapacityChanged)), "its slots")

    def give(self, *decisions: d.AnyDecision) -> None:
        """Apply a step with these decisions."""
        step = d.Step(self._number, e.Resumed(at=self.engine.now), decisions)
        self._number = step.after
        self._steps.append(step)
        for _ in range(1 + self.twice):
            self.engine.apply(step)

    def repeat(self) -> None:
        """Apply every step so far once more."""
        for step in self._steps:
            self.engine.apply(step)

    def launch(
        self,
        attempt: AttemptId,
        *,
        goal: int,
        trial: int = 0,
        start: int = 0,
        source: AttemptId | None = None,
        save_at: tuple[int, ...] = (),
    ) -> d.Launch:
        """Return a Launch on the slot whose turn it is."""
        slots = self.of(e.CapacityChanged)[-1].slots
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

    def until(self, met: Callable[[], bool], what: str) -> None:
        """Wait until a condition is met."""
        while not met():
            events = self.engine.wait() or ()
            self.told += events
            self.clock.append(self.engine.now)
            missing = not events or len(self.told) > MOST_FACTS
            assert not missing, f"the engine never told {what}; its last facts: {self.told[-9:]}"

    def until_reported(self, attempt: AttemptId, epoch: int) -> None:
        """Wait for an attempt's report of this epoch."""
        self.until(
            lambda: any(seen >= epoch for seen, _ in self.values(attempt)),
            f"epoch {epoch} of attempt {attempt}",
        )

    def until_ended(self, attempt: AttemptId) -> e.Ended:
        """Wait for an attempt's end and return it."""

        def ended() -> list[e.Ended]:
            return [event for event in self.of(e.Ended) if event.attempt == attempt]

        self.until(lambda: bool(ended()), f"the end of attempt {attempt}")
        return ended()[0]

    def settle(self) -> None:
        """Wait as long as an epoch takes: what was still to be said is said by then."""
        at = self.engine.now + self._epoch_s
        self.give(d.WakeAt(at=at, why=WHY))
        self.until(lambda: any(event.at == at for event in self.of(e.Woke)), f"the wake at {at}")

    def of(self, kind: type[T]) -> list[T]:
        """Return the facts of one kind."""
        return [event for event in self.told if isinstance(event, kind)]

    def about(self, attempt: AttemptId) -> list[e.Reported | e.Saved | e.Missed | e.Ended]:
        """Return what was told about an attempt."""
        kinds = (e.Reported, e.Saved, e.Missed, e.Ended)
        return [
            event for event in self.told if isinstance(event, kinds) and event.attempt == attempt
        ]

    def values(self, attempt: AttemptId) -> list[tuple[int, float | None]]:
        """Return an attempt's reports as (epoch, value)."""
        reports = (event for event in self.of(e.Reported) if event.attempt == attempt)
        return [(report.epoch, report.metrics["loss"]) for report in reports]

    def shape(self, attempt: AttemptId, saves: tuple[int, ...]) -> list[tuple[str, int | None]]:
        """Return what was told about an attempt, without times and saves that nobody ordered."""
        return [
            (type(event).__name__, getattr(event, "epoch", None))
            for event in self.about(attempt)
            if not isinstance(event, e.Saved | e.Missed) or event.epoch in saves
        ]


FLAT = Forecast((5, 9), ((0.5,) * len(LEVELS),) * 2)


class Advising:
    """An adviser with one forecast, for epoch 1, and one config."""

    def answer(self, ask: d.AskForecast | d.AskProposal) -> Callable[[], e.Forecasted | e.Proposed]:
        """Return the forecast or the config, or that there is none."""
        if isinstance(ask, d.AskProposal):
            config: Config | None = {"step": 3.0} if ask.number == 0 else None
            return lambda: e.Proposed(at=0.0, number=ask.number, config=config)
        forecast, note = (FLAT, "") if ask.epoch == 1 else (None, "only epoch 1 has a forecast")
        return lambda: e.Forecasted(
            at=0.0, trial=ask.trial, epoch=ask.epoch, forecast=forecast, note=note
        )


def opened(trial: int, config: Config) -> d.Open:
    """Return the order to begin a trial."""
    return d.Open(trial=trial, config=config, until=FAR, why=WHY)


def halt(attempt: AttemptId) -> d.Halt:
    """Return the order to end an attempt now."""
    return d.Halt(attempt=attempt, why=WHY)


def amend(
    attempt: AttemptId, *, version: int, goal: int, trial: int = 0, save_at: tuple[int, ...] = ()
) -> d.Amend:
    """Return another order for a running attempt."""
    return d.Amend(
        attempt=attempt, version=version, trial=trial, goal=goal, save_at=save_at, why=WHY
    )
