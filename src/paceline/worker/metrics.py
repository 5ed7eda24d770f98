"""The numbers that a training function reports, returns or yields, as metrics.

Knows which values count as numbers: Python's, and scalars of numpy, torch and other libraries. Does
not know epochs or when a report is due.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from paceline.core.errors import TrialError
from paceline.core.values import DEFAULT_METRIC, Metrics


def read_number(value: Any) -> float | None:  # noqa: ANN401
    """Return a value as a float; None if it is not one number.

    A bool or a text is not a number; an array or a tensor with one element is.

    >>> read_number(3), read_number("0.3"), read_number([0.3])
    (3.0, None, None)
    """
    if type(value) is float or type(value) is int:
        return float(value)
    # Models and histories have no `__float__`; arrays and tensors of any size do.
    if isinstance(value, bool | str | bytes) or not hasattr(value, "__float__"):
        return None
    try:
        item = value.item() if hasattr(value, "item") else float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return float(item) if isinstance(item, int | float) and not isinstance(item, bool) else None


def parse_report(given: Any, more: Mapping[str, Any], wanted: str) -> Metrics:  # noqa: ANN401
    """Return what a report was given as metrics: a number, or metrics by their names.

    A single number is the study's metric. Raises a TrialError if that metric is missing, or if a
    metric is not a number. None stands for a number that is not finite.
    """
    metrics: dict[str, Any] = dict(more)
    if isinstance(given, Mapping):
        metrics = {**given, **more}
    elif given is not None:
        metrics = {wanted: given, **more}
    if wanted not in metrics:
        raise TrialError(f"report has {list_names(metrics)}, {_explain_missing(metrics, wanted)}")
    parsed: Metrics = {}
    for name, value in metrics.items():
        number = float(value) if _is_flag(value) and name != wanted else read_number(value)
        if number is None:
            raise TrialError(
                f"{name!r} was reported as {describe_value(value)}: report a number, such as "
                f"{name}=0.3."
            )
        parsed[str(name)] = number if math.isfinite(number) else None
    return parsed


def parse_returned(value: Any, wanted: str) -> Metrics | None:  # noqa: ANN401
    """Return the metrics in a function's return value; None if it is not a score.

    Of a dict the numbers count. Raises a TrialError for a dict without the study's metric.
    """
    number = read_number(value)
    if number is not None:
        return {wanted: number if math.isfinite(number) else None}
    if not isinstance(value, Mapping):
        return None
    if wanted not in value:
        raise TrialError(
            f"the returned dict has {list_names(value)}, {_explain_missing(value, wanted)}"
        )
    if read_number(value[wanted]) is None:
        raise TrialError(
            f"{wanted!r} was returned as {describe_value(value[wanted])}: return one number, such "
            "as the last epoch's."
        )
    numbers = {str(name): read_number(each) for name, each in value.items()}
    return {
        name: number if math.isfinite(number) else None
        for name, number in numbers.items()
        if number is not None
    }


def list_names(metrics: Mapping[str, Any]) -> str:
    """Return the names of metrics as they are listed in an error."""
    return ", ".join(map(str, metrics)) or "nothing"


def _explain_missing(metrics: Mapping[str, Any], wanted: str) -> str:
    """Say that the study's metric is not among these, and what to write."""
    names = [name for name, value in metrics.items() if read_number(value) is not None]
    hint = f"metric={str(names[0] if names else 'loss')!r}"
    if wanted == DEFAULT_METRIC:
        return f"and the study was not told which of them counts: give {hint} and mode=…."
    return f"but not the study's metric {wanted!r}: report it, or give {hint}."


def _is_flag(value: object) -> bool:
    return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")


def describe_value(value: object) -> str:
    """Return a value's kind with its article, for an error: `a Sequential`."""
    if value is None:
        return "None"
    if isinstance(value, str):
        return f"the text {value!r}"
    shape = getattr(value, "shape", None)
    size = f" of shape {tuple(shape)}" if isinstance(shape, tuple) and shape else ""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' or name == 'ndarray' else 'a'} {name}{size}"
