"""Order statistics that grow: a fixed quantile of all numbers so far.

Knows numbers alone. Adding one costs O(log n), reading O(1). Between two numbers it interpolates,
as numpy does.
"""

from __future__ import annotations

from heapq import heappush, heappushpop
from math import inf

from paceline.core.errors import SpecError


class Quantile:
    """The `share` quantile of the numbers added so far; infinite while there are none."""

    __slots__ = ("_high", "_low", "_share", "count")

    def __init__(self, share: float) -> None:
        self._share = share
        self.count = 0
        # The numbers up to the quantile with the largest in front, and the others.
        self._low: list[float] = []
        self._high: list[float] = []

    def add(self, number: float) -> None:
        """Take one more number."""
        self.count += 1
        # How many lie at or below the quantile: this grows by one or not at all.
        if len(self._low) < int((self.count - 1) * self._share) + 1:
            heappush(self._low, -heappushpop(self._high, number))
        else:
            heappush(self._high, -heappushpop(self._low, -number))

    @property
    def value(self) -> float:
        """Return the quantile."""
        if not self._low:
            return inf
        low = -self._low[0]
        part = (self.count - 1) * self._share % 1.0
        if not part or not self._high or self._high[0] == low:
            return low
        return low + part * (self._high[0] - low)


class Boards:
    """A quantile at each of several epochs. Trials that share an epoch count once there."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._boards: dict[int, Quantile] = {}
        self._origins: dict[int, set[int]] = {}

    def at(self, epoch: int) -> tuple[float, int]:
        """Return the quantile at an epoch, and of how many it is."""
        board = self._boards.get(epoch)
        return (inf, 0) if board is None else (board.value, board.count)

    def record(self, epoch: int, number: float, origin: int | None) -> tuple[float, int]:
        """Add a number at an epoch; return the quantile and the count as they were before it."""
        before = self.at(epoch)
        if origin is not None:
            origins = self._origins.setdefault(epoch, set())
            if origin in origins:
                return before
            origins.add(origin)
        self._boards.setdefault(epoch, Quantile(self._share)).add(number)
        return before


def one_or_more(label: str, given: int | None) -> None:
    """Refuse a number below 1; None leaves it to the policy."""
    if given is not None and given < 1:
        raise SpecError(f"{label}={given} cannot be meant: give 1 or more.")


def boundary_of(given: int | None, epochs: int) -> int:
    """Return how many epochs lie between two looks: a tenth of all, at least one, if not given."""
    return given or max(1, epochs // 10)
