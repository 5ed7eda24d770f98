"""What was asked from outside and is not answered yet: forecasts, proposals, wakes.

Knows who asked for what. An answer that nobody waits for, or that comes twice, is none.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.core import decisions as d
    from paceline.core import events as e
    from paceline.core.values import Config, TrialId


class Questions:
    """Open questions, and proposals that were given and not taken yet."""

    def __init__(self) -> None:
        self.forecasts: dict[tuple[TrialId, int], d.AskForecast] = {}
        # Proposals asked for so far, those awaited, and those that lie ready.
        self.proposals = 0
        self.awaited: set[int] = set()
        self.offers: deque[Config] = deque()
        # Why there are no more proposals, where something went wrong.
        self.trouble = ""
        self.wakes: set[tuple[float, TrialId | None]] = set()

    def ask_forecast(self, ask: d.AskForecast) -> None:
        """Wait for a forecast."""
        self.forecasts[ask.trial, ask.epoch] = ask

    def ask_proposal(self, ask: d.AskProposal) -> None:
        """Wait for a proposal."""
        self.proposals += 1
        self.awaited.add(ask.number)

    def ask_wake(self, ask: d.WakeAt) -> None:
        """Wait for a time."""
        self.wakes.add((ask.at, ask.trial))

    def forecasted(self, event: e.Forecasted) -> TrialId | None:
        """Take a forecast and return its trial; None where nobody waits for it."""
        ask = self.forecasts.pop((event.trial, event.epoch), None)
        return None if ask is None else ask.trial

    def woke(self, event: e.Woke) -> TrialId | None:
        """Take a wake and return its trial; None where it has none, or nobody waits for it."""
        if (event.at, event.trial) not in self.wakes:
            return None
        self.wakes.discard((event.at, event.trial))
        return event.trial

    def proposed(self, event: e.Proposed) -> bool:
        """Take a proposal; False where it says that there are no more."""
        if event.number not in self.awaited:
            return True
        self.awaited.discard(event.number)
        if event.config is None:
            self.trouble = self.trouble or event.note
            return False
        self.offers.append(event.config)
        return True
