"""The forecast of one learning curve as plain values: bounds by epoch, a target and a deadline.

Draws nothing and computes no forecast.
"""

from __future__ import annotations

from msgspec import Struct

from paceline.core.values import Mode


class FanRow(Struct, frozen=True, kw_only=True):
    """The forecast for one epoch: bounds of the 95 % and 80 % intervals, and the median."""

    epoch: int
    low_95: float
    low_80: float
    median: float
    high_80: float
    high_95: float


class Fan(Struct, frozen=True, kw_only=True):
    """The forecast of one curve. Its JSON is a contract: `docs/json.md`."""

    source: str
    trial: int
    metric: str
    mode: Mode
    curves: str
    epoch: int
    epochs: int
    values: list[float | None]
    rows: list[FanRow]
    target: float | None
    deadline_s: float | None
    # The last epoch that ends before the deadline.
    by_epoch: int
    # The probability of reaching the target by then, and the mean time until that if it is.
    chance: float | None
    expected_s: float | None
    # The lowest and the highest possible value: declared, or assumed by the metric's name.
    range: tuple[float, float] | None = None
    is_range_assumed: bool = False
