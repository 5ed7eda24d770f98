"""What was asked from outside and is not answered yet: forecasts, proposals, wakes.

Knows who asked for what. An answer that nobody waits for, or that comes twice, is none.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.core import decisions as d
    from paceline.core import events as e
    from paceline.core.values import Config, TrialId


class Questions:
    """Open questions, and proposals that were given and not taken yet."""

    def __init__(self) -> None:
        self.forecasts: dict[tuple[TrialId, int], d.AskForecast] = {}
        # For each group: proposals asked for so far, those awaited, and those that lie ready.
        self._proposals: Counter[int] = Counter()
        self.awaited: set[tuple[int, int]] = set()
        self._offers: dict[int, deque[Config]] = {}
        # For each group: why there are no more proposals, where something went wrong.
        self.trouble: dict[int, str] = {}
        self.wakes: set[tuple[float, TrialId | None]] = set()

    def ask_forecast(self, ask: d.AskForecast) -> None:
        """Wait for a forecast."""
        self.forecasts[ask.trial, ask.epoch] = ask

    def ask_proposal(self, ask: d.AskProposal) -> None:
        """Wait for a proposal."""
        self._proposals[ask.group] += 1
        self.awaited.add((ask.group, ask.number))

    def proposals(self, group: int) -> int:
        """Return how many proposals a group has asked for."""
        return self._proposals[group]

    def awaits(self, group: int) -> int:
        """Return how many proposals are on their way to a group."""
        return sum(whose == group for whose, _ in self.awaited)

    def offer(self, group: int) -> Config | None:
        """Return the config that has lain ready for a group longest; None: there is none."""
        offers = self._offers.get(group)
        return offers[0] if offers else None

    def opened(self, group: int) -> None:
        """A trial of this group was opened: with what lay ready longest, if anything did."""
        offers = self._offers.get(group)
        if offers:
            offers.popleft()

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
        if (event.group, event.number) not in self.awaited:
            return True
        self.awaited.discard((event.group, event.number))
        if event.config is None:
            self.trouble[event.group] = self.trouble.get(event.group) or event.note
            return False
        self._offers.setdefault(event.group, deque()).append(event.config)
        return True
