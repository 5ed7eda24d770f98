"""The study that recorded the trace `fashion_stages`: nine learning rates in each of three stages.

    paceline run training/stages.py --store sqlite:///stages.db
    paceline export fashion_stages fashion_stages.jsonl.gz --store sqlite:///stages.db

Knows the schedules; the network and its images are those of `paceline demo`. All 729 schedules are
tried, and shared prefixes are trained once: 819 stages, in a few minutes on two cores.
"""

from __future__ import annotations

import paceline as pl
from paceline.cli.demo_training import train

RATES = [0.1, 0.05, 0.03, 0.02, 0.01, 0.005, 0.003, 0.001, 0.0003]
# Epochs of a stage.
STAGE = 3

study = pl.Study(
    train,
    name="fashion_stages",
    space={
        "lr": pl.piecewise([(start, pl.choice(RATES)) for start in (0, STAGE, 2 * STAGE)]),
        "width": 64,
        "momentum": 0.9,
        "dropout": 0.0,
    },
    generator="grid",
    policy="fifo",
    metric="accuracy",
    mode="max",
    epochs=3 * STAGE,
    slots="cpu:2",
)
