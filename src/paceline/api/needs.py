"""What trials need, as users write it: a function of the setting, or a table by one value of it.

Knows both spellings. What the answers mean is `machine.fitting`'s.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.core.errors import SpecError, unknown

if TYPE_CHECKING:
    from paceline.core.ports import Needs
    from paceline.core.values import Config


class ByValue(Struct, frozen=True):
    """From each of these values of one hyperparameter on, so many slots; below the first, one."""

    name: str
    # (from this value on, slots), rising.
    steps: tuple[tuple[float, float], ...]

    def __call__(self, setting: Config) -> float:
        if self.name not in setting:
            raise unknown("hyperparameter", self.name, setting)
        value = setting[self.name]
        if type(value) not in (int, float):
            raise SpecError(f"{self.name}={value!r} is not a number, by which needs could go.")
        at = bisect_right(self.steps, value, key=lambda step: step[0])
        return self.steps[at - 1][1] if at else 1.0


def needs_of(given: Needs | str) -> Needs:
    """Return the function that was given, or the one written `batch:257=2,513=4`.

    >>> needs_of("batch:257=2,513=4")({"batch": 300})
    2.0
    """
    if callable(given):
        return given
    name, _, rest = str(given).partition(":")
    try:
        pairs = [pair.split("=") for pair in rest.split(",")]
        steps = sorted((float(value), float(slots)) for value, slots in pairs)
    except ValueError:
        steps = []
    if not (name.strip() and steps):
        raise SpecError(
            f"needs={given!r} cannot be read: give a function of the setting, or slots from some "
            "values of a hyperparameter on, such as batch:257=2,513=4."
        )
    return ByValue(name.strip(), tuple(steps))
