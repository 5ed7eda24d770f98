"""Configs as code: a schedule reads as the call that makes it, to paste into a script.

Knows the names of schedules in `pl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.plan.schedules import PIECEWISE, RULE, is_rule, rule_arguments

if TYPE_CHECKING:
    from paceline.core.values import Value

# Rules that are made by a function of another name.
_FUNCTIONS = {"step_decay_every": "step_decay"}


def format_code(value: Value) -> str:
    """Return a config, or a value of one, as Python code that makes it.

    >>> format_code({"lr": {"piecewise": [[0, 0.1], [9, 0.01]]}, "width": 64})
    "{'lr': pl.piecewise([(0, 0.1), (9, 0.01)]), 'width': 64}"
    """
    if type(value) is dict:
        if is_rule(value):
            name = _FUNCTIONS.get(value[RULE], value[RULE])
            given = (f"{key}={format_code(each)}" for key, each in rule_arguments(value).items())
            return f"pl.{name}({', '.join(given)})"
        if PIECEWISE in value:
            pieces = (f"({start}, {format_code(each)})" for start, each in value[PIECEWISE])
            return f"pl.piecewise([{', '.join(pieces)}])"
        pairs = (f"{key!r}: {format_code(each)}" for key, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    if type(value) is list:
        return f"[{', '.join(map(format_code, value))}]"
    return repr(value)


class ReadableConfig(dict[str, Any]):
    """A config that prints its schedules as the calls that make them.

    >>> ReadableConfig({"lr": {"piecewise": [[0, 0.1], [9, 0.01]]}, "width": 64})
    {'lr': pl.piecewise([(0, 0.1), (9, 0.01)]), 'width': 64}
    """

    def __repr__(self) -> str:
        return format_code(dict(self))
