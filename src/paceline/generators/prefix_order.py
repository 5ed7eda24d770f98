"""Orders in which what trials have in common is finished early.

Knows from which epoch on a dimension of a space is in force, and how to put configs that begin
alike next to each other. Knows no plan: whoever shares epochs does so wherever configs come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.space import Dimension
    from paceline.core.values import Config, Value

PIECES = "piecewise"


def beginning(dimension: Dimension, template: Config) -> int:
    """Return the epoch from which a dimension is in force: 0, or that of its piece of a schedule.

    What stands under an option of a choice, or in a piece whose epoch is not fixed, may be in force
    from the first epoch on.
    """
    if dimension.under is not None or PIECES not in dimension.path:
        return 0
    at = dimension.path.index(PIECES)
    schedule: Value = template
    for step in dimension.path[:at]:
        schedule = schedule[step]
    start, place = schedule[PIECES][dimension.path[at + 1]][0], dimension.path[at + 2]
    fixed = all(type(piece[0]) is int for piece in schedule[PIECES])
    return start if fixed and place == 1 else 0


def neighbours_first(ways: Sequence[Sequence[str]]) -> list[int]:
    """Return an order of these, in which those that begin alike follow each other.

    Whoever begins in a new way comes when the first that begins so would have come.

    >>> neighbours_first([["a", "x"], ["b", "x"], ["a", "y"], ["b", "x"], ["a", "x"]])
    [0, 4, 2, 1, 3]
    """
    first: dict[tuple[str, ...], int] = {}
    places = []
    for number, way in enumerate(ways):
        begun = [tuple(way[:length]) for length in range(1, len(way) + 1)]
        places.append(([first.setdefault(prefix, number) for prefix in begun], number))
    return [number for _, number in sorted(places)]
