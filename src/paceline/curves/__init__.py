"""Curve models: each one forecasts a learning curve as a distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.lazy import import_lazily

if TYPE_CHECKING:
    from paceline.curves.ensemble.model import Ensemble as Ensemble
    from paceline.curves.last_value import Last as Last
    from paceline.curves.pfn.model import Pfn as Pfn
    from paceline.curves.pfn.model import PfnStudy as PfnStudy
    from paceline.curves.published.model import Published as Published

# The module of each public class.
_MODULES = {
    "Ensemble": "paceline.curves.ensemble.model",
    "Last": "paceline.curves.last_value",
    "Pfn": "paceline.curves.pfn.model",
    "PfnStudy": "paceline.curves.pfn.model",
    "Published": "paceline.curves.published.model",
}

__all__ = sorted(_MODULES)

__getattr__ = import_lazily(__name__, _MODULES)
