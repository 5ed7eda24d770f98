"""Small data and networks for tests that compare trained weights bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def make_images(count: int = 48) -> tuple[Any, Any]:
    """Return small images and their classes, always the same, whatever the generators' states."""
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 3, count)
    pixels = rng.normal(size=(count, 1, 6, 6)) + labels[:, None, None, None]
    return pixels.astype(np.float32), labels


def shuffle_rows(count: int) -> Any:  # noqa: ANN401
    """Return an order by numpy's global generator, which is the one that training code uses."""
    return np.random.permutation(count)  # noqa: NPY002


def make_network() -> tuple[Any, Any]:
    """Return a network with dropout for the images, and an optimizer with momentum."""
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(36, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 3)
    )
    return model, torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)


def is_equal(one: Any, other: Any) -> bool:  # noqa: ANN401
    """Say whether two nested values are the same to the last bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_equal(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_equal, one, other))
    if isinstance(one, torch.Tensor):
        return is_equal(one.numpy(), other.numpy())
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.tobytes() == other.tobytes())
    return bool(one == other)
