"""Paceline: the best model your hardware can train before the deadline."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.api.simulation import SimResult, Simulation
    from paceline.core.errors import (
        BrokenInvariant,
        LogError,
        PacelineError,
        SpecError,
        StoreError,
        StudyNotFound,
        TraceError,
    )
    from paceline.core.space import (
        choice,
        grid,
        lograndint,
        loguniform,
        quniform,
        randint,
        uniform,
    )
    from paceline.engines.sim.traces import Trace, read_trace, write_trace
    from paceline.plan.settings import each_epoch, piecewise

__version__ = "0.1.0"

# Where each public name lives. Imported when asked for: `import paceline` costs next to nothing.
_HOMES = {
    "BrokenInvariant": "paceline.core.errors",
    "LogError": "paceline.core.errors",
    "PacelineError": "paceline.core.errors",
    "SimResult": "paceline.api.simulation",
    "Simulation": "paceline.api.simulation",
    "SpecError": "paceline.core.errors",
    "StoreError": "paceline.core.errors",
    "StudyNotFound": "paceline.core.errors",
    "Trace": "paceline.engines.sim.traces",
    "TraceError": "paceline.core.errors",
    "choice": "paceline.core.space",
    "each_epoch": "paceline.plan.settings",
    "grid": "paceline.core.space",
    "lograndint": "paceline.core.space",
    "loguniform": "paceline.core.space",
    "piecewise": "paceline.plan.settings",
    "quniform": "paceline.core.space",
    "randint": "paceline.core.space",
    "read_trace": "paceline.engines.sim.traces",
    "uniform": "paceline.core.space",
    "write_trace": "paceline.engines.sim.traces",
}

__all__ = [
    "BrokenInvariant",
    "LogError",
    "PacelineError",
    "SimResult",
    "Simulation",
    "SpecError",
    "StoreError",
    "StudyNotFound",
    "Trace",
    "TraceError",
    "choice",
    "each_epoch",
    "grid",
    "lograndint",
    "loguniform",
    "piecewise",
    "quniform",
    "randint",
    "read_trace",
    "uniform",
    "write_trace",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
