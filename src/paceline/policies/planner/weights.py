"""The weights of the planner's networks: read from the package, and checked.

Knows the file and what can be wrong with it. Networks that cannot be used are left out.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from paceline.policies.planner.network import Layers, Networks
from paceline.policies.planner.record import (
    HORIZON_INPUTS,
    OPENING_INPUTS,
    RANK_INPUT,
    TRIAL_INPUTS,
)

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

# The number of networks whose mean is used.
NETWORKS = 3
# The name of the network for new trials in the file.
OPENING = "opening"
_FILE = "planner.npz"


class LoadedNetworks(NamedTuple):
    """The networks that can be used, and what is wrong with the others."""

    usable: Networks
    fault: str
    # The chance that a new trial reaches the loss at its first look; None: counted as 0.
    opening: Networks | None = None


def find_file() -> Traversable:
    """Return the file of the networks in the package."""
    return files(__package__) / _FILE


@cache
def load_networks() -> LoadedNetworks:
    """Return the networks of the package; without any, a rule by ranks, with the reason."""
    try:
        with find_file().open("rb") as file:
            arrays = dict(np.load(file, allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        kind = type(error).__name__
        return LoadedNetworks(
            Networks([make_rank_network()]), f"its networks cannot be read ({kind})"
        )
    return check_networks(arrays)


def check_networks(arrays: dict[str, np.ndarray]) -> LoadedNetworks:
    """Return the networks in these arrays that are whole."""
    names = [str(number) for number in range(NETWORKS)]
    usable = [
        layers for name in names if (layers := _take(arrays, name, TRIAL_INPUTS, HORIZON_INPUTS))
    ]
    opening = _take(arrays, OPENING, OPENING_INPUTS, 1)
    faults = []
    if not usable:
        faults.append("all of its networks are damaged")
    elif len(usable) < NETWORKS:
        lost = NETWORKS - len(usable)
        faults.append(f"{lost} of its {NETWORKS} networks {'is' if lost == 1 else 'are'} damaged")
    if opening is None:
        faults.append("its network for new trials is damaged")
    return LoadedNetworks(
        Networks(usable or [make_rank_network()]),
        ", ".join(faults),
        None if opening is None else Networks([opening]),
    )


def _take(
    arrays: dict[str, np.ndarray], number: str, trial_inputs: int, horizon_inputs: int
) -> Layers | None:
    try:
        found = [arrays[f"{number}_{name}"].astype(np.float64) for name in Layers._fields]
    except (KeyError, ValueError):
        return None
    layers = Layers(*found)
    hidden, second = layers.bias.shape, layers.second_bias.shape
    shapes = (
        (trial_inputs, *hidden),
        (horizon_inputs, *hidden),
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
    trial[RANK_INPUT] = (-1.0, 1.0, 0.0, 0.0)
    horizon[0] = (0.0, 0.0, 0.7, 0.0)
    last = np.array([1.0, -1.0, 1.0, 0.0])
    zeros = np.zeros(4)
    return Layers(trial, horizon, zeros, np.eye(4), zeros, last, np.array(-4.0))
