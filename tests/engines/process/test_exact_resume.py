"""A trial that is paused, moved and resumed many times ends with an uninterrupted one's weights.

Bit for bit, on the CPU, with torch and scikit-learn, through real processes: dropout, shuffling,
the optimizer's moments and the schedule's step all come back where they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from process_engines import make_engine
from sklearn import linear_model, neural_network
from small_networks import is_equal, make_images, shuffle_rows

from paceline.core import events as e
from paceline.testing.engine_driver import EngineDriver, StubAdvisor, make_open
from paceline.worker import checkpoint_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


# Torch loads as much again as itself when a process makes its first optimizer: here it does so in
# the fork server, once, instead of in each of its workers.
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)

PAUSES = 20
EPOCHS = PAUSES + 1


def with_torch(trial: Any) -> None:  # noqa: ANN401
    """Train a network with everything that has a state: batch norm, dropout, Adam, a schedule."""
    pixels, labels = (torch.from_numpy(array) for array in make_images())
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
        for rows in (torch.randperm(48), torch.from_numpy(shuffle_rows(48))):
            for batch in rows.split(16):
                opt.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(pixels[batch]), labels[batch])
                loss.backward()
                opt.step()
        schedule.step()
        trial.report(loss=loss.item())


def with_sgd(trial: Any) -> None:  # noqa: ANN401
    """Fit a linear model; what it has learned is two arrays and a count of steps."""
    pixels, labels = make_images()
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
    pixels, labels = make_images()
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


def trained(
    driver: EngineDriver, trial: int, first: int, goals: Iterable[int]
) -> tuple[str, list[Any]]:
    """Train to each goal in a process of its own, on slots in turn; return its end and curve."""
    start, source = 0, None
    curve: list[Any] = []
    for attempt, goal in enumerate(goals, first):
        driver.apply(
            driver.make_launch(attempt, trial=trial, goal=goal, start=start, source=source)
        )
        assert driver.wait_for_end(attempt).cause is e.Cause.GOAL, driver.list_events(e.Ended)
        curve += driver.list_reports(attempt)
        start, source = goal, attempt
    return f"{source}-{start}.ckpt", curve


@pytest.mark.parametrize(
    "train",
    [with_sgd, *(pytest.param(train, marks=pytest.mark.slow) for train in (with_torch, with_mlp))],
)
def test_twenty_pauses_and_moves_change_no_bit(
    train: Callable[[Any], None], tmp_path: Path
) -> None:
    engine = make_engine(train, tmp_path, StubAdvisor())
    try:
        driver = EngineDriver(engine, 0.02)
        driver.apply(*(make_open(trial, {"lr": 0.01}) for trial in (0, 1)))
        ends = [trained(driver, 0, 0, [EPOCHS]), trained(driver, 1, 1, range(1, EPOCHS + 1))]
    finally:
        engine.close()
    straight, paused = (checkpoint_file.read(tmp_path / "checkpoints" / name) for name, _ in ends)
    curve, pieces = (curve for _, curve in ends)
    assert pieces == curve
    assert len({value for _, value in curve}) > 1, "nothing was learned, so nothing is shown"
    assert is_equal(paused["kept"], straight["kept"])
    assert is_equal(paused["random"], straight["random"])
