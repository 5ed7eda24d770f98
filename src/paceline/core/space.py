"""Spaces: what may vary, as plain values that a log can hold.

Knows the usual domains under their usual names, and how a number from 0 to 1 becomes a value of
each. A space is a config in which some values, at any depth, are domains: `{"uniform": [0, 1]}`.
Options of a choice may hold domains too: those are in force where that option is chosen.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.core.errors import SpecError, make_unknown_error
from paceline.core.values import Config, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


# The kinds that list their values as arguments.
CHOICES = frozenset({"choice", "grid"})


def uniform(low: float, high: float) -> Value:
    """Any number from low to high."""
    return {"uniform": [low, high]}


def loguniform(low: float, high: float) -> Value:
    """Any number from low to high, uniform in its logarithm."""
    return {"loguniform": [low, high]}


def quniform(low: float, high: float, q: float) -> Value:
    """A multiple of q from low to high."""
    return {"quniform": [low, high, q]}


def randint(low: int, high: int) -> Value:
    """A whole number from low to high - 1."""
    return {"randint": [low, high]}


def lograndint(low: int, high: int) -> Value:
    """A whole number from low to high - 1, uniform in its logarithm."""
    return {"lograndint": [low, high]}


def choice(options: Iterable[Value], *others: Value) -> Value:
    """One of these values. A value may contain domains, which apply if it is chosen."""
    return {"choice": _list_options("choice", options, others)}


def grid(options: Iterable[Value], *others: Value) -> Value:
    """Each of these values in turn, with every combination of all grids.

    If a generator other than `grid` is given, it chooses one of them, as in a `choice`.
    """
    return {"grid": _list_options("grid", options, others)}


def _list_options(kind: str, options: Iterable[Value], others: tuple[Value, ...]) -> list[Value]:
    """Return the options as a list; raise SpecError if they are not given as one list."""
    if others:
        given = (options, *others)
        raise SpecError(
            f"{kind}{given!r} has {len(given)} arguments: give one list, {kind}({list(given)!r})."
        )
    if isinstance(options, str | bytes | dict | set | frozenset):
        found = "string" if isinstance(options, str | bytes) else type(options).__name__
        example = ["adam", "sgd"] if isinstance(options, str | bytes) else [1, 2, 3]
        values = list(options) if isinstance(options, set | frozenset | dict) else example
        raise SpecError(f"{kind}({options!r}) has a {found}: give a list, {kind}({values!r}).")
    try:
        return list(options)
    except TypeError:
        raise SpecError(
            f"{kind}({options!r}) has one value instead of a list: give the values to choose from, "
            f"{kind}([{options!r}, …])."
        ) from None


class Dimension(Struct, frozen=True):
    """One domain of a space, and its place in the config."""

    path: tuple[str | int, ...]
    kind: str
    arguments: tuple[Value, ...]
    # The place as a user would write it, options included: `optimizer[0].momentum`.
    name: str
    # The name of the choice and the option that contains this domain; None if no choice does.
    under: tuple[str, int] | None = None

    @property
    def options(self) -> tuple[Value, ...] | None:
        """All values of a dimension with few, listable values; else None."""
        if self.kind in CHOICES:
            return self.arguments
        if self.kind == "randint":
            return tuple(range(self.arguments[0], self.arguments[1]))
        return None

    def at(self, share: float) -> Value:
        """Return the value at this quantile, from 0 to 1."""
        return _AT[self.kind](self.arguments, share)


class Space:
    """A config with domains in it."""

    def __init__(self, template: Config) -> None:
        if not isinstance(template, dict) or not template:
            raise SpecError("the space is empty: name at least one hyperparameter.")
        self._template = template
        # All dimensions; those inside options come after their choice.
        self.dimensions = list(_find(template, (), ""))
        self._branching = {each.under[0] for each in self.dimensions if each.under is not None}

    def config(self, values: Sequence[Value]) -> Config:
        """Return the config with these values, one for each dimension.

        Those of options that are not chosen are not looked at.
        """
        given = dict(zip((each.name for each in self.dimensions), values, strict=True))
        return self.fill(lambda dimension: given[dimension.name])

    def fill(self, draw: Callable[[Dimension], Value]) -> Config:
        """Return the config with a random value for each active dimension."""
        config: Config = _copy(self._template)
        chosen: set[tuple[str, int]] = set()
        for dimension in self.dimensions:
            if dimension.under is not None and dimension.under not in chosen:
                continue
            value = draw(dimension)
            if dimension.name in self._branching:
                chosen.add((dimension.name, dimension.arguments.index(value)))
                value = _copy(value)
            place = config
            for step in dimension.path[:-1]:
                place = place[step]  # type: ignore[index]
            place[dimension.path[-1]] = value  # type: ignore[index]
        return config

    def read(self, config: Config, *, whole: bool = True) -> dict[str, Value]:
        """Return the values of a config by dimension name: the inverse of `fill`.

        Of a choice it is the number of the option. A config that is not `whole` may lack values.

        Raises SpecError if the config is not in this space.
        """
        return _read(self._template, config, "", whole)


def has_domains(value: Value) -> bool:
    """Return whether a value is a domain or contains one."""
    return isinstance(value, dict | list | tuple) and any(_find(value, (), "value"))


def _find(
    value: Value, path: tuple[str | int, ...], name: str, under: tuple[str, int] | None = None
) -> Iterator[Dimension]:
    dimension = _domain(value, path, name, under)
    if dimension is not None:
        yield dimension
        if dimension.kind in CHOICES:
            for index, option in enumerate(dimension.arguments):
                yield from _find(option, path, f"{name}[{index}]", (name, index))
    elif isinstance(value, dict):
        for key in sorted(value):
            yield from _find(value[key], (*path, key), _join(name, key), under)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _find(item, (*path, index), _join(name, index), under)


def _join(name: str, step: str | int) -> str:
    return f"{name}.{step}" if name else str(step)


def _domain(
    value: Value, path: tuple[str | int, ...], name: str, under: tuple[str, int] | None = None
) -> Dimension | None:
    """Return the dimension that a value describes; None for a constant."""
    if not (name and isinstance(value, dict) and len(value) == 1):
        return None
    ((kind, arguments),) = value.items()
    if kind not in _AT:
        if isinstance(arguments, list) and kind in OTHER_KINDS:
            raise make_unknown_error(f"domain of {name}:", kind, _AT)
        return None
    dimension = Dimension(path, kind, tuple(arguments), name, under)
    complaint = _complaint(kind, dimension.arguments)
    if complaint:
        raise SpecError(f"{name}: {kind}{dimension.arguments!r} {complaint}.")
    return dimension


def _read(template: Value, value: Value, name: str, whole: bool) -> dict[str, Value]:
    dimension = _domain(template, (), name)
    if dimension is not None:
        return _read_domain(dimension, value, whole)
    found: dict[str, Value] = {}
    if isinstance(template, dict) and isinstance(value, dict):
        for key in value:
            if key not in template:
                raise make_unknown_error(
                    "hyperparameter", _join(name, key), [_join(name, k) for k in template]
                )
            found |= _read(template[key], value[key], _join(name, key), whole)
        if not whole or len(value) == len(template):
            return found
    elif isinstance(template, list | tuple) and isinstance(value, list | tuple):
        if len(template) == len(value):
            for index, (inner, item) in enumerate(zip(template, value, strict=True)):
                found |= _read(inner, item, _join(name, index), whole)
            return found
    elif type(template) is type(value) and template == value:
        return found
    raise SpecError(f"{name}={value!r} is not in the space, which has {template!r} there.")


def _read_domain(dimension: Dimension, value: Value, whole: bool) -> dict[str, Value]:
    name = dimension.name
    if dimension.kind not in CHOICES:
        if _holds(dimension.kind, dimension.arguments, value):
            return {name: value}
        raise SpecError(f"{name}={value!r} is outside of {dimension.kind}{dimension.arguments!r}.")
    # Prefer an option with exactly these keys to one with more.
    for all_of_it in (True,) if whole else (True, False):
        for index, option in enumerate(dimension.arguments):
            try:
                inner = _read(option, value, f"{name}[{index}]", all_of_it)
            except SpecError:
                continue
            return {name: index, **inner}
    raise SpecError(f"{name}={value!r} is not one of the options {dimension.arguments!r}.")


def _holds(kind: str, arguments: tuple[Value, ...], value: Value) -> bool:
    if type(value) not in (int, float):
        return False
    low, high = arguments[:2]
    if kind in ("randint", "lograndint"):
        return type(value) is int and bool(low <= value < high)
    if kind == "quniform":
        least, most = find_multiples(*arguments)
        steps = value / arguments[2]
        return least <= round(steps) <= most and math.isclose(steps, round(steps), abs_tol=1e-9)
    return bool(low <= value <= high)


def _complaint(kind: str, arguments: tuple[Value, ...]) -> str | None:
    if kind in CHOICES:
        return None if arguments else "has nothing to choose from: give at least one value"
    if len(arguments) != (3 if kind == "quniform" else 2):
        step = " and a step" if kind == "quniform" else ""
        return f"needs a low and a high end{step}, such as {_EXAMPLES[kind]}"
    if not all(isinstance(x, int | float) and math.isfinite(x) for x in arguments):
        return f"needs finite numbers, such as {_EXAMPLES[kind]}"
    low, high = arguments[:2]
    if kind in ("randint", "lograndint") and not all(isinstance(x, int) for x in arguments):
        return f"needs whole numbers, such as {_EXAMPLES[kind]}"
    if not low < high:
        return "is empty: the low end must be below the high end"
    if kind in ("loguniform", "lograndint") and low <= 0:
        return "has no logarithm at its low end: give a positive one"
    if kind == "quniform" and arguments[2] <= 0:
        return f"needs a positive step, such as {_EXAMPLES[kind]}"
    if kind == "quniform" and find_multiples(*arguments)[0] > find_multiples(*arguments)[1]:
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
    least, most = find_multiples(*arguments)
    q = arguments[2]
    return q * min(least + int(share * (most - least + 1)), most)


def find_multiples(low: float, high: float, q: float) -> tuple[int, int]:
    """Return the smallest and largest multiple of q between low and high."""
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
_EXAMPLES = {
    "uniform": "uniform(0, 1)",
    "loguniform": "loguniform(1e-4, 1)",
    "quniform": "quniform(0, 1, 0.1)",
    "randint": "randint(1, 10)",
    "lograndint": "lograndint(1, 1000)",
}
# The kinds of domains.
KINDS = frozenset(_AT)
# Spellings of other tools: refused with a hint instead of taken as constants.
OTHER_KINDS = frozenset(
    {"log_uniform", "qloguniform", "int", "float", "categorical", "grid_search", "normal", "randn"}
)
