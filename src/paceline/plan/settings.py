"""Configs in canonical form, and their settings epoch by epoch.

Knows that values are rounded to 12 significant digits, that a schedule in pieces is written as its
shortest list of them, and that one by rule is compared by its values. So two configs share what
they agree on epoch by epoch, however they were written, and what is executed is what is compared.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from paceline.core.errors import SpecError
from paceline.core.space import has_domains
from paceline.plan.schedules import (
    PIECEWISE,
    RULE,
    check_rule,
    evaluate_pieces,
    evaluate_ramp,
    evaluate_rule,
    round_number,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from paceline.core.values import Config, Value

# A stretch of epochs with equal settings: (its last epoch, the canonical bytes of the settings).
Stretch = tuple[int, bytes]

_encoder = msgspec.json.Encoder(order="sorted")


def canonicalize(config: Config) -> Config:
    """Return the canonical config, as executed, compared and logged. Raises SpecError."""
    settled = {}
    for name in sorted(config):
        value = config[name]
        if type(name) is not str or not name:
            raise SpecError(f"a hyperparameter is named {name!r}: give a string that is not empty.")
        settled[name] = value if type(value) in _PLAIN else _settle(value, name)
    return settled


_PLAIN = frozenset({int, str, bool, type(None)})


def config_key(config: Config) -> bytes:
    """Encode a canonical config or setting; equal values give equal bytes."""
    return _encoder.encode(config)


def piecewise(pieces: Iterable[tuple[int, Value]]) -> Value:
    """Return the schedule that takes each value from its epoch on.

    >>> piecewise([(0, 0.1), (30, 0.1), (60, 0.01)])
    {'piecewise': [[0, 0.1], [60, 0.01]]}
    >>> piecewise([(0, 0.1), (30, 0.1)])
    0.1
    """
    return _settle_pieces([list(piece) for piece in pieces], PIECEWISE)


def each_epoch(value: Callable[[int], Value] | Sequence[Value], epochs: int | None = None) -> Value:
    """Return any function of the epoch (0, 1, …) as a schedule over that many epochs, or a list.

    >>> each_epoch(lambda epoch: 0.1 if epoch < 2 else 0.01, 5)
    {'piecewise': [[0, 0.1], [2, 0.01]]}
    >>> each_epoch([0.1, 0.1, 0.01])
    {'piecewise': [[0, 0.1], [2, 0.01]]}
    """
    if not callable(value):
        return piecewise(enumerate(value))
    if epochs is None or epochs < 1:
        raise SpecError(f"a schedule over {epochs} epochs is empty: give 1 or more.")
    return piecewise((epoch, value(epoch)) for epoch in range(epochs))


def is_changing(value: Value) -> bool:
    """Return whether a value is a schedule or contains one."""
    if type(value) is dict:
        return PIECEWISE in value or RULE in value or any(map(is_changing, value.values()))
    return type(value) is list and any(map(is_changing, value))


def is_constant(config: Config) -> bool:
    """Return whether no value of the config changes during training."""
    for value in config.values():
        if (type(value) is dict or type(value) is list) and is_changing(value):
            return False
    return True


def setting_at(config: Config, epoch: int) -> Config:
    """Return the settings after `epoch` epochs."""
    return {name: _in_force(value, epoch) for name, value in config.items()}


def value_at(value: Value, epoch: int, progress: float = 0.0) -> Value:
    """Return a value at this point of an epoch, from 0 to 1."""
    return evaluate_ramp(_in_force(value, epoch), progress)


def list_stretches(config: Config, epochs: int) -> list[Stretch]:
    """Return the config's settings over all epochs, as stretches of equal settings."""
    starts = sorted({0, *_starts(list(config.values()), epochs)})
    found: list[Stretch] = []
    for start, until in pairwise([*starts, epochs]):
        setting = config_key(setting_at(config, start))
        if found and found[-1][1] == setting:
            found.pop()
        found.append((until, setting))
    return found


def splice(base: Config, epoch: int, changes: Config, epochs: int) -> Config:
    """Return the config that equals `base` for the first `epoch` epochs and then has the changes.

    A value that `base` does not have holds from the first epoch on: it cannot have been absent.
    """
    config = dict(base)
    for name, value in changes.items():
        if epoch == 0 or name not in base:
            config[name] = value
            continue
        before = [piece for piece in _pieces(base[name], epochs) if piece[0] < epoch]
        after = [[max(start, epoch), late] for start, late in _pieces(value, epochs)]
        # Pieces of the new schedule that end before the splice collapse onto it: the last one wins.
        merged = dict([*before, *after])
        config[name] = {PIECEWISE: [[start, late] for start, late in merged.items()]}
    return canonicalize(config)


def _in_force(value: Value, epoch: int) -> Value:
    if type(value) is dict:
        if PIECEWISE in value:
            return evaluate_pieces(value, epoch)
        if RULE in value:
            return evaluate_rule(value, epoch)
        return {name: _in_force(inner, epoch) for name, inner in value.items()}
    return [_in_force(item, epoch) for item in value] if type(value) is list else value


def _starts(value: Value, epochs: int) -> Iterator[int]:
    """Yield the epochs at which a value may change."""
    if type(value) is dict:
        if PIECEWISE in value:
            yield from (start for start, _ in value[PIECEWISE] if start < epochs)
        elif RULE in value:
            yield from range(epochs)
        else:
            for inner in value.values():
                yield from _starts(inner, epochs)
    elif type(value) is list:
        for item in value:
            yield from _starts(item, epochs)


def _pieces(value: Value, epochs: int) -> list[list[Value]]:
    return [[start, _in_force(value, start)] for start in sorted({0, *_starts(value, epochs)})]


def _settle(value: Value, where: str) -> Value:
    kind = type(value)
    if kind is float:
        if not math.isfinite(value):
            raise SpecError(f"{where}={value} is not a finite number: give a finite one.")
        return round_number(value)
    if kind in _PLAIN:
        return value
    if kind is list or kind is tuple:
        return [_settle(item, where) for item in value]
    if kind is dict:
        if PIECEWISE in value:
            if len(value) > 1 or not isinstance(value[PIECEWISE], list | tuple):
                raise SpecError(
                    f"{where}: a schedule is written {{'piecewise': [[0, a], [30, b]]}}."
                )
            return _settle_pieces(list(value[PIECEWISE]), where)
        if RULE in value:
            return check_rule({name: _settle(value[name], where) for name in sorted(value)}, where)
        return {str(name): _settle(value[name], f"{where}.{name}") for name in sorted(value)}
    plain = getattr(value, "item", None)  # a numpy scalar
    if callable(plain):
        return _settle(plain(), where)
    raise SpecError(
        f"{where} is a {kind.__name__}, which cannot be written to a log: give a number, a string, "
        "true or false, None, or lists and dicts of these."
    )


def _settle_pieces(pieces: list[Value], where: str) -> Value:
    settled: list[list[Value]] = []
    last = -1
    for piece in pieces:
        good = isinstance(piece, list | tuple) and len(piece) == 2 and type(piece[0]) is int
        if not good or piece[0] <= last:
            raise SpecError(
                f"{where}: piece {piece!r} does not follow: pieces are [epoch, value] with rising "
                "whole epochs."
            )
        last = piece[0]
        value = _settle(piece[1], where)
        if is_changing(value):
            raise SpecError(f"{where}: a piece holds a value, and {value!r} is a schedule.")
        # Two equal domains are two dimensions with values of their own.
        if not settled or has_domains(value) or not _same(settled[-1][1], value):
            settled.append([piece[0], value])
    if not settled or settled[0][0] != 0:
        raise SpecError(f"{where}: a schedule needs a first piece that starts at epoch 0.")
    return settled[0][1] if len(settled) == 1 else {PIECEWISE: settled}


def _same(a: Value, b: Value) -> bool:
    # 1, 1.0 and True are equal in Python but not for a training function.
    return type(a) is type(b) and bool(a == b)
