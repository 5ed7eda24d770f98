"""Requests without an answer yet: forecasts, proposals, wakes.

Knows which trial or group asked. An answer that is not awaited, or that comes twice, is ignored.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from paceline.core.decisions import AskForecast, AskProposal, WakeAt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.core import decisions as d
    from paceline.core import events as e
    from paceline.core.values import Config, TrialId

_AGAIN = "it was asked for and not answered before the study was resumed"


class PendingRequests:
    """Open requests, and proposals that were given and not taken yet."""

    def __init__(self) -> None:
        self.forecasts: dict[tuple[TrialId, int], d.AskForecast] = {}
        # For each group: proposals asked for so far, those awaited, and those given but not taken.
        self._proposals: Counter[int] = Counter()
        self.awaited: set[tuple[int, int]] = set()
        self._offers: dict[int, deque[Config]] = {}
        # For each group: why there are no more proposals, if the generator failed.
        self.trouble: dict[int, str] = {}
        self.wakes: set[tuple[float, TrialId | None]] = set()

    def ask_forecast(self, ask: d.AskForecast) -> None:
        """Add a request for a forecast."""
        self.forecasts[ask.trial, ask.epoch] = ask

    def ask_proposal(self, ask: d.AskProposal) -> None:
        """Add a request for a proposal."""
        self._proposals[ask.group] += 1
        self.awaited.add((ask.group, ask.number))

    def count_proposals(self, group: int) -> int:
        """Return the number of proposals that a group has asked for."""
        return self._proposals[group]

    def count_awaited(self, group: int) -> int:
        """Return the number of proposals that a group awaits."""
        return sum(asking == group for asking, _ in self.awaited)

    def next_offer(self, group: int) -> Config | None:
        """Return the oldest config given to a group and not taken yet; None: there is none."""
        offers = self._offers.get(group)
        return offers[0] if offers else None

    def take_offer(self, group: int) -> None:
        """Remove the oldest config given to a group, since a trial was opened with it."""
        offers = self._offers.get(group)
        if offers:
            offers.popleft()

    def ask_wake(self, ask: d.WakeAt) -> None:
        """Add a request for a wake."""
        self.wakes.add((ask.at, ask.trial))

    def forget_wake(self, at: float | None) -> None:
        """Forget the wake at a deadline that no longer holds."""
        if at is not None:
            self.wakes.discard((at, None))

    def forget_limits(self) -> None:
        """Forget what an extension changes: wake-ups at limits, and generators that had ended."""
        self.wakes = {wake for wake in self.wakes if wake[1] is not None}
        self.trouble.clear()

    def forecasted(self, event: e.Forecasted) -> TrialId | None:
        """Remove the request that a forecast answers and return its trial; None: not awaited."""
        ask = self.forecasts.pop((event.trial, event.epoch), None)
        return None if ask is None else ask.trial

    def woke(self, event: e.Woke) -> TrialId | None:
        """Remove the request that a wake answers and return its trial, if it has one."""
        if (event.at, event.trial) not in self.wakes:
            return None
        self.wakes.discard((event.at, event.trial))
        return event.trial

    def proposed(self, event: e.Proposed) -> bool:
        """Add a proposal that was awaited; return False if it says that there are no more."""
        if (event.group, event.number) not in self.awaited:
            return True
        self.awaited.discard((event.group, event.number))
        if event.config is None:
            self.trouble[event.group] = self.trouble.get(event.group) or event.note
            return False
        self._offers.setdefault(event.group, deque()).append(event.config)
        return True

    def open_requests(self) -> Iterator[AskForecast | AskProposal | WakeAt]:
        """Yield the requests without an answer, for a new driver to ask again."""
        yield from self.forecasts.values()
        for group, number in sorted(self.awaited):
            yield AskProposal(number=number, group=group, why=_AGAIN)
        for at, trial in sorted(self.wakes, key=lambda wake: wake[0]):
            yield WakeAt(at=at, trial=trial, why=_AGAIN)
