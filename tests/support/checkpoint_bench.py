"""A machine with shared schedules under test of its checkpoint decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.allocation.fixed import Fixed
from paceline.core import events as e
from paceline.core.values import Part, Saves, StudySpec
from paceline.generators.queued import Queued
from paceline.machine.decider import Parts
from paceline.machine.machine import Machine
from paceline.policies.fifo import Fifo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Step
    from paceline.core.values import Config


EPOCHS = 6


SCHEDULES: list[Config] = [
    {"step": {"piecewise": [[0, -1.0], [2, second], [4, third]]}}
    for second in (-1.0, -2.0)
    for third in (-1.0, -3.0, -4.0)
]


class CheckpointBench:
    """A machine that is given events by hand. An outside tuner sets the goal of each config."""

    def __init__(
        self,
        *,
        slots: int = 4,
        epochs: int = 9,
        configs: Sequence[Config] = (),
        **spec: Any,  # noqa: ANN401
    ) -> None:
        self.machine = Machine(Parts(Fifo(), Queued(configs=list(configs)), Fixed()))
        self.state = self.machine.state
        self.steps: list[Step] = []
        described = StudySpec(
            name="bench",
            metric="loss",
            mode="min",
            epochs=epochs,
            policy=Part("fifo"),
            generator=Part("queued"),
            standing=not configs,
            **{"saves": Saves(collect=True), "retries": 0, **spec},
        )
        self.say(e.Opened(at=0.0, spec=described))
        self.say(e.CapacityChanged(at=0.0, slots=tuple(range(slots))))

    def say(self, event: e.AnyEvent) -> None:
        self.steps.append(self.machine.handle(event))

    def submit(self, until: int, **config: Any) -> None:  # noqa: ANN401
        self.say(e.Submitted(at=self.state.now, config=config, until=until))

    def train(self, attempt: int, *losses: float, seconds: float = 1.0) -> None:
        """Report one epoch after the other."""
        for loss in losses:
            self.say(
                e.Reported(
                    at=self.state.now + seconds,
                    attempt=attempt,
                    epoch=self.state.attempts[attempt].epoch + 1,
                    metrics={"loss": loss},
                    seconds=seconds,
                )
            )

    def save(self, attempt: int, size: int = 10) -> None:
        epoch = self.state.attempts[attempt].epoch
        self.say(e.Saved(at=self.state.now, attempt=attempt, epoch=epoch, bytes=size))

    def end(self, attempt: int, cause: e.Cause = e.Cause.GOAL) -> None:
        self.say(e.Ended(at=self.state.now, attempt=attempt, cause=cause))

    def pause(self, until: int, loss: float, *, size: int = 10, seconds: float = 1.0) -> None:
        """Let a new config train to an epoch, save and pause there."""
        attempt = self.state.launches
        self.submit(until, which=attempt)
        falling = [loss + 0.01 * left for left in reversed(range(until))]
        self.train(attempt, *falling, seconds=seconds)
        self.save(attempt, size)
        self.end(attempt, e.Cause.GOAL if until < self.state.spec.epochs else e.Cause.FINISHED)

    @property
    def kept(self) -> set[tuple[int, int]]:
        return set(self.state.checkpoints.records)
