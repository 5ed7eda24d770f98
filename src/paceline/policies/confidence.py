"""POP's arithmetic: when a curve will pass its target, how surely, and how many slots that earns.

Knows chances and epochs alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# A forecast is asked at so many epochs; between them chances are interpolated.
_HORIZONS = 20


class Confidence(NamedTuple):
    """How surely a target is reached in the time left, and after how many epochs on average."""

    chance: float
    # Expected epochs until then, given that it is reached; 0 where it never is.
    epochs: float


def horizons(epoch: int, last: int) -> tuple[int, ...]:
    """Return at most so many later epochs up to the last, evenly spread; the last is one."""
    ahead = last - epoch
    count = min(ahead, _HORIZONS)
    return tuple(epoch + round(ahead * (at + 1) / count) for at in range(max(count, 0)))


def confidence(chances: Sequence[tuple[int, float]], epoch: int) -> Confidence:
    """Return the confidence that follows from the chances to be past the target at later epochs.

    A curve that has been past its target once has reached it: chances never fall.
    """
    reached = expected = 0.0
    before = epoch
    for later, chance in chances:
        gain = max(chance - reached, 0.0)
        # Somewhere in between, on average in the middle of these epochs.
        expected += gain * ((before + 1 + later) / 2 - epoch)
        reached += gain
        before = later
    return Confidence(reached, expected / reached if reached else 0.0)


def promising(confidences: Iterable[float], slots: int, k: int) -> tuple[float, int]:
    """Return the threshold p* and the slots for whoever is at or above it.

    The slots desired by the j surest, k·j, and those they deserve, slots times the j-th confidence,
    meet where the smaller of both is largest. Ties take the larger confidence. Slots are rounded
    down to a multiple of k; where none would be left, whoever is surer than not has its k: on a
    lone slot nobody but the certain would ever be promising.
    """
    threshold, most = 1.0, 0.0
    for j, p in enumerate(sorted(confidences, reverse=True), 1):
        effective = min(k * j, slots * p)
        if effective > most:
            threshold, most = p, effective
    whole = int(most + 1e-9) // k * k
    return threshold, k if most and not whole and threshold >= 0.5 and k <= slots else whole
