"""The synthetic table for measuring simulators: 20,000 configs of 100 epochs."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.engines.sim.traces import VERSION, Trace, TraceHeader, TraceRun

if TYPE_CHECKING:
    from collections.abc import Mapping

    Numbers = dict[str, np.ndarray[Any, np.dtype[Any]]]

CONFIGS, EPOCHS = 20_000, 100


def make_table(configs: int = CONFIGS, epochs: int = EPOCHS) -> Numbers:
    """Return three hyperparameters and two curves per config; deterministic."""
    rng = np.random.default_rng(20_000)
    decay, lr = 10 ** rng.uniform(-6, -2, configs), 10 ** rng.uniform(-5, -1, configs)
    # The floor of a curve depends on the distance between its config and the best one.
    off = ((np.log10(lr) + 3) ** 2 + 0.2 * (np.log10(decay) + 4) ** 2)[:, None] / 4
    floor = 0.1 + 0.8 * off + 0.05 * rng.random((configs, 1))
    speed = 0.02 + 0.2 * rng.random((configs, 1))
    noise = 0.01 * rng.standard_normal((configs, epochs))
    loss = floor + (2.3 - floor) * np.exp(-speed * np.arange(1, epochs + 1)) + noise
    seconds = rng.uniform(35, 85, (configs, 1)) * rng.uniform(0.95, 1.05, (configs, epochs))
    return {
        # Few digits: a peer looks rows up by value, and Paceline rounds to 12 digits.
        "decay": np.array([float(f"{value:.9g}") for value in decay]),
        "lr": np.array([float(f"{value:.9g}") for value in lr]),
        "width": rng.integers(16, 1_025, configs),
        "loss": loss,
        "seconds": seconds,
    }


def make_trace(table: Mapping[str, Any], epoch_s: float | None = None) -> Trace:
    """Return the table as a trace, with its own epoch times or one time for all."""
    names = ("decay", "lr", "width")
    configs = zip(*(table[name].tolist() for name in names), strict=True)
    curves = zip(configs, table["loss"], table["seconds"], strict=True)
    runs = [
        TraceRun(
            number,
            dict(zip(names, config, strict=True)),
            array("d", loss),
            array("d", seconds if epoch_s is None else [epoch_s] * len(loss)),
        )
        for number, (config, loss, seconds) in enumerate(curves)
    ]
    header = TraceHeader(
        paceline_trace=VERSION,
        name="table",
        metric="loss",
        mode="min",
        max_epochs=table["loss"].shape[1],
    )
    return Trace(header, runs)
