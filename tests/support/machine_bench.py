"""A machine under test: events in, decisions out, compared one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.allocation.fixed import Fixed
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.ports import Pick, see_nothing
from paceline.core.values import Part, StudySpec
from paceline.generators.queued import Queued
from paceline.machine.decider import Parts
from paceline.machine.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.ports import Policy, Verdict
    from paceline.core.views import StudyView, TrialView


class ScriptedPolicy:
    """A policy whose verdicts the test sets; trials run to `until`."""

    see = staticmethod(see_nothing)

    def __init__(self, until: int = 9) -> None:
        self.until = until
        self.verdicts: dict[tuple[int, int], Sequence[Verdict]] = {}
        self.judged: list[tuple[int, int]] = []

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        self.judged.append((trial.id, trial.epoch))
        return self.verdicts.get((trial.id, trial.epoch), ())

    def next(self, study: StudyView) -> Pick | None:
        for trial in study.ready:
            return Pick(trial, 0, "it is ready")
        return Pick(None, self.until, "a slot is free") if study.new else None

    def admit(self, study: StudyView) -> int | None:
        return None


class MachineBench:
    """A machine that is given events by hand."""

    def __init__(self, policy: Policy, configs: list[Any], *, slots: int = 1, **spec: Any) -> None:  # noqa: ANN401
        self.machine = Machine(Parts(policy, Queued(configs=configs), Fixed()))
        self.state = self.machine.state
        self.at = 0.0
        defaults: dict[str, Any] = {
            "name": "bench",
            "metric": "loss",
            "mode": "min",
            "epochs": 9,
            "policy": Part("given"),
            "generator": Part("queued"),
        }
        self.say(e.Opened(at=0.0, spec=StudySpec(**{**defaults, **spec})))
        self.first = self.say(e.CapacityChanged(at=0.0, slots=tuple(range(slots))))

    def say(self, event: e.AnyEvent) -> tuple[d.AnyDecision, ...]:
        return self.machine.handle(event).decisions

    def report(self, attempt: int, *losses: float | None) -> tuple[d.AnyDecision, ...]:
        decided: tuple[d.AnyDecision, ...] = ()
        for loss in losses:
            self.at += 1.0
            epoch = self.state.attempts[attempt].epoch + 1
            decided = self.say(
                e.Reported(
                    at=self.at, attempt=attempt, epoch=epoch, metrics={"loss": loss}, seconds=1.0
                )
            )
        return decided

    def save(self, attempt: int, epoch: int) -> tuple[d.AnyDecision, ...]:
        return self.say(e.Saved(at=self.at, attempt=attempt, epoch=epoch))

    def end(self, attempt: int, cause: e.Cause, note: str = "") -> tuple[d.AnyDecision, ...]:
        return self.say(e.Ended(at=self.at, attempt=attempt, cause=cause, note=note))
