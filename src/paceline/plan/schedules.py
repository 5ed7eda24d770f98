"""Named schedules (step decay, cosine, warm-up …) as plain values that a log can hold.

Knows each rule's arguments and its value in any epoch; an argument may be a domain of a space until
a generator has drawn it. Rules stay rules in configs, so that a log stays small and a reader sees
what was drawn. Knows nothing of sharing: what two trials have in common is found on the values.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from paceline.core.errors import SpecError, make_unknown_error
from paceline.core.space import has_domains

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from paceline.core.values import Value

# The key of a dict that holds a rule; its value is the name of the rule.
RULE = "each_epoch"
PIECEWISE = "piecewise"
# The setting of an epoch during which a value moves linearly between two numbers.
RAMP = "ramp"


def step_decay(
    start: Value,
    *,
    drops: Sequence[Value] | None = None,
    every: Value = None,
    factor: Value = 0.1,
) -> Value:
    """Return the schedule that is multiplied by `factor` at these epochs, or every `every` epochs.

    Whole numbers stay whole: `step_decay(32, every=10, factor=2)` doubles a batch size.
    """
    if (drops is None) == (every is None):
        raise SpecError("step_decay needs `drops`, a list of epochs, or `every`: give one of them.")
    if drops is None:
        return _ruled("step_decay_every", {"start": start, "every": every, "factor": factor})
    listed = list(drops) if isinstance(drops, list | tuple) else drops
    return _ruled("step_decay", {"start": start, "drops": listed, "factor": factor})


def exponential(start: Value, factor: Value) -> Value:
    """Return the schedule that is multiplied by `factor` after every epoch."""
    return _ruled("exponential", {"start": start, "factor": factor})


def linear(start: Value, end: Value, epochs: Value) -> Value:
    """Return the schedule that moves linearly from start to end over `epochs` epochs, and stays."""
    return _ruled("linear", {"start": start, "end": end, "epochs": epochs})


def cosine(start: Value, epochs: Value, *, floor: Value = 0.0, restarts: Value = False) -> Value:
    """Return the schedule that falls to the floor along half a cosine over `epochs` epochs.

    Then it stays there or, with restarts, begins again.
    """
    given = {"start": start, "epochs": epochs, "floor": floor, "restarts": restarts}
    return _ruled("cosine", given)


def cyclic(low: Value, high: Value, period: Value) -> Value:
    """Return the schedule that climbs from low to high and back in each period of epochs."""
    return _ruled("cyclic", {"low": low, "high": high, "period": period})


def warmup(schedule: Value, epochs: Value, *, factor: Value = 0.1) -> Value:
    """Return the schedule that begins at `factor` times this one and meets it after `epochs`.

    The schedule keeps its own epochs: it is held down at first, not put off.
    """
    return _ruled("warmup", {"schedule": schedule, "epochs": epochs, "factor": factor})


def smooth(schedule: Value) -> Value:
    """Return the schedule that moves linearly to the next epoch's value during each epoch.

    `trial.value(name, progress)` reads it inside one; `trial[name]` is its value at the beginning.
    It shares with what is the same inside the epochs too.
    """
    return _ruled("smooth", {"schedule": schedule})


def is_rule(value: Value) -> bool:
    """Return whether a value is a schedule by rule."""
    return type(value) is dict and RULE in value


def rule_arguments(rule: dict[str, Value]) -> dict[str, Value]:
    """Return the arguments of a rule, by name."""
    return {name: value for name, value in rule.items() if name != RULE}


def check_rule(rule: dict[str, Value], where: str) -> dict[str, Value]:
    """Return a valid rule; raise SpecError for others. Domains are accepted as arguments."""
    name = rule[RULE]
    if not isinstance(name, str) or name not in _RULES:
        raise make_unknown_error("schedule", str(name), _RULES)
    needs = _RULES[name].needs
    if rule.keys() != {RULE, *needs}:
        found = ", ".join(sorted(rule.keys() - {RULE})) or "nothing"
        raise SpecError(f"{where}: {name} has {found}, and needs {', '.join(needs)}.")
    for argument, need in needs.items():
        value = rule[argument]
        if not has_domains(value) and not _CHECKS[need](value):
            raise SpecError(f"{where}: {argument}={value!r} of {name} is not {need}.")
    return rule


def evaluate_rule(rule: dict[str, Value], epoch: int) -> Value:
    """Return the value of a rule after `epoch` epochs."""
    if rule[RULE] != "smooth":
        return _number(rule, epoch)
    start, end = (_number(rule["schedule"], each) for each in (epoch, epoch + 1))
    return start if start == end else {RAMP: [start, end]}


def evaluate_pieces(schedule: dict[str, Value], epoch: int) -> Value:
    """Return the value of a piecewise schedule after `epoch` epochs."""
    current = None
    for start, value in schedule[PIECEWISE]:
        if start > epoch:
            break
        current = value
    return current


def evaluate_ramp(value: Value, progress: float) -> Value:
    """Return a value of a setting as it is at this point of the epoch, from 0 to 1."""
    if type(value) is dict:
        if RAMP in value:
            start, end = value[RAMP]
            return start + (end - start) * progress
        return {name: evaluate_ramp(inner, progress) for name, inner in value.items()}
    return [evaluate_ramp(item, progress) for item in value] if type(value) is list else value


def round_number(value: float) -> float:
    """Round a number to the digits that are executed, compared and logged."""
    return float(f"{value:.12g}")


def _ruled(name: str, given: dict[str, Value]) -> Value:
    return check_rule({RULE: name, **given}, name)


def _number(value: Value, epoch: int) -> Value:
    """Return the number that a number, a piecewise schedule or a rule is in an epoch."""
    if type(value) is not dict:
        return value
    if PIECEWISE in value:
        return evaluate_pieces(value, epoch)
    try:
        number = _RULES[value[RULE]].at(value, epoch)
        if type(number) is int or math.isfinite(number):
            return number if type(number) is int else round_number(number)
    except OverflowError:
        pass
    raise SpecError(f"{value} is not a finite number in epoch {epoch}: give another schedule.")


class _Rule(NamedTuple):
    needs: Mapping[str, str]
    at: Callable[[dict[str, Value], int], Value]


def _step(rule: dict[str, Value], epoch: int) -> Value:
    return rule["start"] * rule["factor"] ** sum(drop <= epoch for drop in rule["drops"])


def _step_every(rule: dict[str, Value], epoch: int) -> Value:
    return rule["start"] * rule["factor"] ** (epoch // rule["every"])


def _exponential(rule: dict[str, Value], epoch: int) -> Value:
    return rule["start"] * rule["factor"] ** epoch


def _linear(rule: dict[str, Value], epoch: int) -> Value:
    start, end, epochs = rule["start"], rule["end"], rule["epochs"]
    return start + (end - start) * epoch / epochs if epoch < epochs else end


def _cosine(rule: dict[str, Value], epoch: int) -> Value:
    start, floor, epochs = rule["start"], rule["floor"], rule["epochs"]
    done = epoch % epochs if rule["restarts"] else epoch
    if done >= epochs:
        return floor
    return floor + (start - floor) * (1.0 + math.cos(math.pi * done / epochs)) / 2.0


def _cyclic(rule: dict[str, Value], epoch: int) -> Value:
    low, high, period = rule["low"], rule["high"], rule["period"]
    return low + (high - low) * (1.0 - abs(2.0 * (epoch % period) / period - 1.0))


def _warmup(rule: dict[str, Value], epoch: int) -> Value:
    value, epochs, factor = _number(rule["schedule"], epoch), rule["epochs"], rule["factor"]
    return value * (factor + (1.0 - factor) * epoch / epochs) if epoch < epochs else value


_NUMBER, _EPOCHS = "a finite number", "a whole number of epochs, 1 or more"
_FLAG, _DROPS = "true or false", "a list of whole epochs"
_SCHEDULE = "a number or a schedule of numbers"

_RULES: dict[str, _Rule] = {
    "step_decay": _Rule({"start": _NUMBER, "drops": _DROPS, "factor": _NUMBER}, _step),
    "step_decay_every": _Rule({"start": _NUMBER, "every": _EPOCHS, "factor": _NUMBER}, _step_every),
    "exponential": _Rule({"start": _NUMBER, "factor": _NUMBER}, _exponential),
    "linear": _Rule({"start": _NUMBER, "end": _NUMBER, "epochs": _EPOCHS}, _linear),
    "cosine": _Rule(
        {"start": _NUMBER, "epochs": _EPOCHS, "floor": _NUMBER, "restarts": _FLAG}, _cosine
    ),
    "cyclic": _Rule({"low": _NUMBER, "high": _NUMBER, "period": _EPOCHS}, _cyclic),
    "warmup": _Rule({"schedule": _SCHEDULE, "epochs": _EPOCHS, "factor": _NUMBER}, _warmup),
    "smooth": _Rule({"schedule": _SCHEDULE}, evaluate_rule),
}


def _is_number(value: Value) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_epochs(value: Value) -> bool:
    return type(value) is int and value >= 1


def _are_drops(value: Value) -> bool:
    return isinstance(value, list) and all(type(each) is int for each in value)


def _has_numbers(value: Value) -> bool:
    if type(value) is dict and PIECEWISE in value:
        return all(has_domains(late) or _is_number(late) for _, late in value[PIECEWISE])
    # A smooth schedule has two numbers per epoch, so no rule can take it as input.
    return (is_rule(value) and value[RULE] != "smooth") or _is_number(value)


_CHECKS: dict[str, Callable[[Value], bool]] = {
    _NUMBER: _is_number,
    _EPOCHS: _is_epochs,
    _FLAG: lambda value: type(value) is bool,
    _DROPS: _are_drops,
    _SCHEDULE: _has_numbers,
}
