"""Kept objects: how their states are read and restored, and the random generators'."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from paceline.core.errors import CheckpointError
from paceline.worker.kept import KeptObjects, seed_everything


class Model:
    """An object with a state of its own."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def state_dict(self) -> dict[str, float]:
        return {"weight": self.weight}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.weight = state["weight"]


class OnlySaves:
    def state_dict(self) -> dict[str, float]:
        return {}


def test_objects_are_restored_when_they_are_registered() -> None:
    first = KeptObjects()
    saved: list[str] = []
    assert not first
    first.register("model", Model(2.0))
    first.register("count", [3])
    first.register("pair", (lambda: "state", saved.append))
    assert first
    states = first.states()
    assert states["kept"] == {"model": {"weight": 2.0}, "count": [3], "pair": "state"}
    second = KeptObjects()
    second.load(states)
    model = Model(0.0)
    assert second.register("model", model) is model
    assert model.weight == 2.0
    assert second.register("count", [0]) == [3]
    second.register("pair", (lambda: "", saved.append))
    assert saved == ["state"]
    assert second.register("new", 1) == 1


def test_an_object_that_cannot_be_kept_is_refused_at_once() -> None:
    with pytest.raises(CheckpointError, match=r"keep\.lock holds"):
        KeptObjects().register("lock", object())
    kept = KeptObjects()
    kept.register("half", OnlySaves())
    with pytest.raises(CheckpointError, match=r"keep\.half has state_dict but no load_state_dict"):
        kept.states()


def draw() -> list[Any]:
    torch = pytest.importorskip("torch")
    return [random.random(), np.random.random(), float(torch.rand(1))]  # noqa: NPY002 - as users do


def test_random_generators_continue_where_the_checkpoint_was_saved() -> None:
    draw()  # torch is seeded where it is loaded
    seed_everything(2**40 + 3)
    first = draw()
    states = KeptObjects().states()
    after = draw()
    restored = KeptObjects()
    restored.load(states)
    restored.restore_random()
    assert draw() == after
    seed_everything(2**40 + 3)
    assert draw() == first
    restored.restore_random()  # once: the states are used up
    assert draw() == after
