"""The network: chances of trials to reach a loss by later looks, from the record of the study.

Three small networks of two hidden layers; their mean in log odds is the chance. Knows its weights
and nothing of schedules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Log odds are rounded to this, so that the last bits of a sum decide nothing.
_DIGITS = 4


class Layers(NamedTuple):
    """The weights of one network."""

    trial: Floats  # inputs of the trial x hidden
    horizon: Floats  # inputs of the horizon x hidden
    bias: Floats
    second: Floats
    second_bias: Floats
    last: Floats
    last_bias: Floats


def compute_log_odds(layers: Layers, x: Floats, y: Floats) -> Floats:
    """Return the log odds of one network: a row for each trial, a column for each horizon."""
    first = (x @ layers.trial + layers.bias)[:, None, :] + y @ layers.horizon
    np.maximum(first, 0.0, out=first)
    second = first @ layers.second + layers.second_bias
    np.maximum(second, 0.0, out=second)
    return second @ layers.last + layers.last_bias


def compute_chances(networks: Sequence[Layers], x: Floats, y: Floats) -> Floats:
    """Return the chance by each horizon; it never falls with the horizon."""
    odds = compute_log_odds(networks[0], x, y)
    for layers in networks[1:]:
        odds += compute_log_odds(layers, x, y)
    odds = np.minimum(np.maximum(odds / len(networks), -12.0), 12.0).round(_DIGITS)
    return np.maximum.accumulate(1.0 / (1.0 + np.exp(-odds)), axis=1)
