"""Which hyperparameters may change in the middle of training, and how they are varied.

Knows a space, and the values that a trial's config ends with. Does not know who varies them, or
when.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paceline.core.errors import SpecError, unknown
from paceline.core.space import CHOICES, Space, multiples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.rng import Stream
    from paceline.core.space import Dimension
    from paceline.core.values import Config, StudySpec, Value

# What is explored where nothing is named: numbers between any two of which there are more.
_CONTINUOUS = frozenset({"uniform", "loguniform", "quniform"})
_SCHEDULES = frozenset({"piecewise", "each_epoch"})


class Explorer:
    """The dimensions of a study's space that are explored, by name."""

    def __init__(self, spec: StudySpec, named: Sequence[str]) -> None:
        template = spec.generator.params.get("space")
        if template is None:
            raise SpecError(
                f"policy 'pbt' explores a space, and generator {spec.generator.name!r} has none: "
                "its configs are given one by one, as those of a trace are."
            )
        space = Space(template)
        fixed = _fixed(space, template)
        free = [each for each in space.dimensions if each.name not in fixed]
        for name in named:
            if name in fixed:
                raise SpecError(f"policy 'pbt' cannot explore {name!r}: {fixed[name]}.")
            if name not in (each.name for each in free):
                raise unknown("dimension to explore", name, [each.name for each in free])
        self._explored = [
            each for each in free if (each.name in named if named else each.kind in _CONTINUOUS)
        ]
        if not self._explored:
            others = ", ".join(each.name for each in free) or "this space has none to name"
            raise SpecError(
                "policy 'pbt' has nothing to explore: by default it changes the continuous numbers "
                f"that have no schedule yet. Name others with explore=…: {others}."
            )

    def values(self, config: Config) -> Config:
        """Return what a config ends with, of all that is explored or stands beside it."""
        tops = {str(dimension.path[0]) for dimension in self._explored}
        return {top: last_piece(config[top]) for top in sorted(tops)}

    def varied(self, values: Config, resample: float, rng: Stream) -> Config:
        """Return other values: each drawn anew with this probability, else varied."""
        varied = dict(values)
        for dimension in self._explored:
            top, *inner = dimension.path
            old: Value = varied[str(top)]
            for step in inner:
                old = old[step]
            # Two draws for each dimension, so that none depends on what became of another.
            whether, which = rng.random(), rng.random()
            new = dimension.at(which) if whether < resample else _varied(dimension, old, which)
            if isinstance(new, float):
                new = float(f"{new:.12g}")  # as it is executed, so that equal ones are found equal
            varied[str(top)] = _replaced(varied[str(top)], inner, new)
        return varied


def last_piece(value: Value) -> Value:
    """Return a value as it is at the end: a schedule's last piece, or the value itself."""
    if isinstance(value, dict) and "piecewise" in value:
        return value["piecewise"][-1][1]
    return value


def _varied(dimension: Dimension, old: Value, draw: float) -> Value:
    """Return 0.8 or 1.2 times a number, within its domain; of options, a neighbour."""
    up = draw >= 0.5
    if dimension.kind in CHOICES:
        options = dimension.arguments
        if old not in options:
            return dimension.at(draw)
        at = options.index(old) + (1 if up else -1)
        return options[min(max(at, 0), len(options) - 1)]
    low, high = dimension.arguments[:2]
    new = old * (1.2 if up else 0.8)
    if dimension.kind == "quniform":
        q = dimension.arguments[2]
        least, most = multiples(*dimension.arguments)
        return q * min(max(_moved(old / q, new / q), least), most)
    if dimension.kind in ("randint", "lograndint"):
        return min(max(_moved(old, new), low), high - 1)
    return min(max(new, low), high)


def _moved(old: float, new: float) -> int:
    """Return a whole number that is another one, however small the factor makes the step."""
    moved = round(new)
    if moved == round(old) and new != old:
        return math.floor(new) if new < old else math.ceil(new)
    return moved


def _replaced(value: Value, path: Sequence[str | int], new: Value) -> Value:
    """Return a copy of a value with another one at that place."""
    if not path:
        return new
    step, *rest = path
    copy: Value = dict(value) if isinstance(value, dict) else list(value)
    copy[step] = _replaced(value[step], rest, new)
    return copy


def _fixed(space: Space, template: Config) -> dict[str, str]:
    """Return the dimensions that cannot be explored, and why."""
    branching = {each.under[0] for each in space.dimensions if each.under is not None}
    reasons: dict[str, str] = {}
    for dimension in space.dimensions:
        top = dimension.path[0]
        if _scheduled(template[str(top)]):
            reasons[dimension.name] = (
                f"{top} has a schedule of its own; give it as a number, and the schedule is what "
                "is found"
            )
        elif dimension.under is not None:
            reasons[dimension.name] = f"it belongs to an option of {dimension.under[0]}"
        elif dimension.name in branching:
            reasons[dimension.name] = "its options have dimensions of their own"
    return reasons


def _scheduled(value: Value) -> bool:
    if isinstance(value, dict):
        return not _SCHEDULES.isdisjoint(value) or any(map(_scheduled, value.values()))
    return isinstance(value, list | tuple) and any(map(_scheduled, value))
