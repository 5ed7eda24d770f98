"""Hyperparameters as axes: a flat name and a scale from 0 to 1 for each.

Scales are linear, logarithmic or categorical; the axes that vary most come first when there are too
many. A schedule is placed at its first value. Does not know plotly.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from paceline.core.text import format_value
from paceline.plan.schedules import is_rule, rule_arguments
from paceline.plan.settings import is_changing, value_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.values import Config, Value

# An axis with more categories than this is not readable and is left out.
MOST_CATEGORIES = 24
# Numbers that differ by this factor go on a logarithmic axis.
_ORDERS = 100.0
# The room for zero on a logarithmic axis, below all other values.
_ZERO_ROOM = 0.12
# Up to this many values all get a tick, if the ticks are not too close.
_FEW = 8
_CLOSE = 0.06


class ConfigAxis(NamedTuple):
    """One hyperparameter over many configs."""

    name: str
    # The position of each config, from 0 to 1; None if it does not have the hyperparameter.
    positions: list[float | None]
    # The value of each config as text.
    texts: list[str]
    # (position, text) of some values, in rising order.
    ticks: list[tuple[float, str]]
    # Whether any config has a schedule here.
    has_schedule: bool
    # The entropy of the values, in bits.
    variability: float


def flatten_config(config: Config) -> dict[str, Value]:
    """Return a config at its first epoch with dotted names; a rule becomes its arguments.

    >>> flatten_config({"lr": {"piecewise": [[0, 0.1], [30, 0.01]]}, "net": {"width": 64}})
    {'lr': 0.1, 'net.width': 64}
    >>> flatten_config({"lr": {"each_epoch": "exponential", "start": 0.1, "factor": 0.9}})
    {'lr.start': 0.1, 'lr.factor': 0.9}
    """
    found: dict[str, Value] = {}
    for name, scheduled in config.items():
        value = rule_arguments(scheduled) if is_rule(scheduled) else value_at(scheduled, 0)
        if isinstance(value, dict) and value:
            found |= {f"{name}.{inner}": each for inner, each in flatten_config(value).items()}
        else:
            found[name] = value
    return found


def find_axes(configs: Sequence[Config], most: int) -> list[ConfigAxis]:
    """Return the axes that vary most, in the order of the configs."""
    flats = [flatten_config(config) for config in configs]
    names = dict.fromkeys(name for each in flats for name in each)
    found = [_make_axis(name, flats, configs) for name in names]
    varied = [each for each in found if each is not None and each.variability > 0]
    kept = sorted(varied, key=lambda each: -each.variability)[:most]
    return [each for each in varied if each in kept]


def _make_axis(
    name: str, flats: Sequence[dict[str, Value]], configs: Sequence[Config]
) -> ConfigAxis | None:
    values = [each.get(name) for each in flats]
    present = [value for value in values if value is not None]
    texts = ["none" if value is None else format_value(value) for value in values]
    scheduled = any(is_changing(config.get(name)) for config in configs)
    if present and all(type(value) in (int, float) for value in present):
        positions, ticks = _place_numbers(values)
    elif len(set(texts)) <= MOST_CATEGORIES:
        positions, ticks = _place_categories(texts)
    else:
        return None
    # In eight bins, so that numbers and categories are comparable.
    boxes = Counter(
        None if position is None else min(7, int(8 * position)) for position in positions
    )
    shares = [count / len(positions) for count in boxes.values()]
    bits = -sum(share * math.log2(share) for share in shares)
    return ConfigAxis(
        name, positions, texts, ticks, scheduled, bits if len(set(texts)) > 1 else 0.0
    )


def _place_numbers(values: Sequence[Value]) -> tuple[list[float | None], list[tuple[float, str]]]:
    numbers = [float(value) for value in values if value is not None]
    low, high = min(numbers), max(numbers)
    positive = [number for number in numbers if number > 0]
    wide = low >= 0 and bool(positive) and high / min(positive) >= _ORDERS
    if not wide or not math.isfinite(high / min(positive)):
        return _place_on_scale(values, low, high, log=False)
    return _place_on_scale(values, min(positive), high, log=True)


def _place_on_scale(
    values: Sequence[Value], low: float, high: float, *, log: bool
) -> tuple[list[float | None], list[tuple[float, str]]]:
    zero = log and any(value == 0 for value in values)
    room = _ZERO_ROOM if zero else 0.0

    def locate(value: float) -> float:
        if high == low:
            return 0.5
        if not log:
            # Halved, so that no difference of finite numbers overflows.
            return (value / 2 - low / 2) / (high / 2 - low / 2)
        if value == 0:
            return 0.0
        return room + (1 - room) * math.log(value / low) / math.log(high / low)

    distinct = sorted({float(value) for value in values if value is not None})
    marks = _choose_decades(low, high) if log else _choose_round_numbers(low, high)
    if len(distinct) <= _FEW and _are_apart([locate(each) for each in distinct]):
        marks = [each for each in distinct if each or not zero]
    if all(type(value) is int for value in values if value is not None):
        marks = [mark for mark in marks if mark == int(mark)]
    ticks = [(locate(mark), _format_mark(mark, 3 if log else 5)) for mark in marks]
    if zero:
        ticks.insert(0, (0.0, "0"))
    return [None if value is None else locate(value) for value in values], ticks


def _are_apart(positions: Sequence[float]) -> bool:
    return all(above - below >= _CLOSE for below, above in pairwise(positions))


def _format_mark(value: float, digits: int) -> str:
    if value == int(value) and abs(value) < 1e5:
        return f"{int(value)}"
    return f"{value:.{digits if abs(value) < 1e5 else 3}g}"


def _choose_decades(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    step = max(1, math.ceil((last - first) / 6))
    inner = [10.0**power for power in range(first, last + 1, step)]
    # The ends get ticks too, unless a power of ten is too close.
    reach = 0.06 * math.log(high / low)
    inner = [mark for mark in inner if reach < math.log(mark / low) < math.log(high / low) - reach]
    return [low, *inner, high]


def _choose_round_numbers(low: float, high: float) -> list[float]:
    if high == low:
        return [low]
    rough = (high / 2 - low / 2) / 2
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 0.0
    if power == 0.0:
        return [low, high]
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step)
    inner = [(first + index) * step for index in range(8) if (first + index) * step <= high]
    reach = 0.12 * (high / 2 - low / 2)
    inner = [mark for mark in inner if low + reach < mark < high - reach]
    return [low, *inner, high]


def _place_categories(texts: Sequence[str]) -> tuple[list[float | None], list[tuple[float, str]]]:
    names = sorted(set(texts), key=_sort_key)
    last = max(1, len(names) - 1)
    at = {name: (index / last if len(names) > 1 else 0.5) for index, name in enumerate(names)}
    return [at[text] for text in texts], [(at[name], name) for name in names]


def _sort_key(text: str) -> tuple[int, float, str]:
    """Return a sort key that puts numbers first, by size."""
    try:
        return (0, float(text), text)
    except ValueError:
        return (1, 0.0, text)
