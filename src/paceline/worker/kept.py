"""The objects that a trial keeps in its checkpoints, and the states of random generators.

Reads and restores an object's state: `state_dict`, a pair of functions, or the value itself. Does
not know files or when to save.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from paceline.core.errors import CheckpointError
from paceline.worker.checkpoint_file import check


class KeptObjects:
    """The objects registered by `keep`, and their states in the checkpoint."""

    def __init__(self) -> None:
        self._objects: dict[str, Any] = {}
        self._restored: dict[str, Any] = {}
        self._random: dict[str, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._objects)

    def load(self, values: dict[str, Any]) -> None:
        """Take the states of a checkpoint; each object is restored when it is registered."""
        self._restored = dict(values["kept"])
        self._random = values["random"]

    def register(self, name: str, given: Any) -> Any:  # noqa: ANN401
        """Keep an object from now on; return it restored, or as given."""
        if name not in self._restored:
            if not hasattr(given, "state_dict") and not _is_pair(given):
                check(given, name)  # now instead of at the first save
            self._objects[name] = given
            return given
        state = self._restored.pop(name)
        if hasattr(given, "load_state_dict"):
            given.load_state_dict(state)
        elif _is_pair(given):
            given[1](state)
        else:
            given = state
        self._objects[name] = given
        return given

    def states(self) -> dict[str, Any]:
        """Return all states as they are now, ready to be written."""
        kept = {name: _state(given, name) for name, given in self._objects.items()}
        return {"kept": kept, "random": get_random_states()}

    def restore_random(self) -> None:
        """Restore the random generators to their states in the checkpoint."""
        states, self._random = self._random, {}
        set_random_states(states)


def set_random_states(states: dict[str, Any]) -> None:
    """Restore the generators of Python, numpy and torch to these states."""
    if "python" in states:
        random.setstate(states["python"])
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and "numpy" in states:
        numpy.random.set_state(states["numpy"])
    if torch is not None and "torch" in states:
        torch.set_rng_state(states["torch"])
        if states.get("cuda") and torch.cuda.is_available():
            # With fewer devices than before, the states of the others are left out.
            for device, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(state, device)


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, numpy and torch, as far as these are loaded."""
    random.seed(seed)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    if torch is not None:
        torch.manual_seed(seed)


def _is_pair(given: Any) -> bool:  # noqa: ANN401
    return type(given) is tuple and len(given) == 2 and all(map(callable, given))


def _state(given: Any, name: str) -> Any:  # noqa: ANN401
    if hasattr(given, "state_dict"):
        if not hasattr(given, "load_state_dict"):
            raise CheckpointError(
                f"keep.{name} has state_dict but no load_state_dict: add it, or keep a pair of "
                "functions."
            )
        return given.state_dict()
    return given[0]() if _is_pair(given) else given


def get_random_states() -> dict[str, Any]:
    """Return the states of the generators of Python, numpy and torch, where loaded."""
    states: dict[str, Any] = {"python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    if torch is not None:
        states["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state_all()
    return states
