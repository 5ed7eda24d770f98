"""A distributed training function, and the same training by hand."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace
from process_engines import make_engine

import paceline as pl
from paceline.core import events as e
from paceline.testing.engine_driver import EngineDriver, StubAdvisor, make_open
from paceline.worker import checkpoint_file

if TYPE_CHECKING:
    from pathlib import Path


wide: Any = pl.integrations.torch


ROWS, BATCH, EPOCHS, LR = 65, 15, 12, 0.05


def make_points() -> tuple[Any, Any]:
    """Return points and their classes, always the same."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(0, 3, (ROWS,), generator=generator)
    return torch.randn(ROWS, 8, generator=generator) + labels[:, None], labels


def train(trial: Any) -> None:  # noqa: ANN401
    """Train a small network on batches that no two processes can share evenly."""
    inputs, truth = make_points()
    with wide.gang(trial) as gang:
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
        net = gang.wrap(model)
        opt = torch.optim.SGD(net.parameters(), lr=trial["lr"], momentum=0.9)
        trial.keep(model=net, opt=opt)
        for epoch in trial.epochs():
            losses, batches = 0.0, 0
            for rows, weight in gang.batches(ROWS, BATCH, epoch):
                opt.zero_grad()
                loss = torch.nn.functional.cross_entropy(net(inputs[rows]), truth[rows])
                (weight * loss).backward()
                opt.step()
                losses, batches = losses + weight * loss.item(), batches + 1
            trial.report(
                loss=gang.mean(losses / batches),
                pid=os.getpid(),
                threads=torch.get_num_threads(),
            )


def train_by_hand(files: Path, stages: list[tuple[int, int, float]]) -> dict[str, Any]:
    """Train these stages (start, goal, width) one after the other; return the last checkpoint."""
    engine = make_engine(train, files, StubAdvisor())
    try:
        driver = EngineDriver(engine, 0.02)
        driver.apply(make_open(0, {"lr": LR}))
        for attempt, (start, goal, width) in enumerate(stages):
            source = attempt - 1 if attempt else None
            launch = driver.make_launch(attempt, start=start, source=source, goal=goal)
            slots = (0, 1) if width == 2.0 else (0,)
            driver.apply(replace(launch, slots=slots, width=width))
            assert driver.wait_for_end(attempt).cause is e.Cause.GOAL, driver.list_events(e.Ended)
        return checkpoint_file.read(files / "checkpoints" / f"{attempt}-{goal}.ckpt")
    finally:
        engine.close()
