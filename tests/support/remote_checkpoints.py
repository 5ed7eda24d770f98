"""A small study with checkpoints in a storage, for tests on one or several machines."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def train_counter(trial: Any) -> None:  # noqa: ANN401
    weight = trial.keep(weight=[0.0])
    for _ in trial.epochs():
        time.sleep(0.002)
        weight[0] += trial["lr"] * (1 - weight[0])
        trial.report(loss=(1 - weight[0]) ** 2, pid=os.getpid())


def make_options(folder: Path, node: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the options of a study whose driver believes to run on this node."""
    return {
        "metric": "loss",
        "mode": "min",
        "epochs": 6,
        "slots": 2,
        "name": "moves",
        "store": f"sqlite:///{folder / 'studies.db'}",
        "files": folder / node,
        "checkpoints": str(folder / "shared"),
        "progress": False,
        **more,
    }
