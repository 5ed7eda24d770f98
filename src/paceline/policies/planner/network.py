"""The networks: chances of trials to reach a loss by later looks, from the record of the study.

Several small networks of two hidden layers, computed as one; their mean in log odds is the chance.
Knows its weights and nothing of schedules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Singles = NDArray[np.float32]

# Log odds are rounded to this, so that the last bits of a sum decide nothing.
_DIGITS = 4
_MOST = 12.0
# Trials that are computed at once. A matrix product of this size runs in one thread: more threads
# cost more than they save, and would take cores from the trials.
_ROWS = 64


class Layers(NamedTuple):
    """The weights of one network."""

    trial: Floats  # inputs of the trial x hidden
    horizon: Floats  # inputs of the horizon x hidden
    bias: Floats
    second: Floats
    second_bias: Floats
    last: Floats
    last_bias: Floats


class Networks:
    """Networks of one shape side by side."""

    def __init__(self, members: Sequence[Layers]) -> None:
        self.members = tuple(members)
        single = np.float32
        # By network. The mean of the networks is a sum over their last layers.
        self._trial = np.stack([each.trial for each in members]).astype(single)
        self._horizon = np.stack([each.horizon for each in members]).astype(single)
        self._bias = np.stack([each.bias for each in members])[:, None].astype(single)
        self._second = np.stack([each.second for each in members]).astype(single)
        self._second_bias = np.stack([each.second_bias for each in members])[:, None].astype(single)
        last = np.stack([each.last for each in members])[:, :, None] / len(members)
        self._last = last.astype(single)
        self._last_bias = np.float32(np.mean([each.last_bias for each in members]))

    def compute_log_odds(self, x: Floats, y: Floats) -> Floats:
        """Return the mean log odds: a row for each trial, a column for each horizon."""
        odds = np.empty(y.shape[:2])
        for start in range(0, len(x), _ROWS):
            rows = slice(start, start + _ROWS)
            odds[rows] = self._compute_rows(x[rows].astype(np.float32), y[rows].astype(np.float32))
        return odds

    def _compute_rows(self, x: Singles, y: Singles) -> Singles:
        # By network, trial, horizon and unit.
        first = y @ self._horizon[:, None]
        first += (x @ self._trial + self._bias)[:, :, None]
        np.maximum(first, 0.0, out=first)
        second = first @ self._second[:, None]
        second += self._second_bias[:, None]
        np.maximum(second, 0.0, out=second)
        odds: Singles = (second @ self._last[:, None]).sum(axis=(0, 3)) + self._last_bias
        return odds

    def compute_chances(self, x: Floats, y: Floats) -> Floats:
        """Return the chance by each horizon; it never falls with the horizon."""
        odds = np.minimum(np.maximum(self.compute_log_odds(x, y), -_MOST), _MOST).round(_DIGITS)
        chances: Floats = np.maximum.accumulate(1.0 / (1.0 + np.exp(-odds)), axis=1)
        return chances
