"""Paceline: the best model your hardware can train before the deadline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from paceline.core.lazy import import_lazily

if TYPE_CHECKING:
    from paceline import allocation
    from paceline import curves as curves
    from paceline import generators as generators
    from paceline import integrations as integrations
    from paceline import parts as parts
    from paceline import policies as policies
    from paceline.api.load import StoredStudy as StoredStudy
    from paceline.api.load import load as load
    from paceline.api.load import studies as studies
    from paceline.api.results import Result as Result
    from paceline.api.results import SavedCheckpoint as SavedCheckpoint
    from paceline.api.results import TrialResult as TrialResult
    from paceline.api.several_studies import together as together
    from paceline.api.simulation import Search as Search
    from paceline.api.simulation import SimResult as SimResult
    from paceline.api.simulation import Simulation as Simulation
    from paceline.api.study import Study as Study
    from paceline.api.study import tune as tune
    from paceline.core.errors import BrokenInvariant as BrokenInvariant
    from paceline.core.errors import CheckpointError as CheckpointError
    from paceline.core.errors import ClusterLost as ClusterLost
    from paceline.core.errors import LogError as LogError
    from paceline.core.errors import NoResult as NoResult
    from paceline.core.errors import PacelineError as PacelineError
    from paceline.core.errors import PacelineWarning as PacelineWarning
    from paceline.core.errors import SpecError as SpecError
    from paceline.core.errors import StoreError as StoreError
    from paceline.core.errors import StudyFailed as StudyFailed
    from paceline.core.errors import StudyNotFound as StudyNotFound
    from paceline.core.errors import TraceError as TraceError
    from paceline.core.errors import TrialError as TrialError
    from paceline.core.errors import TrialPruned as TrialPruned
    from paceline.core.space import choice as choice
    from paceline.core.space import grid as grid
    from paceline.core.space import lograndint as lograndint
    from paceline.core.space import loguniform as loguniform
    from paceline.core.space import quniform as quniform
    from paceline.core.space import randint as randint
    from paceline.core.space import uniform as uniform
    from paceline.core.values import Part as Part
    from paceline.engines.process.ray.config import Ray as Ray
    from paceline.engines.sim.traces import Trace as Trace
    from paceline.engines.sim.traces import read_trace as read_trace
    from paceline.engines.sim.traces import write_trace as write_trace
    from paceline.integrations import optuna as optuna
    from paceline.integrations.ray_tune_scheduler import tune_scheduler as tune_scheduler
    from paceline.plan.schedules import cosine as cosine
    from paceline.plan.schedules import cyclic as cyclic
    from paceline.plan.schedules import exponential as exponential
    from paceline.plan.schedules import linear as linear
    from paceline.plan.schedules import smooth as smooth
    from paceline.plan.schedules import step_decay as step_decay
    from paceline.plan.schedules import warmup as warmup
    from paceline.plan.settings import each_epoch as each_epoch
    from paceline.plan.settings import piecewise as piecewise
    from paceline.worker.ray_compat import Checkpoint as Checkpoint
    from paceline.worker.ray_compat import get_checkpoint as get_checkpoint
    from paceline.worker.ray_compat import report as report
    from paceline.worker.trial import Trial as Trial

    allocators = allocation

__version__ = "0.1.0"

# The module of each public name. It is imported on first use: `import paceline` stays fast.
_MODULES = {
    "BrokenInvariant": "paceline.core.errors",
    "Checkpoint": "paceline.worker.ray_compat",
    "CheckpointError": "paceline.core.errors",
    "ClusterLost": "paceline.core.errors",
    "LogError": "paceline.core.errors",
    "NoResult": "paceline.core.errors",
    "PacelineError": "paceline.core.errors",
    "PacelineWarning": "paceline.core.errors",
    "Part": "paceline.core.values",
    "Ray": "paceline.engines.process.ray.config",
    "Result": "paceline.api.results",
    "SavedCheckpoint": "paceline.api.results",
    "Search": "paceline.api.simulation",
    "SimResult": "paceline.api.simulation",
    "Simulation": "paceline.api.simulation",
    "SpecError": "paceline.core.errors",
    "StoreError": "paceline.core.errors",
    "StoredStudy": "paceline.api.load",
    "Study": "paceline.api.study",
    "StudyFailed": "paceline.core.errors",
    "StudyNotFound": "paceline.core.errors",
    "Trace": "paceline.engines.sim.traces",
    "TraceError": "paceline.core.errors",
    "Trial": "paceline.worker.trial",
    "TrialError": "paceline.core.errors",
    "TrialPruned": "paceline.core.errors",
    "TrialResult": "paceline.api.results",
    "choice": "paceline.core.space",
    "cosine": "paceline.plan.schedules",
    "cyclic": "paceline.plan.schedules",
    "each_epoch": "paceline.plan.settings",
    "exponential": "paceline.plan.schedules",
    "get_checkpoint": "paceline.worker.ray_compat",
    "grid": "paceline.core.space",
    "linear": "paceline.plan.schedules",
    "load": "paceline.api.load",
    "lograndint": "paceline.core.space",
    "loguniform": "paceline.core.space",
    "piecewise": "paceline.plan.settings",
    "quniform": "paceline.core.space",
    "randint": "paceline.core.space",
    "read_trace": "paceline.engines.sim.traces",
    "report": "paceline.worker.ray_compat",
    "smooth": "paceline.plan.schedules",
    "step_decay": "paceline.plan.schedules",
    "studies": "paceline.api.load",
    "together": "paceline.api.several_studies",
    "tune": "paceline.api.study",
    "tune_scheduler": "paceline.integrations.ray_tune_scheduler",
    "uniform": "paceline.core.space",
    "warmup": "paceline.plan.schedules",
    "write_trace": "paceline.engines.sim.traces",
}

# Public namespaces: the built-in parts, what authors of parts need, and other libraries.
_NAMESPACES = {
    "allocators": "paceline.allocation",
    "curves": "paceline.curves",
    "generators": "paceline.generators",
    "integrations": "paceline.integrations",
    "optuna": "paceline.integrations.optuna",
    "parts": "paceline.parts",
    "policies": "paceline.policies",
}

__all__ = sorted(_MODULES)

# A deadline counts from the call, and the first call imports what it needs.
_CALLS = ("together", "tune")
_look_up = import_lazily(__name__, _MODULES, _NAMESPACES, clock=time.monotonic, timed=_CALLS)


def __getattr__(name: str) -> object:
    if name not in _CALLS:
        return _look_up(name)
    from paceline.api.interrupts import hold_interrupt

    with hold_interrupt() as interrupts:
        found = _look_up(name)
    if interrupts.caught is not None:
        raise KeyboardInterrupt  # the import has dropped it
    return found


def __dir__() -> list[str]:
    return [*__all__, *_NAMESPACES, "__version__"]
