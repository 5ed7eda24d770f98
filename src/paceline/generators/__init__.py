"""Generators: each one proposes the next config."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.lazy import import_lazily

if TYPE_CHECKING:
    from paceline.generators.branching import Branching as Branching
    from paceline.generators.grid import Grid as Grid
    from paceline.generators.optuna.sampler import Cmaes as Cmaes
    from paceline.generators.optuna.sampler import Gp as Gp
    from paceline.generators.optuna.sampler import Optuna as Optuna
    from paceline.generators.optuna.sampler import Qmc as Qmc
    from paceline.generators.optuna.sampler import Tpe as Tpe
    from paceline.generators.queued import Queued as Queued
    from paceline.generators.random import Random as Random
    from paceline.generators.sobol import Sobol as Sobol

# The module of each public class.
_MODULES = {
    "Branching": "paceline.generators.branching",
    "Cmaes": "paceline.generators.optuna.sampler",
    "Gp": "paceline.generators.optuna.sampler",
    "Grid": "paceline.generators.grid",
    "Optuna": "paceline.generators.optuna.sampler",
    "Qmc": "paceline.generators.optuna.sampler",
    "Queued": "paceline.generators.queued",
    "Random": "paceline.generators.random",
    "Sobol": "paceline.generators.sobol",
    "Tpe": "paceline.generators.optuna.sampler",
}

__all__ = sorted(_MODULES)

__getattr__ = import_lazily(__name__, _MODULES)
