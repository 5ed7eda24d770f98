"""The index: the chance to win per slot-second, over the best horizon.

For a trial with the chance P(t) to reach the target within t more seconds, the cost of trying for t
seconds is C(t) = integral of 1 - P over 0 to t, since a success ends the study. At a price for each
slot-second, trying is worth max over t of P(t) - price * C(t); the index is the price at which that
is nothing: max over t of P(t) / C(t). Knows chances and seconds only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_SHORTEST_S = 1e-9
_STEPS = 30


def cut_at(chances: Floats, seconds: Floats, left: Floats) -> tuple[Floats, Floats]:
    """Return chances and seconds with what lies after `left` seconds cut off."""
    if not np.any(seconds[:, -1] > left):
        return chances, seconds
    before_p = np.concatenate([np.zeros((len(chances), 1)), chances[:, :-1]], axis=1)
    before_t = np.concatenate([np.zeros((len(seconds), 1)), seconds[:, :-1]], axis=1)
    times = np.minimum(seconds, left[:, None])
    step = np.maximum(seconds - before_t, _SHORTEST_S)
    share = np.clip((left[:, None] - before_t) / step, 0.0, 1.0)
    # After the cut, both stand still.
    cut = np.maximum.accumulate((before_p + share * (chances - before_p)) * (share > 0.0), axis=1)
    return cut, times


def compute_costs(chances: Floats, seconds: Floats) -> Floats:
    """Return the expected slot-seconds until success or the horizon, whichever is first."""
    steps, before = seconds.copy(), np.zeros_like(chances)
    steps[:, 1:] -= seconds[:, :-1]
    before[:, 1:] = chances[:, :-1]
    costs = np.cumsum(steps * (1.0 - (chances + before) / 2), axis=1)
    return np.maximum(costs, _SHORTEST_S)


def compute_indexes(chances: Floats, costs: Floats) -> Floats:
    """Return the best chance per slot-second of each trial."""
    indexes: Floats = (chances / costs).max(axis=1)
    return indexes


def find_price(worth: Callable[[float], float], most: float) -> float:
    """Return the price at which something is worth nothing any more; its worth falls with it."""
    low, high = 0.0, most
    for _ in range(_STEPS):
        price = (low + high) / 2
        if worth(price) > 0.0:
            low = price
        else:
            high = price
    return low


def compute_new_index(chances: Floats, costs: Floats, first_s: float, at_once: float) -> float:
    """Return the index of a new trial, by what earlier ones were worth after their first look.

    A new trial costs `first_s` until it is known what it is worth, and may succeed at once. After
    that it is trained on only if that is worth more than the index.
    """

    def worth(price: float) -> float:
        gains = (chances - price * costs).max(axis=1, initial=0.0)
        return at_once + float(gains.mean()) - price * first_s

    return find_price(worth, (at_once + 1.0) / max(first_s, _SHORTEST_S))
