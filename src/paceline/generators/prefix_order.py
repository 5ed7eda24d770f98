"""Prefix order: orders of configs in which shared prefixes are trained early.

Knows from which epoch on a dimension of a space takes effect, and how to put configs with the same
prefix next to each other. Does not know the plan: the machine shares prefixes in any order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.space import Dimension
    from paceline.core.values import Config, Value

PIECES = "piecewise"


def find_start_epoch(dimension: Dimension, template: Config) -> int:
    """Return the epoch at which a dimension takes effect: 0, or the start of its schedule piece.

    A dimension under an option of a choice, or in a piece without a fixed start, may take effect at
    the first epoch.
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


def group_by_prefix(paths: Sequence[Sequence[str]]) -> list[int]:
    """Return an order of paths in which paths with a common prefix follow each other.

    Groups come in the order of their first paths.

    >>> group_by_prefix([["a", "x"], ["b", "x"], ["a", "y"], ["b", "x"], ["a", "x"]])
    [0, 4, 2, 1, 3]
    """
    first: dict[tuple[str, ...], int] = {}
    places = []
    for number, path in enumerate(paths):
        prefixes = [tuple(path[:length]) for length in range(1, len(path) + 1)]
        places.append(([first.setdefault(prefix, number) for prefix in prefixes], number))
    return [number for _, number in sorted(places)]
