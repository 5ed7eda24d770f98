"""Neighbours: for each trial the others with the most similar configs.

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
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from paceline.core.values import Config, Value

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

# The neighbours of a trial, and the latest trials among which they are looked for.
NEAREST = 12
_COMPARED = 1024
# Neighbours are looked for again when this share more trials are known.
_MORE = 0.1
# A range is wide if its end is this many times its start.
_WIDE = 20.0
# Stands for a missing value: as far from any other one as can be.
_MISSING = -9.0
# The code of a value that no trial has.
_UNKNOWN = -5.0


class Neighbours:
    """The configs of all trials, and the nearest trials of each, with their distances."""

    def __init__(self) -> None:
        self._columns: dict[str, int] = {}
        self._is_number = np.zeros(0, dtype=bool)
        self._codes: dict[tuple[int, str], float] = {}
        # By row, in the order in which they came: the values, scaled ones, and the trial.
        self._rows = np.full((64, 0), math.nan)
        self._scaled = np.full((64, 0), _MISSING)
        self._trials = np.zeros(64, dtype=np.int64)
        self._count = self._settled = 0
        self._row_of = np.full(64, -1)
        # By column: the range of its numbers, and whether it is wide.
        self._low = self._high = np.zeros(0)
        self._is_wide = np.zeros(0, dtype=bool)
        # By trial: its neighbours, the nearest first, and how many trials were known then; -1 and
        # an infinite distance: none.
        self._others = np.full((64, NEAREST), -1)
        self._distances = np.full((64, NEAREST), math.inf)
        self._known = np.zeros(64)

    def add(self, trial: int, config: Mapping[str, Value]) -> None:
        """Add the config of a new trial."""
        at = self._count
        if at >= len(self._rows):
            self._rows = np.concatenate([self._rows, np.full_like(self._rows, math.nan)])
            self._scaled = np.concatenate([self._scaled, np.full_like(self._scaled, _MISSING)])
            self._trials = np.concatenate([self._trials, np.zeros_like(self._trials)])
        while trial >= len(self._row_of):
            self._row_of = np.concatenate([self._row_of, np.full_like(self._row_of, -1)])
            self._others = np.concatenate([self._others, np.full_like(self._others, -1)])
            far = np.full_like(self._distances, math.inf)
            self._distances = np.concatenate([self._distances, far])
            self._known = np.concatenate([self._known, np.zeros_like(self._known)])
        self._rows[at] = self._encode(config)
        self._trials[at] = trial
        self._row_of[trial] = at
        self._count += 1
        self._scale()

    def replace(self, trial: int, config: Mapping[str, Value]) -> None:
        """Give a trial another config; trials that were compared with the old one keep that."""
        at = int(self._row_of[trial])
        self._rows[at] = self._encode(config)
        self._settled = min(self._settled, at)
        self._known[trial] = 0.0
        self._scale()

    def compare(self, configs: Mapping[int, Config], most: int) -> tuple[Ints, Floats]:
        """Return the latest trials, and the mean squared distance of each config to each of them.

        Hyperparameters that are the same for all do not count.
        """
        latest = slice(max(0, self._count - most), self._count)
        own = self._transform(self._look_up(list(configs.values())))
        others = self._scaled[latest]
        varies = (others != others[:1]).any(axis=0) | (own != others[:1]).any(axis=0)
        squares = np.minimum((own[:, None, varies] - others[:, varies]) ** 2, 1.0)
        return self._trials[latest], squares.sum(axis=2) / max(1, int(varies.sum()))

    def _look_up(self, configs: Sequence[Config]) -> Floats:
        """Return configs as rows of numbers, without noting anything new about them."""
        rows = [
            [self._find_code(column, config.get(name)) for config in configs]
            for name, column in self._columns.items()
        ]
        return np.array(rows).reshape(len(rows), len(configs)).T

    def _find_code(self, column: int, value: Value | None) -> float:
        if value is None:
            return math.nan
        if self._is_number[column]:
            return float(value) if _is_number(value) else math.nan
        return self._codes.get(_make_key(column, value), _UNKNOWN)

    def find(self, trials: Ints) -> tuple[Ints, Floats]:
        """Return the neighbours of trials, the nearest first, and their distances."""
        stale = trials[self._count > (1 + _MORE) * self._known[trials]]
        if len(stale) and self._columns:
            self._find_anew(stale)
        return self._others[trials], self._distances[trials]

    def _find_anew(self, trials: Ints) -> None:
        start = max(0, self._count - _COMPARED)
        rows = self._row_of[trials]
        scaled = self._scaled
        squares = np.minimum((scaled[start : self._count] - scaled[rows][:, None]) ** 2, 1.0)
        distances = np.sqrt(squares.sum(axis=2) / len(self._columns))
        own = rows >= start
        distances[np.flatnonzero(own), rows[own] - start] = math.inf
        order = np.argsort(distances, axis=1, kind="stable")[:, :NEAREST]
        near = np.take_along_axis(distances, order, axis=1)
        others = np.where(near < math.inf, self._trials[start + order], -1)
        self._others[trials, : others.shape[1]] = others
        self._distances[trials, : others.shape[1]] = near
        self._known[trials] = self._count

    def _scale(self) -> None:
        """Scale the rows that are new; all rows if they extend the range of a column."""
        first, end = self._settled, self._count
        if first == end:
            return
        self._settled = end
        rows = np.where(self._is_number, self._rows[first:end], math.nan)
        rows[~np.isfinite(rows)] = math.nan
        low, high = np.fmin.reduce(rows, axis=0), np.fmax.reduce(rows, axis=0)
        low, high = np.fmin(low, self._low), np.fmax(high, self._high)
        if not (
            np.array_equal(low, self._low, equal_nan=True)
            and np.array_equal(high, self._high, equal_nan=True)
        ):
            first, self._low, self._high = 0, low, high
            self._is_wide = self._is_number & (low > 0.0) & (high >= _WIDE * low)
        self._scaled[first:end] = self._transform(self._rows[first:end])

    def _transform(self, rows: Floats) -> Floats:
        """Return rows with numbers between 0 and 1, and codes as they are."""
        wide, low, high = self._is_wide, self._low, self._high
        start = np.where(wide, np.log(np.where(wide, low, 1.0)), low)
        end = np.where(wide, np.log(np.where(wide, high, 1.0)), high)
        logs = np.log(np.where(wide & (rows > 0.0), rows, 1.0))
        values = np.where(wide, logs, rows)
        numbers = (values - start) / np.where(end > start, end - start, 1.0)
        scaled = np.where(self._is_number, numbers, rows)
        return np.where(np.isfinite(scaled), scaled, _MISSING)

    def _encode(self, config: Mapping[str, Value]) -> Floats:
        """Return the config as a row of numbers; NaN where it lacks a hyperparameter."""
        for name, value in config.items():
            if name not in self._columns:
                self._add_column(name, is_number=_is_number(value))
        row = np.full(len(self._columns), math.nan)
        for name, value in config.items():
            column = self._columns[name]
            if self._is_number[column] and _is_number(value):
                row[column] = float(value)
            else:
                # Not a number among numbers: as far away as any other such value.
                key = _make_key(column, value)
                row[column] = self._codes.setdefault(key, float(len(self._codes)))
                if self._is_number[column]:
                    self._is_number[column] = False
                    self._settled = 0
        return row

    def _add_column(self, name: str, *, is_number: bool) -> None:
        self._columns[name] = len(self._columns)
        self._is_number = np.append(self._is_number, is_number)
        self._is_wide = np.append(self._is_wide, False)
        self._low, self._high = np.append(self._low, math.nan), np.append(self._high, math.nan)
        missing = np.full((len(self._rows), 1), math.nan)
        self._rows = np.append(self._rows, missing, axis=1)
        self._scaled = np.append(self._scaled, np.full_like(missing, _MISSING), axis=1)


def _make_key(column: int, value: Value) -> tuple[int, str]:
    return column, json.dumps(value, sort_keys=True, default=str)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
