"""What a policy is given: whole numbers of epochs or trials, and a boundary where none is said.

Knows what cannot be meant, and the default. Does not know what a policy does with it.
"""

from __future__ import annotations

from paceline.core.errors import SpecError


def one_or_more(label: str, given: int | None) -> None:
    """Refuse a number below 1; None leaves it to the policy."""
    if given is not None and given < 1:
        raise SpecError(f"{label}={given} cannot be meant: give 1 or more.")


def boundary_of(given: int | None, epochs: int) -> int:
    """Return how many epochs lie between two looks: a tenth of all, at least one, if not given."""
    return given or max(1, epochs // 10)
