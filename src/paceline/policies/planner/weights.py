"""The weights of the planner's networks: read from the package, and checked.

Knows the file and what can be wrong with it. Networks that cannot be used are left out.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from paceline.policies.planner.network import Layers
from paceline.policies.planner.record import HORIZON_INPUTS, TRIAL_INPUTS

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

# The number of networks whose mean is used.
NETWORKS = 3
_FILE = "planner.npz"


class Networks(NamedTuple):
    """The networks that can be used, and what is wrong with the others."""

    usable: tuple[Layers, ...]
    fault: str


def find_file() -> Traversable:
    """Return the file of the networks in the package."""
    return files(__package__) / _FILE


@cache
def load_networks() -> Networks:
    """Return the networks of the package; without any, a rule by ranks, with the reason."""
    try:
        with find_file().open("rb") as file:
            arrays = dict(np.load(file, allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        kind = type(error).__name__
        return Networks((make_rank_network(),), f"its networks cannot be read ({kind})")
    return check_networks(arrays)


def check_networks(arrays: dict[str, np.ndarray]) -> Networks:
    """Return the networks in these arrays that are whole."""
    usable = [layers for number in range(NETWORKS) if (layers := _take(arrays, number))]
    if not usable:
        return Networks((make_rank_network(),), "all of its networks are damaged")
    damaged = NETWORKS - len(usable)
    return Networks(tuple(usable), f"{damaged} of its {NETWORKS} networks damaged" * bool(damaged))


def _take(arrays: dict[str, np.ndarray], number: int) -> Layers | None:
    try:
        found = [arrays[f"{number}_{name}"].astype(np.float64) for name in Layers._fields]
    except (KeyError, ValueError):
        return None
    layers = Layers(*found)
    hidden, second = layers.bias.shape, layers.second_bias.shape
    shapes = (
        (TRIAL_INPUTS, *hidden),
        (HORIZON_INPUTS, *hidden),
        hidden,
        (*hidden, *second),
        second,
        second,
        (),
    )
    if tuple(each.shape for each in layers) != shapes:
        return None
    return layers if all(np.isfinite(each).all() for each in layers) else None


def make_rank_network() -> Layers:
    """Return a network that knows ranks and horizons only: the planner without its networks."""
    trial, horizon = np.zeros((TRIAL_INPUTS, 4)), np.zeros((HORIZON_INPUTS, 4))
    trial[0] = (-1.0, 1.0, 0.0, 0.0)
    horizon[0] = (0.0, 0.0, 0.7, 0.0)
    last = np.array([1.0, -1.0, 1.0, 0.0])
    zeros = np.zeros(4)
    return Layers(trial, horizon, zeros, np.eye(4), zeros, last, np.array(-4.0))
