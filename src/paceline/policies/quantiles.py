"""Running quantiles, and the checks and defaults of parameters that policies share.

Knows numbers only. Adding a number costs O(log n), reading the quantile O(1). Between two numbers
the quantile is interpolated, as numpy does.
"""

from __future__ import annotations

from heapq import heappush, heappushpop
from math import inf

from paceline.core.errors import SpecError
from paceline.core.values import OPEN_ENDED


class RunningQuantile:
    """The `share` quantile of the numbers added so far; infinite while there is none."""

    __slots__ = ("_high", "_low", "_share", "count")

    def __init__(self, share: float) -> None:
        self._share = share
        self.count = 0
        # Two heaps: the numbers up to the quantile (negated), and the others.
        self._low: list[float] = []
        self._high: list[float] = []

    def add(self, number: float) -> None:
        """Add a number."""
        self.count += 1
        # The count at or below the quantile grows by one or not at all.
        if len(self._low) < int((self.count - 1) * self._share) + 1:
            heappush(self._low, -heappushpop(self._high, number))
        else:
            heappush(self._high, -heappushpop(self._low, -number))

    @property
    def value(self) -> float:
        """The quantile."""
        if not self._low:
            return inf
        low = -self._low[0]
        part = (self.count - 1) * self._share % 1.0
        if not part or not self._high or self._high[0] == low:
            return low
        return low + part * (self._high[0] - low)


class EpochQuantiles:
    """A running quantile for each epoch. Trials that share an epoch count once there."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._quantiles: dict[int, RunningQuantile] = {}
        self._origins: dict[int, set[int]] = {}

    def at(self, epoch: int) -> tuple[float, int]:
        """Return the quantile at an epoch, and the count of its numbers."""
        quantile = self._quantiles.get(epoch)
        return (inf, 0) if quantile is None else (quantile.value, quantile.count)

    def record(self, epoch: int, number: float, origin: int | None) -> tuple[float, int]:
        """Add a number at an epoch; return the quantile and the count as they were before it."""
        before = self.at(epoch)
        if origin is not None:
            origins = self._origins.setdefault(epoch, set())
            if origin in origins:
                return before
            origins.add(origin)
        self._quantiles.setdefault(epoch, RunningQuantile(self._share)).add(number)
        return before


def check_positive(label: str, given: int | None) -> None:
    """Raise SpecError for a number below 1; None means the policy's default."""
    if given is not None and given < 1:
        raise SpecError(f"{label}={given} is invalid: must be at least 1.")


def choose_boundary(given: int | None, epochs: int) -> int:
    """Return the epochs between two checks: as given, or a tenth of all, at least one.

    It is one where only the training function knows the last epoch.
    """
    return given or (1 if epochs >= OPEN_ENDED else max(1, epochs // 10))
