"""Domains of hyperparameters that a training function asks for while it runs (`trial.suggest_…`).

Knows their limits, how a number from 0 to 1 becomes a value of each, and which values they hold.
Written to the log as plain values and checked when they are read. Spaces that are given before a
study starts are in `core.space`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import Struct

from paceline.core.values import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

# Values in configs are rounded to 12 digits, so a value at a limit may lie beyond it by this much.
_TOLERANCE = 1e-9


class FloatDomain(Struct, frozen=True, kw_only=True, tag="float", tag_field="kind"):
    """The numbers from low to high; with a step, only low, low + step, low + 2·step, …."""

    low: float
    high: float
    step: float | None = None
    log: bool = False

    def __post_init__(self) -> None:
        _check_limits(self.low, self.high, log=self.log)
        if self.step is not None and not (self.step > 0.0 and math.isfinite(self.step)):
            raise ValueError(f"step={self.step!r} is invalid: must be positive and finite")
        if self.step is not None and self.log:
            raise ValueError("step and log=True cannot be combined: leave one of them out")

    def at(self, share: float) -> float:
        """Return the value at this quantile, from 0 to 1."""
        low, high = self.low, self.high
        if self.step is not None:
            count = math.floor((high - low) / self.step + _TOLERANCE) + 1
            return self.settle(low + self.step * min(int(share * count), count - 1))
        if self.log:
            return self.settle(math.exp(_between(math.log(low), math.log(high), share)))
        return self.settle(_between(low, high, share))

    def settle(self, value: float) -> float:
        """Return the value as a config holds it, within the limits."""
        rounded = float(f"{value:.12g}")
        return min(max(rounded, self.low), self.high)

    def find(self, value: Value) -> float | None:
        """Return the value if it lies in the domain, else None."""
        if type(value) not in (int, float) or not math.isfinite(value):
            return None
        slack = _TOLERANCE * max(abs(self.low), abs(self.high), self.high - self.low)
        if not self.low - slack <= value <= self.high + slack:
            return None
        if self.step is not None:
            steps = (value - self.low) / self.step
            if not math.isclose(steps, round(steps), abs_tol=1e-6):
                return None
        return min(max(float(value), self.low), self.high)

    def widen(self, other: FloatDomain) -> FloatDomain:
        """Return the smallest domain of this form that reaches to the limits of both."""
        low, high = min(self.low, other.low), max(self.high, other.high)
        return FloatDomain(low=low, high=high, step=self.step, log=self.log)


class IntDomain(Struct, frozen=True, kw_only=True, tag="int", tag_field="kind"):
    """The whole numbers from low to high; with a step, low, low + step, low + 2·step, …."""

    low: int
    high: int
    step: int = 1
    log: bool = False

    def __post_init__(self) -> None:
        _check_limits(self.low, self.high, log=self.log)
        if self.step < 1:
            raise ValueError(f"step={self.step!r} is invalid: must be 1 or more")
        if self.step != 1 and self.log:
            raise ValueError("step and log=True cannot be combined: leave one of them out")

    def at(self, share: float) -> int:
        """Return the value at this quantile, from 0 to 1."""
        low, high = self.low, self.high
        if self.log:
            # Half a unit more at both ends, so that the ends are not rarer than their neighbours.
            value = math.exp(_between(math.log(low - 0.5), math.log(high + 0.5), share))
            return min(max(round(value), low), high)
        count = (high - low) // self.step + 1
        return low + self.step * min(int(share * count), count - 1)

    def find(self, value: Value) -> int | None:
        """Return the value if it lies in the domain, else None."""
        if type(value) is not int or not self.low <= value <= self.high:
            return None
        return value if (value - self.low) % self.step == 0 else None

    def widen(self, other: IntDomain) -> IntDomain:
        """Return the smallest domain of this form that reaches to the limits of both."""
        low, high = min(self.low, other.low), max(self.high, other.high)
        return IntDomain(low=low, high=high, step=self.step, log=self.log)


class ChoiceDomain(Struct, frozen=True, kw_only=True, tag="choice", tag_field="kind"):
    """One of these values."""

    choices: tuple[Value, ...]

    def __post_init__(self) -> None:
        if not self.choices:
            raise ValueError("there is nothing to choose from: give at least one value")

    def at(self, share: float) -> Value:
        """Return the value at this quantile, from 0 to 1."""
        return self.choices[min(int(share * len(self.choices)), len(self.choices) - 1)]

    def find(self, value: Value) -> Value | None:
        """Return the value if it is one of the choices, else None."""
        at = self.index(value)
        return None if at is None else self.choices[at]

    def index(self, value: Value) -> int | None:
        """Return the place of a value among the choices; None if it is not one of them.

        >>> ChoiceDomain(choices=(1, True, 1.0)).index(True)
        1
        """
        # As text, since 1, 1.0 and True are equal in Python but not for a training function.
        encoded = [msgspec.json.encode(choice) for choice in self.choices]
        wanted = msgspec.json.encode(value)
        return encoded.index(wanted) if wanted in encoded else None

    def widen(self, other: ChoiceDomain) -> ChoiceDomain:
        """Return the domain itself: choices are only widened by equal ones."""
        return self


Domain: TypeAlias = FloatDomain | IntDomain | ChoiceDomain


def is_same_form(one: Domain, other: Domain) -> bool:
    """Say whether two domains differ in their limits alone, so that a sampler may compare them."""
    if isinstance(one, ChoiceDomain) or isinstance(other, ChoiceDomain):
        return one == other
    return (type(one), one.log, one.step) == (type(other), other.log, other.step)


def make_choices(choices: Sequence[Value]) -> ChoiceDomain:
    """Return the domain of these choices, as the log holds them. Raises ValueError."""
    return ChoiceDomain(choices=tuple(_settle_choice(each, at) for at, each in enumerate(choices)))


def _settle_choice(value: Value, at: int) -> Value:
    is_scalar = getattr(value, "ndim", None) == 0  # of numpy or torch
    try:
        body = msgspec.json.encode(value.item() if is_scalar else value)
    except (TypeError, ValueError):
        raise ValueError(
            f"choice {at} is of class {type(value).__name__}, which cannot be written to the log: "
            "give a number, a string, True, False, None, or lists and dicts of these, and look up "
            "the object by it"
        ) from None
    return msgspec.json.decode(body)


def _check_limits(low: float, high: float, *, log: bool) -> None:
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"low={low!r} and high={high!r} are invalid: must be finite numbers")
    if low > high:
        raise ValueError(f"low={low!r} is above high={high!r}: give the smaller one first")
    if log and low <= 0:
        raise ValueError(f"low={low!r} has no logarithm: must be positive with log=True")


def _between(low: float, high: float, share: float) -> float:
    return low + share * (high - low)
