"""Recorded traces as studies, by family."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import numpy as np

from training.planner.fast_sim import Study

if TYPE_CHECKING:
    from pathlib import Path


def read_study(path: Path) -> Study:
    """Return the study in a trace file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        header, *runs = map(json.loads, file)
    sign = -1.0 if header["mode"] == "max" else 1.0
    epochs = max(len(run["values"]) for run in runs)
    losses, seconds = np.full((len(runs), epochs), np.inf), np.zeros((len(runs), epochs))
    for row, run in enumerate(runs):
        values = [np.inf if value is None else sign * value for value in run["values"]]
        losses[row, : len(values)] = values
        seconds[row, : len(values)] = run["seconds"]  # a list, or one number for all
    lengths = np.array([len(run["values"]) for run in runs])
    setup = np.array([run.get("setup_s") or 0.0 for run in runs])
    configs = [run["config"] for run in runs]
    return Study(losses, lengths, seconds, setup, epochs, find_family(path.name), configs)


def find_family(name: str) -> str:
    """Return the family of a trace by its file; traces of one family are correlated."""
    first, second, *_ = name.split(".")[0].split("_")
    return f"{first}_{second}" if first == "algoperf" else first
