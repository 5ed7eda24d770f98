"""Paceline: the best model your hardware can train before the deadline."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline import integrations as integrations
    from paceline.api.results import Result, SavedCheckpoint, TrialResult
    from paceline.api.simulation import Search, SimResult, Simulation
    from paceline.api.study import Study, together, tune
    from paceline.core.errors import (
        BrokenInvariant,
        CheckpointError,
        LogError,
        PacelineError,
        SpecError,
        StoreError,
        StudyFailed,
        StudyNotFound,
        TraceError,
        TrialError,
    )
    from paceline.core.space import choice, grid, lograndint, loguniform, quniform, randint, uniform
    from paceline.core.values import Part
    from paceline.engines.process.ray.config import Ray
    from paceline.engines.sim.traces import Trace, read_trace, write_trace
    from paceline.integrations.ray_tune_scheduler import tune_scheduler
    from paceline.plan.schedules import (
        cosine,
        cyclic,
        exponential,
        linear,
        smooth,
        step_decay,
        warmup,
    )
    from paceline.plan.settings import each_epoch, piecewise
    from paceline.worker.ray_compat import Checkpoint, get_checkpoint, report
    from paceline.worker.trial import Trial

__version__ = "0.1.0"

# Where each public name lives. Imported when asked for: `import paceline` costs next to nothing.
_HOMES = {
    "BrokenInvariant": "paceline.core.errors",
    "Checkpoint": "paceline.worker.ray_compat",
    "CheckpointError": "paceline.core.errors",
    "LogError": "paceline.core.errors",
    "PacelineError": "paceline.core.errors",
    "Part": "paceline.core.values",
    "Ray": "paceline.engines.process.ray.config",
    "Result": "paceline.api.results",
    "SavedCheckpoint": "paceline.api.results",
    "Search": "paceline.api.simulation",
    "SimResult": "paceline.api.simulation",
    "Simulation": "paceline.api.simulation",
    "SpecError": "paceline.core.errors",
    "StoreError": "paceline.core.errors",
    "Study": "paceline.api.study",
    "StudyFailed": "paceline.core.errors",
    "StudyNotFound": "paceline.core.errors",
    "Trace": "paceline.engines.sim.traces",
    "TraceError": "paceline.core.errors",
    "Trial": "paceline.worker.trial",
    "TrialError": "paceline.core.errors",
    "TrialResult": "paceline.api.results",
    "choice": "paceline.core.space",
    "cosine": "paceline.plan.schedules",
    "cyclic": "paceline.plan.schedules",
    "each_epoch": "paceline.plan.settings",
    "exponential": "paceline.plan.schedules",
    "get_checkpoint": "paceline.worker.ray_compat",
    "grid": "paceline.core.space",
    "linear": "paceline.plan.schedules",
    "lograndint": "paceline.core.space",
    "loguniform": "paceline.core.space",
    "piecewise": "paceline.plan.settings",
    "quniform": "paceline.core.space",
    "randint": "paceline.core.space",
    "read_trace": "paceline.engines.sim.traces",
    "report": "paceline.worker.ray_compat",
    "smooth": "paceline.plan.schedules",
    "step_decay": "paceline.plan.schedules",
    "together": "paceline.api.study",
    "tune": "paceline.api.study",
    "tune_scheduler": "paceline.integrations.ray_tune_scheduler",
    "uniform": "paceline.core.space",
    "warmup": "paceline.plan.schedules",
    "write_trace": "paceline.engines.sim.traces",
}

__all__ = [
    "BrokenInvariant",
    "Checkpoint",
    "CheckpointError",
    "LogError",
    "PacelineError",
    "Part",
    "Ray",
    "Result",
    "SavedCheckpoint",
    "Search",
    "SimResult",
    "Simulation",
    "SpecError",
    "StoreError",
    "Study",
    "StudyFailed",
    "StudyNotFound",
    "Trace",
    "TraceError",
    "Trial",
    "TrialError",
    "TrialResult",
    "choice",
    "cosine",
    "cyclic",
    "each_epoch",
    "exponential",
    "get_checkpoint",
    "grid",
    "linear",
    "lograndint",
    "loguniform",
    "piecewise",
    "quniform",
    "randint",
    "read_trace",
    "report",
    "smooth",
    "step_decay",
    "together",
    "tune",
    "tune_scheduler",
    "uniform",
    "warmup",
    "write_trace",
]


def __getattr__(name: str) -> object:
    if name == "integrations":
        return import_module("paceline.integrations")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
