"""The scale on which curve families see losses: accuracies that rise from 0 towards 1.

Knows losses and how they become accuracies. Does not know families, noise or forecasts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from paceline.curves.arrays import Array


class AccuracyScale(NamedTuple):
    """The losses that correspond to the accuracies 0 and 1."""

    zero: float
    one: float

    @property
    def span(self) -> float:
        """How much lower the loss at accuracy 1 is than at accuracy 0."""
        return self.zero - self.one

    def accuracy(self, losses: Array) -> Array:
        """Convert losses to accuracies; those far outside the scale are moved closer."""
        return np.clip((self.zero - losses) / self.span, -1.0, 2.0)

    def loss(self, accuracies: Array) -> Array:
        """Convert accuracies to losses."""
        return self.zero - self.span * accuracies


def choose_scale(losses: Array) -> AccuracyScale:
    """Return the scale of finite losses: an accuracy's own, or one that holds them all."""
    low, high = float(losses.min()), float(losses.max())
    if low >= -1 and high <= 0:
        return AccuracyScale(0.0, -1.0)  # a negated accuracy
    if low >= 0:
        # A loss whose optimum is 0. A single exploded loss does not set the scale. The worst loss
        # maps to 0.1, since most families cannot stay at 0.
        worst = min(high, 50 * float(np.median(losses))) or high or 1.0
        return AccuracyScale(worst / 0.9, 0.0)
    return AccuracyScale(high + (high - low) / 6, low - (high - low) / 2)
