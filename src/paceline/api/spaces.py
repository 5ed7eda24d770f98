"""Spaces as users write them: checked at the call, and turned into what a log can hold.

Knows which values a space may contain, and what to write instead of the others. What a domain
means, `core.space` knows.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from paceline.api.foreign_domains import convert_foreign
from paceline.core.errors import SpecError
from paceline.core.space import KINDS, OTHER_KINDS, Space, grid, has_domains
from paceline.plan.schedules import PIECEWISE, RULE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.core.values import Config, Value

_EXAMPLE = "{'lr': pl.loguniform(1e-4, 1)}"
_LIBRARIES = frozenset({"numpy", "scipy", "optuna", "ray", "torch", "pandas", "hyperopt", "skopt"})
_ALL_KINDS = KINDS | OTHER_KINDS
_CALL = re.compile(rf"\s*(?:pl\.|tune\.|trial\.)?({'|'.join(sorted(KINDS))})\s*\(")


def convert_space(given: Any) -> Config:  # noqa: ANN401
    """Return a space as plain values. Raises SpecError at the first that cannot be one."""
    if not isinstance(given, dict):
        raise SpecError(
            f"space={show_value(given)} is {_name_kind(given)}: give a dict with a domain for each "
            f"hyperparameter, such as {_EXAMPLE}."
        )
    if len(given) == 1 and KINDS.intersection(given):
        raise SpecError(
            f"space={show_value(given)} is one domain: give a dict with a name for each "
            f"hyperparameter, such as {_EXAMPLE}."
        )
    if not given:
        raise SpecError(f"the space is empty: give at least one hyperparameter, {_EXAMPLE}.")
    converted: Config = _convert_dict(given, "", is_inner=False)
    # Finds what is wrong inside the domains.
    Space(converted)
    return converted


def wrap_lists(given: Mapping[str, Any]) -> Config:
    """Return a space in which each list without a domain is a constant, as with Ray Tune."""
    return {name: _wrap(value) for name, value in given.items()}


def _wrap(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        is_domain = len(value) == 1 and bool({*KINDS, "grid_search", PIECEWISE} & set(value))
        return value if is_domain or RULE in value else wrap_lists(value)
    is_constant = isinstance(value, list | tuple) and not has_domains(value)
    # Domains of other libraries are objects.
    if is_constant and all(each is None or isinstance(each, _PLAIN) for each in value):
        return {"choice": [list(value)]}
    return value


_PLAIN = (bool, int, float, str, list, tuple, dict)


def _convert(value: Any, name: str, *, is_inner: bool) -> Value:  # noqa: ANN401
    """Return a value as plain ones; `is_inner`: inside a domain, where lists are constants."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise SpecError(f"{name}={value!r} is not a finite number: give a finite one.")
        return float(value)
    if isinstance(value, str):
        return _convert_text(value, name)
    if isinstance(value, dict):
        return _convert_dict(value, name, is_inner=is_inner)
    if isinstance(value, list | tuple):
        return _convert_list(value, name, is_inner=is_inner)
    # A numpy scalar.
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        return _convert(value.item(), name, is_inner=is_inner)
    found = convert_foreign(value, name)
    if found is None:
        raise SpecError(f"{name} is {_describe(value)}.")
    return _convert(found, name, is_inner=is_inner)


def _convert_text(value: str, name: str) -> str:
    call = _CALL.match(value)
    if call is not None:
        kind = call[1]
        raise SpecError(
            f"{name}={value!r} is a string: write it without quotes, pl.{kind}(…), to search."
        )
    return str(value)


def _convert_dict(value: dict[Any, Any], name: str, *, is_inner: bool) -> Value:
    if name and set(value) == {"grid_search"}:
        options = value["grid_search"]
        return _convert(grid(options), name, is_inner=is_inner)
    for key in value:
        if not isinstance(key, str) or not key:
            where = f" in {name}" if name else ""
            raise SpecError(
                f"a hyperparameter{where} is named {key!r}: give a string that is not empty."
            )
    is_domain = bool(name) and len(value) == 1 and next(iter(value)) in _ALL_KINDS
    inner = is_inner or is_domain or PIECEWISE in value or RULE in value
    if is_domain:
        ((kind, arguments),) = value.items()
        if not isinstance(arguments, list | tuple):
            raise SpecError(f"{name}: {kind} has {show_value(arguments)}: give a list of values.")
        return {kind: [_convert(each, name, is_inner=True) for each in arguments]}
    return {
        str(key): _convert(each, f"{name}.{key}" if name else key, is_inner=inner)
        for key, each in value.items()
    }


def _convert_list(value: Any, name: str, *, is_inner: bool) -> Value:  # noqa: ANN401
    items = [_convert(each, f"{name}.{at}", is_inner=True) for at, each in enumerate(value)]
    if is_inner or has_domains(items):
        return items
    listed = show_value(items)
    numbers = all(type(each) in (int, float) for each in items) and len(items) == 2
    between = ""
    if numbers and items[0] != items[1]:
        between = f"pl.uniform({min(items)!r}, {max(items)!r}) for all numbers between, "
    raise SpecError(
        f"{name}={show_value(value)} is {_name_kind(value)}: write pl.choice({listed}) to "
        f"choose one of its values, {between}or pl.choice([{listed}]) to pass the list itself."
    )


def _describe(value: Any) -> str:  # noqa: ANN401
    """Return what a value that no space can hold is, and what to write instead."""
    kind = type(value)
    name = getattr(value, "__name__", kind.__name__)
    if getattr(value, "__module__", "").startswith("paceline.") and name in KINDS:
        return f"the function pl.{name} itself: call it, pl.{name}(…)"
    if isinstance(value, type):
        what = f"the class {name}"
    elif callable(value) and hasattr(value, "__name__"):
        what = f"the function {name}"
    elif isinstance(value, set | frozenset):
        listed = show_value(sorted(value, key=repr))
        return f"a set, which has no order: write pl.choice({listed}) to choose one of its values"
    elif isinstance(value, range):
        return (
            f"{value!r}: write pl.randint({value.start}, {value.stop}) for any whole number in it, "
            f"or pl.choice({value!r})"
        )
    elif hasattr(value, "tolist"):
        return f"{_name_kind(value)}: write pl.choice(values.tolist()) to choose one of its values"
    else:
        return (
            f"{_name_kind(value)}: a space holds domains such as pl.uniform(0, 1), numbers, "
            "strings, lists and dicts. Create other objects in the training function"
        )
    return (
        f"{what}: a space holds numbers and strings. Write pl.choice(['{name}', …]) and look the "
        "name up in the training function"
    )


def _name_kind(value: object) -> str:
    """Return what a value is, with an article: `a string`, `scipy's rv_frozen`."""
    kind = type(value)
    root = kind.__module__.partition(".")[0]
    if isinstance(value, type):
        return "a class"
    if root in _LIBRARIES:
        return f"{root}'s {kind.__name__}"
    if root != "builtins":
        return f"an object of class {kind.__name__}"
    name = {"str": "string", "int": "number", "float": "number"}.get(kind.__name__, kind.__name__)
    return f"{'an' if name[0] in 'aeio' else 'a'} {name}"


def show_value(value: object) -> str:
    """Return a value as a user wrote it, in short, and without addresses in memory."""
    kind = type(value)
    if kind.__repr__ is object.__repr__:
        return f"{kind.__name__}(…)"
    # The repr of a function or a class has its module or its address.
    text = str(getattr(value, "__name__", repr(value)))
    return text if len(text) <= 60 else f"{text[:57]}…"
