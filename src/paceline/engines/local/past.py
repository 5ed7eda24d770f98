"""What a log leaves for an engine to do, when its driver is gone and another takes the study up.

Knows which attempts never ended and which questions were never answered. Carries nothing out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from paceline.core import decisions as d
from paceline.core import events as e

if TYPE_CHECKING:
    from paceline.core.decisions import Step
    from paceline.core.values import AttemptId

Ask: TypeAlias = d.AskForecast | d.AskProposal | d.WakeAt


class Past:
    """A fold of the log: give it steps, read what is open."""

    def __init__(self) -> None:
        # Their processes died with their driver, or were never made.
        self.lost: dict[AttemptId, None] = {}
        # In the order they were asked.
        self.asked: dict[object, Ask] = {}

    def take(self, step: Step) -> None:
        """Take one step of the log."""
        match step.event:
            case e.Ended(attempt=attempt):
                self.lost.pop(attempt, None)
            case e.Forecasted(trial=trial, epoch=epoch):
                self.asked.pop(("forecast", trial, epoch), None)
            case e.Proposed(number=number, group=group):
                self.asked.pop(("proposal", group, number), None)
            case e.Woke(at=at, trial=trial):
                self.asked.pop(("wake", at, trial), None)
        for decision in step.decisions:
            match decision:
                case d.Launch(attempt=attempt):
                    self.lost[attempt] = None
                case d.AskForecast(trial=trial, epoch=epoch):
                    self.asked["forecast", trial, epoch] = decision
                case d.AskProposal(number=number, group=group):
                    self.asked["proposal", group, number] = decision
                case d.WakeAt(at=at, trial=trial):
                    self.asked["wake", at, trial] = decision
