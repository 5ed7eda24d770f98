"""Spaces: what may vary, as plain values that a log can hold.

Knows the usual domains under their usual names, and how a number from 0 to 1 becomes a value of
each. A space is a config in which some values, at any depth, are domains: `{"uniform": [0, 1]}`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.core.errors import SpecError, unknown
from paceline.core.values import Config, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def uniform(low: float, high: float) -> Value:
    """Any number from low to high."""
    return {"uniform": [low, high]}


def loguniform(low: float, high: float) -> Value:
    """Any number from low to high, every factor of ten alike."""
    return {"loguniform": [low, high]}


def quniform(low: float, high: float, q: float) -> Value:
    """A multiple of q from low to high."""
    return {"quniform": [low, high, q]}


def randint(low: int, high: int) -> Value:
    """A whole number from low to high - 1."""
    return {"randint": [low, high]}


def lograndint(low: int, high: int) -> Value:
    """A whole number from low to high - 1, every factor of ten alike."""
    return {"lograndint": [low, high]}


def choice(options: Sequence[Value]) -> Value:
    """One of these."""
    return {"choice": list(options)}


def grid(options: Sequence[Value]) -> Value:
    """Each of these in turn, where the generator goes through a grid; else one of them."""
    return {"grid": list(options)}


class Dimension(Struct, frozen=True):
    """One domain of a space, and where it stands."""

    path: tuple[str | int, ...]
    kind: str
    arguments: tuple[Value, ...]

    @property
    def name(self) -> str:
        """The place as a user would write it."""
        return ".".join(map(str, self.path))

    @property
    def options(self) -> tuple[Value, ...] | None:
        """All values of a dimension that has finitely many that one would list; else None."""
        if self.kind in ("choice", "grid"):
            return self.arguments
        if self.kind == "randint":
            return tuple(range(self.arguments[0], self.arguments[1]))
        return None

    def at(self, share: float) -> Value:
        """Return the value at this share of the way, from 0 to 1."""
        return _AT[self.kind](self.arguments, share)


class Space:
    """A config with domains in it."""

    def __init__(self, template: Config) -> None:
        if not isinstance(template, dict) or not template:
            raise SpecError("the space is empty: name at least one hyperparameter.")
        self._template = template
        self.dimensions = list(_find(template, ()))

    def config(self, values: Sequence[Value]) -> Config:
        """Return the config that has these values, one for each dimension."""
        config: Config = _copy(self._template)
        for dimension, value in zip(self.dimensions, values, strict=True):
            place = config
            for step in dimension.path[:-1]:
                place = place[step]  # type: ignore[index]
            place[dimension.path[-1]] = value  # type: ignore[index]
        return config


def _find(value: Value, path: tuple[str | int, ...]) -> Iterator[Dimension]:
    if isinstance(value, dict):
        if path and len(value) == 1:
            ((kind, arguments),) = value.items()
            if kind in _AT:
                yield _dimension(path, kind, arguments)
                return
            if isinstance(arguments, list) and kind != "piecewise" and kind in _NEARLY:
                raise unknown("domain", kind, _AT)
        for name in sorted(value):
            yield from _find(value[name], (*path, name))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _find(item, (*path, index))


def _dimension(path: tuple[str | int, ...], kind: str, arguments: Value) -> Dimension:
    dimension = Dimension(path, kind, tuple(arguments))
    complaint = _complaint(kind, dimension.arguments)
    if complaint:
        raise SpecError(f"{dimension.name}: {kind}{dimension.arguments!r} {complaint}.")
    return dimension


def _complaint(kind: str, arguments: tuple[Value, ...]) -> str | None:
    if kind in ("choice", "grid"):
        return None if arguments else "has nothing to choose from"
    if len(arguments) != (3 if kind == "quniform" else 2):
        return "needs a low and a high end" + (" and a step" if kind == "quniform" else "")
    if not all(isinstance(x, int | float) and math.isfinite(x) for x in arguments):
        return "needs finite numbers"
    low, high = arguments[:2]
    if kind in ("randint", "lograndint") and not all(isinstance(x, int) for x in arguments):
        return "needs whole numbers"
    if not low < high:
        return "is empty: the low end must be below the high end"
    if kind in ("loguniform", "lograndint") and low <= 0:
        return "has no logarithm at its low end: give a positive one"
    if kind == "quniform" and arguments[2] <= 0:
        return "needs a positive step"
    if kind == "quniform" and _multiples(*arguments)[0] > _multiples(*arguments)[1]:
        return "holds no multiple of its step"
    return None


def _copy(value: Value) -> Value:
    if isinstance(value, dict):
        return {name: _copy(item) for name, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list | tuple) else value


def _log(low: float, high: float, share: float) -> float:
    return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))


def _within(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _at_uniform(arguments: tuple[Value, ...], share: float) -> Value:
    low, high = arguments
    return _within(low + share * (high - low), low, high)


def _at_loguniform(arguments: tuple[Value, ...], share: float) -> Value:
    low, high = arguments
    return _within(_log(low, high, share), low, high)


def _at_quniform(arguments: tuple[Value, ...], share: float) -> Value:
    least, most = _multiples(*arguments)
    q = arguments[2]
    return q * min(least + int(share * (most - least + 1)), most)


def _multiples(low: float, high: float, q: float) -> tuple[int, int]:
    return math.ceil(low / q - 1e-9), math.floor(high / q + 1e-9)


def _at_randint(arguments: tuple[Value, ...], share: float) -> Value:
    low, high = arguments
    return min(low + int(share * (high - low)), high - 1)


def _at_lograndint(arguments: tuple[Value, ...], share: float) -> Value:
    low, high = arguments
    return min(int(_log(low, high, share) + 1e-9), high - 1)


def _at_options(arguments: tuple[Value, ...], share: float) -> Value:
    return arguments[min(int(share * len(arguments)), len(arguments) - 1)]


_AT: dict[str, Callable[[tuple[Value, ...], float], Value]] = {
    "uniform": _at_uniform,
    "loguniform": _at_loguniform,
    "quniform": _at_quniform,
    "randint": _at_randint,
    "lograndint": _at_lograndint,
    "choice": _at_options,
    "grid": _at_options,
}
# Names of other tools that one might write by habit: worth an answer rather than a silent constant.
_NEARLY = frozenset(
    {"log_uniform", "qloguniform", "int", "float", "categorical", "grid_search", "normal", "randn"}
)
