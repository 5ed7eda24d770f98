"""Configs in canonical form, and the settings they put in force epoch by epoch.

Knows that values are rounded to 12 significant digits, and that a schedule is written as its
shortest list of pieces. So two configs that agree epoch by epoch are equal, however they were
written, and what is executed is what is compared.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from paceline.core.errors import SpecError
from paceline.core.space import has_domains

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from paceline.core.values import Config, Value

PIECEWISE = "piecewise"

# A stretch of epochs under one setting: (the last epoch of it, the setting's canonical bytes).
Stretch = tuple[int, bytes]

_encoder = msgspec.json.Encoder(order="sorted")


def canonical(config: Config) -> Config:
    """Return the config as it is executed, compared and logged; refuse what JSON cannot hold."""
    settled = {}
    for name in sorted(config):
        value = config[name]
        if type(name) is not str or not name:
            raise SpecError(f"a hyperparameter is named {name!r}: give a string that is not empty.")
        settled[name] = value if type(value) in _PLAIN else _settle(value, name)
    return settled


_PLAIN = frozenset({int, str, bool, type(None)})


def key(config: Config) -> bytes:
    """Return the bytes that are equal exactly where two canonical configs or settings are."""
    return _encoder.encode(config)


def piecewise(pieces: Iterable[tuple[int, Value]]) -> Value:
    """Return the schedule that has each value from its epoch on.

    >>> piecewise([(0, 0.1), (30, 0.1), (60, 0.01)])
    {'piecewise': [[0, 0.1], [60, 0.01]]}
    >>> piecewise([(0, 0.1), (30, 0.1)])
    0.1
    """
    return _settle_pieces([list(piece) for piece in pieces], PIECEWISE)


def each_epoch(value: Callable[[int], Value], epochs: int) -> Value:
    """Return any function of the epoch (0, 1, …) as a schedule over that many epochs.

    >>> each_epoch(lambda epoch: 0.1 if epoch < 2 else 0.01, 5)
    {'piecewise': [[0, 0.1], [2, 0.01]]}
    """
    if epochs < 1:
        raise SpecError(f"a schedule over {epochs} epochs is empty: give 1 or more.")
    return piecewise((epoch, value(epoch)) for epoch in range(epochs))


def constant(config: Config) -> bool:
    """Say whether no value of the config changes during training."""
    return all(not _is_schedule(value) for value in config.values())


def setting_at(config: Config, epoch: int) -> Config:
    """Return the values in force while `epoch` epochs are done."""
    return {
        name: _piece_at(value, epoch) if _is_schedule(value) else value
        for name, value in config.items()
    }


def stretches(config: Config, epochs: int) -> list[Stretch]:
    """Return the config's settings over its life, each for as many epochs as it holds."""
    starts = {0}
    for value in config.values():
        if _is_schedule(value):
            starts.update(start for start, _ in value[PIECEWISE] if start < epochs)
    bounds = [*sorted(starts), epochs]
    return [(until, key(setting_at(config, start))) for start, until in pairwise(bounds)]


def spliced(base: Config, epoch: int, changes: Config) -> Config:
    """Return the config that is `base` while fewer than `epoch` epochs are done, then changed.

    A value that `base` does not have holds from the first epoch on: it cannot have been absent.
    """
    config = dict(base)
    for name, value in changes.items():
        if epoch == 0 or name not in base:
            config[name] = value
            continue
        before = [piece for piece in _pieces(base[name]) if piece[0] < epoch]
        after = [[max(start, epoch), late] for start, late in _pieces(value)]
        # Pieces of the new schedule that end before the splice collapse onto it: the last counts.
        merged = dict([*before, *after])
        config[name] = {PIECEWISE: [[start, late] for start, late in merged.items()]}
    return canonical(config)


def _is_schedule(value: Value) -> bool:
    return type(value) is dict and PIECEWISE in value


def _pieces(value: Value) -> list[list[Value]]:
    return value[PIECEWISE] if _is_schedule(value) else [[0, value]]


def _piece_at(schedule: Value, epoch: int) -> Value:
    current = None
    for start, value in schedule[PIECEWISE]:
        if start > epoch:
            break
        current = value
    return current


def _settle(value: Value, where: str) -> Value:
    kind = type(value)
    if kind is float:
        if not math.isfinite(value):
            raise SpecError(
                f"{where}={value} is not a number one can train with: give a finite one."
            )
        return float(f"{value:.12g}")
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
        # Two equal domains are two dimensions, and will hardly be equal values.
        if not settled or has_domains(value) or not _same(settled[-1][1], value):
            settled.append([piece[0], value])
    if not settled or settled[0][0] != 0:
        raise SpecError(f"{where}: a schedule needs a first piece that starts at epoch 0.")
    return settled[0][1] if len(settled) == 1 else {PIECEWISE: settled}


def _same(a: Value, b: Value) -> bool:
    # 1, 1.0 and True are equal to Python but not to a training function.
    return type(a) is type(b) and bool(a == b)
