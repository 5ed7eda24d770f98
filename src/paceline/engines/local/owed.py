"""What a log that is being resumed leaves open: attempts without an end, questions unanswered.

Knows entries by their keys. Whoever was at work on these died with the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from paceline.core.decisions import AskForecast, AskProposal, Launch
from paceline.core.events import Ended, Forecasted, Proposed

if TYPE_CHECKING:
    from paceline.core.decisions import Step
    from paceline.core.values import AttemptId

Question: TypeAlias = AskForecast | AskProposal


class Owed:
    """Attempts and questions that are still to be settled, oldest first."""

    def __init__(self) -> None:
        self._attempts: dict[AttemptId, None] = {}
        self._questions: dict[object, Question] = {}

    def take(self, step: Step) -> None:
        """Take the next step of the log."""
        event = step.event
        if isinstance(event, Ended):
            self._attempts.pop(event.attempt, None)
        elif isinstance(event, Forecasted | Proposed):
            self._questions.pop(_key(event), None)
        for decision in step.decisions:
            if isinstance(decision, Launch):
                self._attempts[decision.attempt] = None
            elif isinstance(decision, AskForecast | AskProposal):
                self._questions[_key(decision)] = decision

    def settle(self) -> tuple[list[AttemptId], list[Question]]:
        """Return what is open, once."""
        owed = list(self._attempts), list(self._questions.values())
        self._attempts.clear()
        self._questions.clear()
        return owed


def _key(about: Question | Forecasted | Proposed) -> object:
    if isinstance(about, AskProposal | Proposed):
        return about.number
    return about.trial, about.epoch
