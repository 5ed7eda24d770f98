"""Slot time: how much there was, and how much of it was used.

Knows widths and instants. Does not know who held what.
"""

from __future__ import annotations


class Meter:
    """Adds up slot time. Running attempts are counted up to the moment one asks."""

    def __init__(self) -> None:
        # The width of everything that runs.
        self.held = 0.0
        # What ended attempts used, and the sum of width x start over those that run.
        self._past = 0.0
        self._since = 0.0
        # Slot time there was up to the last change of capacity.
        self._offered = 0.0
        self._offered_until = 0.0

    def start(self, width: float, now: float) -> None:
        """An attempt of this width starts now."""
        self.held += width
        self._since += width * now

    def end(self, width: float, started: float, now: float) -> None:
        """An attempt of this width, started then, ends now."""
        self._past += width * (now - started)
        self.held -= width
        self._since -= width * started
        if self.held < 1e-9:
            self.held = self._since = 0.0  # no dust from adding and subtracting shares

    def used(self, now: float) -> float:
        """Return the slot time used so far."""
        return self._past + self.held * now - self._since

    def offer(self, capacity: int, now: float) -> None:
        """Settle the slot time there was, before the number of slots changes."""
        self._offered = self.offered(capacity, now)
        self._offered_until = now

    def offered(self, capacity: int, now: float) -> float:
        """Return the slot time there was so far, used or not."""
        return self._offered + capacity * (now - self._offered_until)
