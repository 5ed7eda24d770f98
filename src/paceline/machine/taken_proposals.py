"""Taken proposals: which of a generator's configs have become trials, by their numbers.

Those that a policy has passed over stay next in line. Knows numbers only.
"""

from __future__ import annotations

from itertools import chain, count, islice

from msgspec import Struct

from paceline.core.errors import LogError
from paceline.core.ports import WIDEST_WINDOW


class TakenProposals(Struct):
    """How many configs were taken, and which numbers come next."""

    # All numbers from here on are free, and those below that were passed over.
    _end: int = 0
    _passed_over: list[int] = []

    def __len__(self) -> int:
        return self._end - len(self._passed_over)

    def add(self, number: int | None) -> None:
        """Take a number; None: the first that is free."""
        if number is None:
            number = self.first
        is_free = number >= self._end or number in self._passed_over
        if not is_free or number >= self._end + WIDEST_WINDOW:
            raise LogError(f"config {number} of a trial was taken before or is too far ahead.")
        if number < self._end:
            self._passed_over.remove(number)
        else:
            self._passed_over.extend(range(self._end, number))
            self._end = number + 1

    @property
    def first(self) -> int:
        """The first number that is free."""
        return self._passed_over[0] if self._passed_over else self._end

    def list_next(self, most: int) -> list[int]:
        """Return the next free numbers.

        >>> taken = TakenProposals()
        >>> taken.add(2)
        >>> taken.list_next(3)
        [0, 1, 3]
        """
        return list(islice(chain(self._passed_over, count(self._end)), most))
