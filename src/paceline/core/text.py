"""Numbers, durations, sizes, counts and configs as text for people.

Holds every formatter that sentences, tables, figures and reasons share. Knows nothing of where the
text goes: no markup, no escaping.
"""

from __future__ import annotations

import math
import re
from itertools import groupby
from typing import TYPE_CHECKING

from paceline.core.values import OPEN_ENDED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from paceline.core.values import StudySpec, Value

# The keys that make a dict in a config a schedule; `plan.schedules` defines what they do.
_PIECEWISE, _RULE, _RAMP = "piecewise", "each_epoch", "ramp"


# Characters that move the cursor, change the terminal or turn the direction of text; a tab and the
# end of a line do not.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_COLORS = re.compile("\x1b\\[[0-9;]*m")


def escape_control(character: str) -> str:
    """Return a control character as Python writes it.

    >>> escape_control(chr(27))
    '\\\\x1b'
    """
    return character.encode("unicode_escape").decode()


def show_controls(
    text: str,
    keep: str = "",
    *,
    colors: bool = False,
    write: Callable[[str], str] = escape_control,
) -> str:
    """Return text in which control characters are visible, so that a terminal obeys none of them.

    `keep` has characters that stay as they are; with `colors`, colour codes stay too. `write` says
    how a character is written.

    >>> show_controls("a\\x1b]0;b\\x07")
    'a\\\\x1b]0;b\\\\x07'
    """
    if colors:
        kept = _COLORS.findall(text)
        pieces = [show_controls(piece, keep) for piece in _COLORS.split(text)]
        return pieces[0] + "".join(map("".join, zip(kept, pieces[1:], strict=True)))
    return _CONTROLS.sub(lambda found: found[0] if found[0] in keep else write(found[0]), text)


def format_duration(seconds: float) -> str:
    """Return a duration in its two largest units.

    >>> format_duration(0.25), format_duration(75.0), format_duration(3723.4)
    ('0.25s', '1m15s', '1h02m')
    >>> format_duration(1_072_752.0)
    '12d10h'
    """
    if seconds < 60:
        return f"{seconds:.3g}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{minutes:02d}m"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days:,}d{hours:02d}h"


def format_slot_time(seconds: float) -> str:
    """Return slot time, from ten hours on in slot-hours.

    >>> format_slot_time(75.0), format_slot_time(4_263_624.0)
    ('1m15s of slot time', '1,184 slot-hours')
    """
    if seconds < 10 * 3600:
        return f"{format_duration(seconds)} of slot time"
    return f"{seconds / 3600:,.0f} slot-hours"


def format_bytes(count: float) -> str:
    """Return a size in bytes with a decimal unit.

    >>> format_bytes(0), format_bytes(999), format_bytes(1_234_567), format_bytes(5e12)
    ('0 B', '999 B', '1.23 MB', '5 TB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000.0
    return f"{count:.3g} TB"


def format_count(count: float, noun: str, plural: str = "") -> str:
    """Return a count with its noun; `plural` is for nouns that take more than an `s`.

    >>> format_count(1, "trial"), format_count(1200, "trial"), format_count(2, "is", "are")
    ('1 trial', '1,200 trials', '2 are')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def format_epochs(epoch: int, last: int) -> str:
    """Return an epoch and the last one; that is left out where trials are open-ended.

    >>> format_epochs(3, 27), format_epochs(3, 1_000_000)
    ('3/27', '3')
    """
    return str(epoch) if last >= OPEN_ENDED else f"{epoch}/{last}"


def format_numbers(noun: str, numbers: Iterable[int]) -> str:
    """Return numbered things, in rising order, with runs of neighbours in short.

    >>> format_numbers("trial", [0, 1, 2, 5]), format_numbers("slot", [3])
    ('trials 0-2, 5', 'slot 3')
    """
    listed = sorted(numbers)
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(listed), key=lambda each: each[1] - each[0])
    ]
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"{noun} {text}" if len(listed) == 1 else f"{noun}s {text}"


def format_number(value: float | None, missing: str = "-") -> str:
    """Return a number in six digits.

    >>> format_number(0.12345678), format_number(None)
    ('0.123457', '-')
    """
    return missing if value is None else f"{value:.6g}"


def format_metric(loss: float, spec: StudySpec, digits: int = 4, missing: str = "none") -> str:
    """Return a loss as the value that the user's metric has."""
    return missing if loss == math.inf else f"{spec.sign * loss:.{digits}g}"


def format_config(config: Mapping[str, Value]) -> str:
    """Return a config as `name=value` pairs.

    >>> format_config({"lr": 0.1, "net": {"width": 64}})
    'lr=0.1, net={width=64}'
    """
    return _format_pairs(config) or "no settings"


def format_value(value: Value) -> str:
    """Return a value of a config: numbers in five digits, schedules in words.

    Configs count epochs from 0. Texts count them from 1, as reports do.

    >>> format_value({"piecewise": [[0, 0.1], [30, 0.01]]})
    '0.1, then 0.01 from epoch 31'
    >>> format_value({"each_epoch": "exponential", "start": 0.1, "factor": 0.9})
    'exponential(start=0.1, factor=0.9)'
    """
    if isinstance(value, dict):
        if isinstance(value.get(_PIECEWISE), list):
            return ", then ".join(
                f"{format_value(piece)} from epoch {start + 1}" if start else format_value(piece)
                for start, piece in value[_PIECEWISE]
            )
        if _RULE in value:
            arguments = {name: each for name, each in value.items() if name != _RULE}
            return f"{value[_RULE]}({_format_pairs(arguments)})"
        if _RAMP in value:
            return " to ".join(map(format_value, value[_RAMP]))
        return f"{{{_format_pairs(value)}}}"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _format_pairs(values: Mapping[str, Value]) -> str:
    return ", ".join(f"{name}={format_value(value)}" for name, value in values.items())


def truncate(text: str, limit: int) -> str:
    """Return text of at most `limit` characters, cut at its end.

    >>> truncate("cifar_wideresnet40_8", 12)
    'cifar_wider…'
    """
    return text if len(text) <= limit else text[: limit - 1] + "…"


def truncate_middle(text: str, limit: int) -> str:
    """Return text of at most `limit` characters, cut in its middle: names often differ at the end.

    >>> truncate_middle("cifar_wideresnet40_8", 12)
    'cifar_…t40_8'
    """
    if len(text) <= max(limit, 3):
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"
