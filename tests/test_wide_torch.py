"""A torch trial that grows to two processes and shrinks back: the same training, live."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

import paceline as pl
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.testing.hand import Advising, Hand, opened
from paceline.worker import container
from test_exact_resume import same
from test_local_engine import children, gone, local

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

torch = pytest.importorskip("torch")
wide: Any = pl.integrations.torch

# As in test_exact_resume: in the nursery, once, rather than in each of its workers.
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)

ROWS, BATCH, EPOCHS = 70, 16, 12


def points() -> tuple[Any, Any]:
    """Return points and their classes, always the same."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(0, 3, (ROWS,), generator=generator)
    return torch.randn(ROWS, 8, generator=generator) + labels[:, None], labels


def train(trial: Any) -> None:  # noqa: ANN401
    """Train a small network; the last batch has 6 rows, for each of two processes three."""
    inputs, truth = points()
    with wide.gang(trial) as gang:
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
        net = gang.wrap(model)
        opt = torch.optim.SGD(net.parameters(), lr=trial["lr"], momentum=0.9)
        trial.keep(model=net, opt=opt)
        for epoch in trial.epochs():
            losses, rows_seen = 0.0, 0
            for rows in gang.batches(ROWS, BATCH, epoch):
                opt.zero_grad()
                loss = torch.nn.functional.cross_entropy(net(inputs[rows]), truth[rows])
                gang.weighed(loss).backward()
                opt.step()
                losses, rows_seen = losses + loss.item() * len(rows), rows_seen + len(rows)
            trial.report(
                loss=gang.mean(losses / rows_seen, rows_seen),
                pid=os.getpid(),
                threads=torch.get_num_threads(),
            )


def tuned(train: Callable[[Any], None], **options: Any) -> pl.Result:  # noqa: ANN401
    """Run one trial on three slots, so that there is always room to breathe."""
    return pl.tune(
        train,
        space={"lr": pl.choice([0.05])},
        metric="loss",
        mode="min",
        epochs=EPOCHS,
        policy="fifo",
        generator="random",
        trials=1,
        slots="cpu:3",
        curves="last",
        **options,
    )


def best_of(result: pl.Result) -> pl.TrialResult:
    assert result.best is not None
    return result.best


def launches(result: pl.Result) -> list[d.Launch]:
    made = (decision for step in result.log for decision in step.decisions)
    return [decision for decision in made if isinstance(decision, d.Launch)]


def by_hand(files: Path, stages: list[tuple[int, int, float]]) -> dict[str, Any]:
    """Train these stages (start, goal, width) one after the other; return the last checkpoint."""
    engine = local(train, files, Advising())
    try:
        hand = Hand(engine, 0.02)
        hand.give(opened(0, {"lr": 0.05}))
        for attempt, (start, goal, width) in enumerate(stages):
            source = attempt - 1 if attempt else None
            launch = hand.launch(attempt, start=start, source=source, goal=goal)
            slots = (0, 1) if width == 2.0 else (0,)
            hand.give(replace(launch, slots=slots, width=width))
            assert hand.until_ended(attempt).cause is e.Cause.GOAL, hand.of(e.Ended)
        return container.read(files / "checkpoints" / f"{attempt}-{goal}.ckpt")
    finally:
        engine.close()


def test_a_trial_that_grows_and_shrinks_trains_as_one_that_does_not(tmp_path: Path) -> None:
    straight = tuned(train)
    breathing = tuned(
        train, span=2, allocator="breathing:Breathing:grow=3,shrink=7", files=tmp_path / "study"
    )
    widths = [launch.width for launch in launches(breathing)]
    assert widths == [1.0, 2.0, 1.0]
    curves = [[value or 0.0 for value in best_of(run).values] for run in (straight, breathing)]
    assert len(curves[1]) == EPOCHS
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)
    assert curves[0][-1] < 0.5 * curves[0][0], "nothing was learned, so nothing is shown"
    # The same epochs at the same widths, ordered by hand: every bit of the state is the same.
    starts = [launch.start for launch in launches(breathing)]
    stages = list(zip(starts, [*starts[1:], EPOCHS], widths, strict=True))
    last = by_hand(tmp_path / "hand", stages)
    checkpoint = best_of(breathing).checkpoint
    assert checkpoint is not None
    assert same(checkpoint.load(), last["kept"])
    assert children() == []


def test_each_process_of_a_gang_has_one_slots_threads(tmp_path: Path) -> None:
    result = tuned(train, span=2)
    reports = [step.event for step in result.log if isinstance(step.event, e.Reported)]
    assert {report.metrics["threads"] for report in reports} == {1.0}
    assert len({report.metrics["pid"] for report in reports}) == 1


def test_a_killed_process_of_a_gang_costs_a_retry_and_the_study_goes_on(tmp_path: Path) -> None:
    def mortal(trial: Any) -> None:  # noqa: ANN401
        (tmp_path / f"{os.getpid()}").touch()
        # Once, in the middle of an epoch: the first process waits for the second's gradients.
        if trial.rank and not (tmp_path / "killed").exists():
            report = trial.report

            def last_report(**metrics: float) -> None:
                report(**metrics)
                if metrics["loss"] < 0.9:
                    (tmp_path / "killed").touch()
                    os.kill(os.getpid(), signal.SIGKILL)

            trial.report = last_report
        train(trial)

    result = tuned(mortal, span=2, files=tmp_path / "study")
    ended = [step.event for step in result.log if isinstance(step.event, e.Ended)]
    assert [event.cause for event in ended] == [e.Cause.FAILED, e.Cause.FINISHED]
    assert ended[0].note.startswith("process 1 of its 2 was ended by SIGKILL")
    assert [launch.width for launch in launches(result)] == [2.0, 2.0]
    assert len(best_of(result).values) == EPOCHS
    assert gone({int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()})
