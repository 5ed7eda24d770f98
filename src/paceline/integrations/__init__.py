"""Integrations of other libraries, one module each, imported on first use.

`paceline.integrations.optuna`: objectives and scripts written for Optuna; also `paceline.optuna`.
`paceline.integrations.torch`: trials that train on several devices at once.
`paceline.integrations.ray_tune`: trainables and spaces written for Ray Tune.
`paceline.integrations.ray_tune_scheduler`: policies as schedulers of Ray Tune.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.integrations import optuna as optuna
    from paceline.integrations import ray_tune as ray_tune
    from paceline.integrations import torch as torch

_MODULES = ("optuna", "ray_tune", "torch")


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        known = ", ".join(_MODULES)
        raise AttributeError(f"paceline.integrations has no {name!r}: choose one of {known}.")
    return import_module(f"{__name__}.{name}")
