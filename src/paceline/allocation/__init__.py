"""Allocators: demands and capacity in, widths out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.lazy import import_lazily

if TYPE_CHECKING:
    from paceline.allocation.fixed import Fixed as Fixed
    from paceline.allocation.fluid import Confidence as Confidence
    from paceline.allocation.fluid import Fluid as Fluid
    from paceline.allocation.fluid import FluidStatic as FluidStatic
    from paceline.allocation.leaders import Softmax as Softmax
    from paceline.allocation.leaders import Top as Top
    from paceline.allocation.leaders import Uniform as Uniform

# The module of each public class.
_MODULES = {
    "Confidence": "paceline.allocation.fluid",
    "Fixed": "paceline.allocation.fixed",
    "Fluid": "paceline.allocation.fluid",
    "FluidStatic": "paceline.allocation.fluid",
    "Softmax": "paceline.allocation.leaders",
    "Top": "paceline.allocation.leaders",
    "Uniform": "paceline.allocation.leaders",
}

__all__ = sorted(_MODULES)

__getattr__ = import_lazily(__name__, _MODULES)
