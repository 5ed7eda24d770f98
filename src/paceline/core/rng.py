"""Named random streams: every purpose draws from a generator of its own.

Turns a seed and a name into a generator, independent of the order of calls. The only module that
imports `random`.
"""

from __future__ import annotations

from hashlib import blake2b
from random import Random as Stream

__all__ = ["Stream", "shuffle_range", "stream"]


def stream(seed: int, *names: str | int) -> Stream:
    """Return the generator for this purpose, the same on every machine.

    Draw only with `random()` and `gauss()`: Python fixes their sequences, unlike `sample`.
    """
    label = "\x1f".join((str(seed), *map(str, names)))
    return Stream(int.from_bytes(blake2b(label.encode(), digest_size=16).digest(), "big"))


def shuffle_range(count: int, rng: Stream) -> list[int]:
    """Return 0 … count-1 in random order (Fisher-Yates on `random()`, which never changes)."""
    order = list(range(count))
    for i in range(count - 1, 0, -1):
        j = int(rng.random() * (i + 1))
        order[i], order[j] = order[j], order[i]
    return order
