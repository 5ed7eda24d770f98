"""The index: the chance to win per slot-second, over the best horizon.

For a trial with the chance P(t) to reach the target within t more seconds, the cost of trying for t
seconds is C(t) = integral of 1 - P over 0 to t, since a success ends the study, and the index is
max over t of P(t) / C(t). Knows chances and seconds only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_SHORTEST_S = 1e-9
_STEPS = 30


def cut_at(chances: Floats, seconds: Floats, left: Floats) -> tuple[Floats, Floats]:
    """Return chances and seconds with what lies after `left` seconds cut off."""
    if not np.any(seconds[:, -1] > left):
        return chances, seconds
    cut, times = chances.copy(), np.minimum(seconds, left[:, None])
    before_p, before_t = np.zeros(len(left)), np.zeros(len(left))
    for at in range(chances.shape[1]):
        step = np.maximum(seconds[:, at] - before_t, _SHORTEST_S)
        share = np.clip((left - before_t) / step, 0.0, 1.0)
        # After the cut, both stand still.
        ended = before_t >= left
        cut[:, at] = np.where(ended, before_p, before_p + share * (chances[:, at] - before_p))
        before_p, before_t = cut[:, at], np.where(ended, left, np.minimum(seconds[:, at], left))
    return cut, times


def compute_costs(chances: Floats, seconds: Floats, setup: Floats) -> Floats:
    """Return the expected slot-seconds until success or the horizon, whichever is first."""
    steps = np.diff(seconds, axis=1, prepend=0.0)
    before = np.concatenate([np.zeros((len(chances), 1)), chances[:, :-1]], axis=1)
    costs = np.cumsum(steps * (1.0 - (chances + before) / 2), axis=1)
    return np.maximum(costs + setup[:, None], _SHORTEST_S)


def compute_indexes(chances: Floats, costs: Floats) -> Floats:
    """Return the best chance per slot-second of each trial."""
    indexes: Floats = (chances / costs).max(axis=1)
    return indexes


def compute_new_index(chances: Floats, costs: Floats, first_s: float, at_once: float) -> float:
    """Return the index of a new trial, by what earlier ones were worth after their first look.

    A new trial costs `first_s` until it is known what it is worth, and may succeed at once. After
    that it is trained on only if that is worth more than the index.
    """
    low, high = 0.0, (at_once + 1.0) / max(first_s, _SHORTEST_S)
    for _ in range(_STEPS):
        index = (low + high) / 2
        gains = (chances - index * costs).max(axis=1, initial=0.0)
        if at_once + float(gains.mean()) > index * first_s:
            low = index
        else:
            high = index
    return low
