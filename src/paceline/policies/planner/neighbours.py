"""Neighbours: for each trial the earlier and later ones with the most similar configs.

A distance is the root of the mean squared difference over the hyperparameters. A number is scaled
to the range seen so far, by its logarithm if that range is wide; any other value is equal or not.
Knows configs, and nothing of losses.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from paceline.core.values import Value

    Floats = NDArray[np.float64]

# The neighbours kept for each trial, and the trials that a new one is compared with.
NEAREST = 12
_COMPARED = 1024
# A range is wide if its end is this many times its start.
_WIDE = 20.0


class Neighbours:
    """The nearest trials of each trial, with their distances."""

    def __init__(self) -> None:
        self._columns: dict[str, int] = {}
        self._is_number: list[bool] = []
        self._codes: dict[tuple[int, str], float] = {}
        self._rows = np.full((64, 0), math.nan)
        # The trial of each row, and the row of each trial.
        self._trials: list[int] = []
        self._row_of: dict[int, int] = {}
        # By trial: its neighbours as (distance, trial), the nearest first.
        self.nearest: dict[int, list[tuple[float, int]]] = {}

    def add(self, trial: int, config: Mapping[str, Value]) -> None:
        """Add the config of a new trial, and find its neighbours."""
        at = len(self._trials)
        values = self._encode(config)
        if at >= len(self._rows):
            more = np.full_like(self._rows, math.nan)
            self._rows = np.concatenate([self._rows, more])
        self._rows[at] = values
        self._trials.append(trial)
        self._row_of[trial] = at
        self.nearest[trial] = self._find(trial, at)

    def replace(self, trial: int, config: Mapping[str, Value]) -> None:
        """Give a trial another config; trials that were compared with the old one keep that."""
        at = self._row_of[trial]
        values = self._encode(config)
        self._rows[at] = values
        self.nearest[trial] = self._find(trial, at)

    def _find(self, trial: int, at: int) -> list[tuple[float, int]]:
        """Return the nearest earlier trials of a trial, and make it known to them."""
        own: list[tuple[float, int]] = []
        if not at or not self._columns:
            return own
        start = max(0, at - _COMPARED)
        distances = self._measure(start, at)
        order = np.argsort(distances, kind="stable")[:NEAREST]
        own = [(float(distances[each]), self._trials[start + int(each)]) for each in order]
        for distance, other in own:
            known = self.nearest[other]
            if len(known) < NEAREST or distance < known[-1][0]:
                known.append((distance, trial))
                known.sort()
                del known[NEAREST:]
        return own

    def _encode(self, config: Mapping[str, Value]) -> Floats:
        """Return the config as a row of numbers; NaN where it lacks a hyperparameter."""
        for name, value in config.items():
            if name not in self._columns:
                self._columns[name] = len(self._columns)
                self._is_number.append(_is_number(value))
                column = np.full((len(self._rows), 1), math.nan)
                self._rows = np.concatenate([self._rows, column], axis=1)
        row = np.full(len(self._columns), math.nan)
        for name, value in config.items():
            column_number = self._columns[name]
            if self._is_number[column_number] and _is_number(value):
                row[column_number] = float(value)
            else:
                # Not a number among numbers: as far away as any other such value.
                key = (column_number, json.dumps(value, sort_keys=True, default=str))
                row[column_number] = self._codes.setdefault(key, float(len(self._codes)))
                self._is_number[column_number] = False
        return row

    def _measure(self, start: int, at: int) -> Floats:
        """Return the distances of a row to earlier ones."""
        rows = self._rows[start : at + 1]
        total = np.zeros(at - start)
        for column, is_number in enumerate(self._is_number):
            values = rows[:, column]
            if is_number:
                total += _measure_numbers(values)
            else:
                same = (values[:-1] == values[-1]) | (
                    np.isnan(values[:-1]) & math.isnan(values[-1])
                )
                total += ~same
        distances: Floats = np.sqrt(total / len(self._is_number))
        return distances


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _measure_numbers(values: Floats) -> Floats:
    """Return the squared differences of the last value to the others, on a scale from 0 to 1."""
    known = values[np.isfinite(values)]
    if not len(known):
        return np.zeros(len(values) - 1)
    low, high = float(known.min()), float(known.max())
    if low > 0.0 and high >= _WIDE * low:
        values, low, high = np.log(values), math.log(low), math.log(high)
    if high <= low:
        scaled = np.where(np.isfinite(values), 0.0, math.nan)
    else:
        scaled = (values - low) / (high - low)
    squares = (scaled[:-1] - scaled[-1]) ** 2
    both = np.isnan(scaled[:-1]) & math.isnan(scaled[-1])
    return np.where(np.isnan(squares), np.where(both, 0.0, 1.0), squares)
