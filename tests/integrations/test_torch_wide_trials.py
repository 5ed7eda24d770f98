"""A torch trial that grows to two processes and shrinks back: the same training, live."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from msgspec.structs import replace
from test_exact_resume import same
from test_local_engine import children, gone, local

import paceline as pl
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.ports import Demands, Pick, sees_nothing
from paceline.core.values import Part, StudySpec
from paceline.engines.loop import run
from paceline.engines.process.checkpoint_files import Shelf
from paceline.engines.process.engine import LocalEngine
from paceline.engines.process.local.devices import LOOPBACK, Devices
from paceline.engines.process.local.worker_pool import Nest
from paceline.generators.queued import Queued
from paceline.machine.machine import Brains, Machine
from paceline.policies.fifo import Fifo
from paceline.testing.engine_driver import Advising, Hand, opened
from paceline.worker import checkpoint_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from paceline.core.ports import Verdict
    from paceline.core.values import TrialId
    from paceline.core.views import StudyView, TrialView

wide: Any = pl.integrations.torch

# As in test_exact_resume: in the nursery, once, rather than in each of its workers.
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)

ROWS, BATCH, EPOCHS, LR = 65, 15, 12, 0.05


def points() -> tuple[Any, Any]:
    """Return points and their classes, always the same."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(0, 3, (ROWS,), generator=generator)
    return torch.randn(ROWS, 8, generator=generator) + labels[:, None], labels


def train(trial: Any) -> None:  # noqa: ANN401
    """Train a small network on batches that no two processes can share evenly."""
    inputs, truth = points()
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


def tuned(train: Callable[[Any], None], **options: Any) -> pl.Result:  # noqa: ANN401
    """Run one trial that holds two slots."""
    return pl.tune(
        train,
        space={"lr": pl.choice([LR])},
        metric="loss",
        mode="min",
        epochs=EPOCHS,
        policy="fifo",
        generator="random",
        trials=1,
        slots="cpu:2",
        curves="last",
        span=2,
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
        hand.give(opened(0, {"lr": LR}))
        for attempt, (start, goal, width) in enumerate(stages):
            source = attempt - 1 if attempt else None
            launch = hand.launch(attempt, start=start, source=source, goal=goal)
            slots = (0, 1) if width == 2.0 else (0,)
            hand.give(replace(launch, slots=slots, width=width))
            assert hand.until_ended(attempt).cause is e.Cause.GOAL, hand.of(e.Ended)
        return checkpoint_file.read(files / "checkpoints" / f"{attempt}-{goal}.ckpt")
    finally:
        engine.close()


class Breathing:
    """An allocator: whoever starts at one of these epochs gets this width."""

    see = staticmethod(sees_nothing)

    def __init__(self, widths: dict[int, float]) -> None:
        self._widths = widths

    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        if demands.asking is None:
            return {}
        epoch = study.trials[demands.asking.trial].epoch
        begun = max(start for start in self._widths if start <= epoch)
        return {demands.asking.trial: self._widths[begun]}


class Stepwise(Fifo):
    """A policy with a goal at each of these epochs, so that no worker runs ahead of an order."""

    def __init__(self, goals: list[int]) -> None:
        self._goals = goals

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        if trial.epoch != trial.goal or trial.epoch == EPOCHS:
            return ()
        until = next(goal for goal in self._goals if goal > trial.epoch)
        return (d.Go(trial=trial.id, until=until, why="it is there"),)

    def next(self, study: StudyView) -> Pick | None:
        pick = super().next(study)
        new = pick is not None and pick.trial is None
        return Pick(None, self._goals[0], "a slot is free") if new else pick


class Resizing(Machine):
    """A machine that orders its trial to another width as soon as it is so far."""

    def __init__(self, widths: dict[int, float]) -> None:
        policy = Stepwise([*(epoch for epoch in widths if epoch), EPOCHS])
        brains = Brains(policy, Queued(configs=[{"lr": LR}]), Breathing(widths))
        super().__init__(brains)
        self._left = {epoch: width for epoch, width in widths.items() if epoch}

    def _settle(self) -> None:
        for attempt in self.state.attempts.values():
            for epoch in [epoch for epoch in self._left if epoch <= attempt.epoch]:
                width = self._left.pop(epoch)
                self.decide(d.Resize(attempt=attempt.id, width=width, why="the test asks for it"))
        super()._settle()


def resized(files: Path, widths: dict[int, float]) -> tuple[Machine, list[d.Launch]]:
    """Run one trial, live, that is ordered to these widths at these epochs."""
    told = {"name": "resized", "metric": "loss", "mode": "min", "epochs": EPOCHS, "span": 2}
    parts = {"policy": Part("fifo"), "generator": Part("queued")}
    spec = StudySpec(**told, **parts)  # type: ignore[arg-type]
    devices = Devices(2, 2)
    nest = Nest(train, devices.thread_limits())
    engine = LocalEngine(spec, nest, devices, shelf=Shelf(files))
    machine = Resizing(widths)
    steps = [machine.handle(e.Opened(at=0.0, spec=spec))]
    try:
        engine.apply(steps[0])
        assert run(machine, engine, steps.extend)
    finally:
        engine.close()
    assert children() == []
    made = (decision for step in steps for decision in step.decisions)
    return machine, [decision for decision in made if isinstance(decision, d.Launch)]


def test_a_trial_that_grows_and_shrinks_trains_as_one_that_does_not(tmp_path: Path) -> None:
    machine, started = resized(tmp_path / "live", {0: 1.0, 3: 2.0, 6: 1.0})
    assert [(launch.start, launch.width) for launch in started] == [(0, 1.0), (3, 2.0), (6, 1.0)]
    assert [len(launch.slots) for launch in started] == [1, 2, 1]
    straight, _ = resized(tmp_path / "straight", {0: 1.0})
    breathing, alone = (list(each.state.trials[0].losses) for each in (machine, straight))
    assert len(breathing) == EPOCHS
    assert breathing == pytest.approx(alone, rel=1e-4)
    assert alone[-1] < 0.5 * alone[0], "nothing was learned, so nothing is shown"
    # The same epochs at the same widths, ordered by hand: every bit of the state is the same.
    stages = [(0, 3, 1.0), (3, 6, 2.0), (6, EPOCHS, 1.0)]
    by_hand_kept = by_hand(tmp_path / "hand", stages)["kept"]
    last = checkpoint_file.read(tmp_path / "live" / "checkpoints" / f"2-{EPOCHS}.ckpt")
    assert same(last["kept"], by_hand_kept)


def test_a_trial_whose_later_epochs_need_two_slots_is_the_same_to_the_last_bit(
    tmp_path: Path,
) -> None:
    result = pl.tune(
        train,
        space={"lr": LR, "size": pl.piecewise([(0, 1), (4, 2)])},
        metric="loss",
        mode="min",
        epochs=EPOCHS,
        policy="fifo",
        generator="grid",
        slots="cpu:2",
        curves="last",
        needs=lambda setting: setting["size"],
        files=tmp_path / "study",
    )
    started = [(launch.start, launch.goal, launch.width) for launch in launches(result)]
    assert started == [(0, 4, 1.0), (4, EPOCHS, 2.0)]
    last = checkpoint_file.read(tmp_path / "study" / "checkpoints" / f"1-{EPOCHS}.ckpt")
    assert same(last["kept"], by_hand(tmp_path / "hand", started)["kept"])


def test_a_gang_may_meet_again_in_the_same_attempt() -> None:
    def twice(trial: Any) -> None:  # noqa: ANN401
        sums = []
        for _ in range(2):
            with wide.gang(trial) as gang:
                sums.append(gang.mean(trial.rank))
        assert sums == [0.5, 0.5]
        train(trial)

    assert len(best_of(tuned(twice)).values) == EPOCHS


def test_tensors_go_by_the_interface_that_leads_to_the_others() -> None:
    assert wide._interface("127.0.0.1:1") == LOOPBACK
    assert wide._interface("nowhere.invalid:1") == "", "then gloo finds one itself"


@pytest.mark.parametrize("size", [2, 3])
def test_processes_share_each_batch_of_the_same_order_and_their_weights_make_it_whole(
    size: int,
) -> None:
    def batches(rank: int, size: int) -> list[tuple[set[int], float]]:
        trial = SimpleNamespace(rank=rank, size=size, seed=4, device="cpu")
        parts = wide.Gang(trial, torch.device("cpu")).batches(31, 15, epoch=2)
        return [(set(rows.tolist()), weight) for rows, weight in parts]

    whole = batches(0, 1)
    assert [len(rows) for rows, _ in whole] == [15, 15, 1]
    assert [weight for _, weight in whole] == [1.0, 1.0, 1.0]
    shared = [batches(rank, size) for rank in range(size)]
    for (rows, _), *parts in zip(whole, *shared, strict=True):
        assert set().union(*(part for part, _ in parts)) == rows
        assert sum(weight for _, weight in parts) == pytest.approx(size)
        for part, weight in parts:
            # Who has no row of a batch goes along with one that does not count.
            assert weight == pytest.approx(size * len(part) / len(rows)) or weight == 0.0


def test_a_learning_rate_follows_the_width_by_a_rule() -> None:
    assert wide.scaled_lr(0.1, 4.0) == pytest.approx(0.4)
    assert wide.scaled_lr(0.1, 4.0, "sqrt") == pytest.approx(0.2)
    assert wide.scaled_lr(0.1, 0.5) == 0.1
    with pytest.raises(pl.TrialError, match="say 'linear' or 'sqrt'"):
        wide.scaled_lr(0.1, 4.0, "cubic")


def test_each_process_of_a_gang_has_one_slots_threads(tmp_path: Path) -> None:
    result = tuned(train)
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

    result = tuned(mortal, files=tmp_path / "study")
    ended = [step.event for step in result.log if isinstance(step.event, e.Ended)]
    assert [event.cause for event in ended] == [e.Cause.FAILED, e.Cause.FINISHED]
    assert ended[0].note.startswith("process 1 of its 2 was ended by SIGKILL")
    assert [launch.width for launch in launches(result)] == [2.0, 2.0]
    assert len(best_of(result).values) == EPOCHS
    assert gone({int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()})
