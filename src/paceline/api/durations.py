"""Durations as people write them: `90`, `"90s"`, `"10m"`, `"1h30m"`, `"2d"`, a `timedelta`.

Knows how they become seconds. Does not know what a duration is for: whether zero is allowed is
its user's question, but no duration is negative.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta

from paceline.core.errors import SpecError

_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_WRITTEN = re.compile(
    "".join(rf"(?:{_NUMBER}\s*{unit}\s*)?" for unit in "dhms"), re.IGNORECASE | re.ASCII
)
_UNITS = (86400.0, 3600.0, 60.0, 1.0)


def seconds_of(duration: float | str | timedelta) -> float:
    """Return a duration in seconds, or say how durations are written.

    >>> seconds_of("1h30m"), seconds_of("0.5d"), seconds_of("90"), seconds_of(90)
    (5400.0, 43200.0, 90.0, 90.0)
    """
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, str):
        seconds = _read(duration.strip())
    else:
        seconds = float(duration)
    if isinstance(duration, bool) or not (seconds >= 0 and math.isfinite(seconds)):
        raise SpecError(
            f"{duration!r} is no duration: write seconds (90, 90s) or days, hours, minutes and "
            "seconds in this order (2d, 1h30m, 10m), and nothing below 0."
        )
    return seconds


def _read(text: str) -> float:
    """Return the seconds; NaN where the text is no duration."""
    found = _WRITTEN.fullmatch(text)
    if found is not None and any(found.groups()):
        pairs = zip(found.groups(), _UNITS, strict=True)
        return math.fsum(float(number) * unit for number, unit in pairs if number)
    try:
        return float(text)
    except ValueError:
        return math.nan
