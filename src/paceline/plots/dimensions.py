"""Configs as dimensions: flat names, and a scale from 0 to 1 for each.

Knows numbers, orders of magnitude and categories, and which dimensions vary most. A schedule
stands for its first value. Does not know plotly.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from paceline.plan.schedules import arguments, is_rule
from paceline.plan.settings import changing, value_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.values import Config, Value

# More categories than this on an axis cannot be read: each config is one of its own.
MOST_CATEGORIES = 24
# Numbers that differ by this factor go on a logarithmic axis.
_ORDERS = 100.0
# Where zero stands on a logarithmic axis: below all others.
_ZERO_ROOM = 0.12
# So few values are all told, where their words do not touch.
_FEW = 8
_CLOSE = 0.06


class Dimension(NamedTuple):
    """One hyperparameter over many configs."""

    name: str
    # Where each config lies, from 0 to 1; None: it does not have this hyperparameter.
    places: list[float | None]
    # What each config has, in words.
    words: list[str]
    # (place, words) of some values, in rising order.
    ticks: list[tuple[float, str]]
    # Whether any config has a schedule here.
    scheduled: bool
    # In bits: how much knowing the value tells about which config it is.
    variability: float


def flat(config: Config) -> dict[str, Value]:
    """Return a config as it begins, nested values under dotted names; of a rule, its arguments.

    >>> flat({"lr": {"piecewise": [[0, 0.1], [30, 0.01]]}, "net": {"width": 64}})
    {'lr': 0.1, 'net.width': 64}
    >>> flat({"lr": {"each_epoch": "exponential", "start": 0.1, "factor": 0.9}})
    {'lr.start': 0.1, 'lr.factor': 0.9}
    """
    found: dict[str, Value] = {}
    for name, scheduled in config.items():
        value = arguments(scheduled) if is_rule(scheduled) else value_at(scheduled, 0)
        if isinstance(value, dict) and value:
            found |= {f"{name}.{inner}": each for inner, each in flat(value).items()}
        else:
            found[name] = value
    return found


def brief(value: Value) -> str:
    """Return a value as a person would write it."""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def dimensions(configs: Sequence[Config], most: int) -> list[Dimension]:
    """Return the dimensions that vary most, in the order in which configs name them."""
    flats = [flat(config) for config in configs]
    names = dict.fromkeys(name for each in flats for name in each)
    found = [_dimension(name, flats, configs) for name in names]
    varied = [each for each in found if each is not None and each.variability > 0]
    kept = sorted(varied, key=lambda each: -each.variability)[:most]
    return [each for each in varied if each in kept]


def _dimension(
    name: str, flats: Sequence[dict[str, Value]], configs: Sequence[Config]
) -> Dimension | None:
    values = [each.get(name) for each in flats]
    present = [value for value in values if value is not None]
    words = ["none" if value is None else brief(value) for value in values]
    scheduled = any(changing(config.get(name)) for config in configs)
    if present and all(type(value) in (int, float) for value in present):
        places, ticks = _numbers(values)
    elif len(set(words)) <= MOST_CATEGORIES:
        places, ticks = _categories(words)
    else:
        return None
    # In eight boxes, so that numbers and categories can be compared.
    boxes = Counter(None if place is None else min(7, int(8 * place)) for place in places)
    shares = [count / len(places) for count in boxes.values()]
    bits = -sum(share * math.log2(share) for share in shares)
    return Dimension(name, places, words, ticks, scheduled, bits if len(set(words)) > 1 else 0.0)


def _numbers(values: Sequence[Value]) -> tuple[list[float | None], list[tuple[float, str]]]:
    numbers = [float(value) for value in values if value is not None]
    low, high = min(numbers), max(numbers)
    positive = [number for number in numbers if number > 0]
    wide = low >= 0 and bool(positive) and high / min(positive) >= _ORDERS
    if not wide or not math.isfinite(high / min(positive)):
        return _on_scale(values, low, high, log=False)
    return _on_scale(values, min(positive), high, log=True)


def _on_scale(
    values: Sequence[Value], low: float, high: float, *, log: bool
) -> tuple[list[float | None], list[tuple[float, str]]]:
    zero = log and any(value == 0 for value in values)
    room = _ZERO_ROOM if zero else 0.0

    def place(value: float) -> float:
        if high == low:
            return 0.5
        if not log:
            # Halves, so that no difference of finite numbers overflows.
            return (value / 2 - low / 2) / (high / 2 - low / 2)
        if value == 0:
            return 0.0
        return room + (1 - room) * math.log(value / low) / math.log(high / low)

    distinct = sorted({float(value) for value in values if value is not None})
    marks = _decades(low, high) if log else _round_numbers(low, high)
    if len(distinct) <= _FEW and _apart([place(each) for each in distinct]):
        marks = [each for each in distinct if each or not zero]
    if all(type(value) is int for value in values if value is not None):
        marks = [mark for mark in marks if mark == int(mark)]
    ticks = [(place(mark), _mark(mark, 3 if log else 5)) for mark in marks]
    if zero:
        ticks.insert(0, (0.0, "0"))
    return [None if value is None else place(value) for value in values], ticks


def _apart(places: Sequence[float]) -> bool:
    return all(above - below >= _CLOSE for below, above in pairwise(places))


def _mark(value: float, digits: int) -> str:
    if value == int(value) and abs(value) < 1e5:
        return f"{int(value)}"
    return f"{value:.{digits if abs(value) < 1e5 else 3}g}"


def _decades(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    step = max(1, math.ceil((last - first) / 6))
    inner = [10.0**power for power in range(first, last + 1, step)]
    # The ends are told too, unless a power of ten is so near that the words would touch.
    reach = 0.06 * math.log(high / low)
    inner = [mark for mark in inner if reach < math.log(mark / low) < math.log(high / low) - reach]
    return [low, *inner, high]


def _round_numbers(low: float, high: float) -> list[float]:
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


def _categories(words: Sequence[str]) -> tuple[list[float | None], list[tuple[float, str]]]:
    names = sorted(set(words), key=_natural)
    last = max(1, len(names) - 1)
    at = {name: (index / last if len(names) > 1 else 0.5) for index, name in enumerate(names)}
    return [at[word] for word in words], [(at[name], name) for name in names]


def _natural(word: str) -> tuple[int, float, str]:
    """Sort numbers among words by their size."""
    try:
        return (0, float(word), word)
    except ValueError:
        return (1, 0.0, word)
