"""A trial that is paused, moved and resumed many times ends with an uninterrupted one's weights.

Bit for bit, on the CPU, with torch and scikit-learn, through real processes: dropout, shuffling,
the optimizer's moments and the schedule's step all come back where they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from sklearn import linear_model, neural_network
from test_local_engine import local

from paceline.core import events as e
from paceline.testing.engine_driver import Advising, Hand, opened
from paceline.worker import checkpoint_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


# Torch loads as much again as itself when a process makes its first optimizer: here it does so in
# the nursery, once, rather than in each of its workers.
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)

PAUSES = 20
EPOCHS = PAUSES + 1


def images(count: int = 48) -> tuple[Any, Any]:
    """Return small images and their classes, always the same, whatever the generators' states."""
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 3, count)
    pixels = rng.normal(size=(count, 1, 6, 6)) + labels[:, None, None, None]
    return pixels.astype(np.float32), labels


def shuffled(count: int) -> Any:  # noqa: ANN401
    """Return an order by numpy's global generator, which is the one that training code uses."""
    return np.random.permutation(count)  # noqa: NPY002


def small_network() -> tuple[Any, Any]:
    """Return a network with dropout for the images, and an optimizer with momentum."""
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(36, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 3)
    )
    return model, torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)


def with_torch(trial: Any) -> None:  # noqa: ANN401
    """Train a network with everything that has a state: batch norm, dropout, Adam, a schedule."""
    pixels, labels = (torch.from_numpy(array) for array in images())
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Dropout(0.3),
        torch.nn.Linear(64, 3),
    )
    opt = torch.optim.Adam(model.parameters(), lr=trial["lr"])
    schedule = torch.optim.lr_scheduler.StepLR(opt, 3, 0.7)
    trial.keep(model=model, opt=opt, schedule=schedule)
    for _ in trial.epochs():
        # One order by each library's generator.
        for rows in (torch.randperm(48), torch.from_numpy(shuffled(48))):
            for batch in rows.split(16):
                opt.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(pixels[batch]), labels[batch])
                loss.backward()
                opt.step()
        schedule.step()
        trial.report(loss=loss.item())


def with_sgd(trial: Any) -> None:  # noqa: ANN401
    """Fit a linear model; what it has learned is two arrays and a count of steps."""
    pixels, labels = images()
    rows = pixels.reshape(len(pixels), -1)
    model = linear_model.SGDClassifier(
        loss="log_loss", eta0=trial["lr"], learning_rate="invscaling"
    )
    model.partial_fit(rows[:3], labels[:3], classes=[0, 1, 2])

    def save() -> dict[str, Any]:
        return {"coef": model.coef_, "intercept": model.intercept_, "t": model.t_}

    def load(state: dict[str, Any]) -> None:
        model.coef_, model.intercept_, model.t_ = state["coef"], state["intercept"], state["t"]

    trial.keep(model=(save, load))
    for _ in trial.epochs():
        model.partial_fit(rows, labels)  # shuffles by numpy's own generator
        trial.report(loss=1.0 - model.score(rows, labels))


def with_mlp(trial: Any) -> None:  # noqa: ANN401
    """Fit a small network, whose optimizer has moments."""
    pixels, labels = images()
    rows = pixels.reshape(len(pixels), -1)
    model = neural_network.MLPClassifier((8,), learning_rate_init=trial["lr"], batch_size=16)
    model.partial_fit(rows[:16], labels[:16], classes=[0, 1, 2])
    moments = model._optimizer
    weights = (*model.coefs_, *model.intercepts_)

    def save() -> dict[str, Any]:
        state = {"weights": list(weights), "first": moments.ms, "second": moments.vs}
        return {**state, "t": moments.t, "seen": model.t_}

    def load(state: dict[str, Any]) -> None:
        for array, saved in zip(weights, state["weights"], strict=True):
            array[...] = saved
        moments.ms, moments.vs, moments.t = state["first"], state["second"], state["t"]
        model.t_ = state["seen"]

    trial.keep(model=(save, load))
    for _ in trial.epochs():
        model.partial_fit(rows, labels)
        trial.report(loss=model.loss_)


def trained(hand: Hand, trial: int, first: int, goals: Iterable[int]) -> tuple[str, list[Any]]:
    """Train to each goal in a process of its own, on slots in turn; return its end and curve."""
    start, source = 0, None
    curve: list[Any] = []
    for attempt, goal in enumerate(goals, first):
        hand.give(hand.launch(attempt, trial=trial, goal=goal, start=start, source=source))
        assert hand.until_ended(attempt).cause is e.Cause.GOAL, hand.of(e.Ended)
        curve += hand.values(attempt)
        start, source = goal, attempt
    return f"{source}-{start}.ckpt", curve


def same(one: Any, other: Any) -> bool:  # noqa: ANN401
    """Say whether two nested values are the same to the last bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return same(one.numpy(), other.numpy())
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.tobytes() == other.tobytes())
    return bool(one == other)


@pytest.mark.parametrize("train", [with_torch, with_sgd, with_mlp])
def test_twenty_pauses_and_moves_change_no_bit(
    train: Callable[[Any], None], tmp_path: Path
) -> None:
    engine = local(train, tmp_path, Advising())
    try:
        hand = Hand(engine, 0.02)
        hand.give(*(opened(trial, {"lr": 0.01}) for trial in (0, 1)))
        ends = [trained(hand, 0, 0, [EPOCHS]), trained(hand, 1, 1, range(1, EPOCHS + 1))]
    finally:
        engine.close()
    straight, paused = (checkpoint_file.read(tmp_path / "checkpoints" / name) for name, _ in ends)
    curve, pieces = (curve for _, curve in ends)
    assert pieces == curve
    assert len({value for _, value in curve}) > 1, "nothing was learned, so nothing is shown"
    assert same(paused["kept"], straight["kept"])
    assert same(paused["random"], straight["random"])
