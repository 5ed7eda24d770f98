"""Numbers as policies say them in their reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.values import NO_LOSS

if TYPE_CHECKING:
    from paceline.core.values import StudySpec


def value(loss: float, spec: StudySpec) -> str:
    """Return a loss as the user's metric."""
    return "none" if loss == NO_LOSS else f"{spec.sign * loss:.4g}"
