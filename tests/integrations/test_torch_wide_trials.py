"""A torch trial that grows to two processes and shrinks back: the same training, live."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from process_engines import list_forkservers, wait_for_exit
from small_networks import is_equal
from wide_training import EPOCHS, LR, train, train_by_hand, wide

import paceline as pl
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.ports import Demands, Pick, see_nothing
from paceline.core.values import Part, StudySpec
from paceline.engines.loop import run, step
from paceline.engines.process.checkpoint_files import CheckpointFiles
from paceline.engines.process.engine import ProcessEngine
from paceline.engines.process.local.devices import LOOPBACK, LocalDevices
from paceline.engines.process.local.worker_pool import ForkServerPool
from paceline.generators.queued import Queued
from paceline.machine.decider import Parts
from paceline.machine.machine import Machine
from paceline.policies.fifo import Fifo
from paceline.worker import checkpoint_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from paceline.core.ports import Verdict
    from paceline.core.values import TrialId
    from paceline.core.views import StudyView, TrialView


# Load the optimizer code once in the fork server, not in each worker.
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


def tune_wide(train: Callable[[Any], None], **options: Any) -> pl.Result:  # noqa: ANN401
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


def get_best(result: pl.Result) -> pl.TrialResult:
    assert result.best is not None
    return result.best


def list_launches(result: pl.Result) -> list[d.Launch]:
    decisions = (decision for step in result.log for decision in step.decisions)
    return [decision for decision in decisions if isinstance(decision, d.Launch)]


class WidthByEpoch:
    """An allocator: a trial that starts at one of these epochs gets this width."""

    see = staticmethod(see_nothing)

    def __init__(self, widths: dict[int, float]) -> None:
        self._widths = widths

    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        if demands.asking is None:
            return {}
        epoch = study.trials[demands.asking.trial].epoch
        start = max(start for start in self._widths if start <= epoch)
        return {demands.asking.trial: self._widths[start]}


class Stepwise(Fifo):
    """A policy with a goal at each of these epochs, so that no worker runs ahead of an order."""

    def __init__(self, goals: list[int]) -> None:
        self._goals = goals

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        if trial.epoch != trial.goal or trial.epoch == EPOCHS:
            return ()
        until = next(goal for goal in self._goals if goal > trial.epoch)
        return (d.Go(trial=trial.id, until=until, why="the goal is reached"),)

    def next(self, study: StudyView) -> Pick | None:
        pick = super().next(study)
        new = pick is not None and pick.trial is None
        return Pick(None, self._goals[0], "a slot is free") if new else pick


class ResizingMachine(Machine):
    """A machine that resizes its trial at these epochs."""

    def __init__(self, widths: dict[int, float]) -> None:
        policy = Stepwise([*(epoch for epoch in widths if epoch), EPOCHS])
        parts = Parts(policy, Queued(configs=[{"lr": LR}]), WidthByEpoch(widths))
        super().__init__(parts)
        self._left = {epoch: width for epoch, width in widths.items() if epoch}

    def _settle(self, event: e.AnyEvent) -> None:
        for attempt in self.state.attempts.values():
            for epoch in [epoch for epoch in self._left if epoch <= attempt.epoch]:
                width = self._left.pop(epoch)
                self._decider.decide(
                    d.Resize(attempt=attempt.id, width=width, why="the test asks for it")
                )
        super()._settle(event)


def run_resized(files: Path, widths: dict[int, float]) -> tuple[Machine, list[d.Launch]]:
    """Run one trial that is resized to these widths at these epochs; return its launches."""
    options = {"name": "resized", "metric": "loss", "mode": "min", "epochs": EPOCHS, "span": 2}
    parts = {"policy": Part("fifo"), "generator": Part("queued")}
    spec = StudySpec(**options, **parts)  # type: ignore[arg-type]
    devices = LocalDevices(2, 2)
    pool = ForkServerPool(train, devices.thread_limits())
    engine = ProcessEngine(spec, pool, devices, files=CheckpointFiles(files))
    machine = ResizingMachine(widths)
    steps: list[d.Step] = []
    try:
        step(machine, engine, steps.extend, [e.Opened(at=0.0, spec=spec)])
        assert run(machine, engine, steps.extend)
    finally:
        engine.close()
    assert list_forkservers() == []
    decisions = (decision for each in steps for decision in each.decisions)
    return machine, [decision for decision in decisions if isinstance(decision, d.Launch)]


@pytest.mark.slow
def test_a_trial_that_grows_and_shrinks_trains_like_one_of_constant_width(tmp_path: Path) -> None:
    machine, started = run_resized(tmp_path / "live", {0: 1.0, 3: 2.0, 6: 1.0})
    assert [(launch.start, launch.width) for launch in started] == [(0, 1.0), (3, 2.0), (6, 1.0)]
    assert [len(launch.slots) for launch in started] == [1, 2, 1]
    straight, _ = run_resized(tmp_path / "straight", {0: 1.0})
    resized, alone = (list(each.state.trials[0].losses) for each in (machine, straight))
    assert len(resized) == EPOCHS
    assert resized == pytest.approx(alone, rel=1e-4)
    assert alone[-1] < 0.5 * alone[0], (
        "the network has not learned, so the comparison shows nothing"
    )
    # The same epochs at the same widths, ordered by hand: every bit of the state is the same.
    stages = [(0, 3, 1.0), (3, 6, 2.0), (6, EPOCHS, 1.0)]
    expected = train_by_hand(tmp_path / "driver", stages)["kept"]
    last = checkpoint_file.read(tmp_path / "live" / "checkpoints" / f"2-{EPOCHS}.ckpt")
    assert is_equal(last["kept"], expected)


@pytest.mark.slow
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
    started = [(launch.start, launch.goal, launch.width) for launch in list_launches(result)]
    assert started == [(0, 4, 1.0), (4, EPOCHS, 2.0)]
    last = checkpoint_file.read(tmp_path / "study" / "checkpoints" / f"1-{EPOCHS}.ckpt")
    assert is_equal(last["kept"], train_by_hand(tmp_path / "driver", started)["kept"])


@pytest.mark.slow
def test_a_gang_may_connect_again_in_the_same_attempt() -> None:
    def connect_twice(trial: Any) -> None:  # noqa: ANN401
        sums = []
        for _ in range(2):
            with wide.gang(trial) as gang:
                sums.append(gang.mean(trial.rank))
        assert sums == [0.5, 0.5]
        train(trial)

    assert len(get_best(tune_wide(connect_twice)).values) == EPOCHS


def test_tensors_use_the_interface_that_reaches_the_other_processes() -> None:
    assert wide._find_interface("127.0.0.1:1") == LOOPBACK
    assert wide._find_interface("nowhere.invalid:1") == "", "gloo would not choose one itself"


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
            # A process without a row of the batch takes one with weight 0.
            assert weight == pytest.approx(size * len(part) / len(rows)) or weight == 0.0


def test_a_learning_rate_follows_the_width_by_a_rule() -> None:
    assert wide.scaled_lr(0.1, 4.0) == pytest.approx(0.4)
    assert wide.scaled_lr(0.1, 4.0, "sqrt") == pytest.approx(0.2)
    assert wide.scaled_lr(0.1, 0.5) == 0.1
    with pytest.raises(pl.TrialError, match="must be 'linear' or 'sqrt'"):
        wide.scaled_lr(0.1, 4.0, "cubic")


def test_each_process_of_a_gang_has_one_slots_threads(tmp_path: Path) -> None:
    result = tune_wide(train)
    reports = [step.event for step in result.log if isinstance(step.event, e.Reported)]
    assert {report.metrics["threads"] for report in reports} == {1.0}
    assert len({report.metrics["pid"] for report in reports}) == 1


def test_a_killed_process_of_a_gang_costs_a_retry_and_the_study_continues(tmp_path: Path) -> None:
    def train_and_kill(trial: Any) -> None:  # noqa: ANN401
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

    result = tune_wide(train_and_kill, files=tmp_path / "study")
    ended = [step.event for step in result.log if isinstance(step.event, e.Ended)]
    assert [event.cause for event in ended] == [e.Cause.FAILED, e.Cause.FINISHED]
    assert ended[0].note.startswith("process 1 of its 2 was ended by SIGKILL")
    assert [launch.width for launch in list_launches(result)] == [2.0, 2.0]
    assert len(get_best(result).values) == EPOCHS
    wait_for_exit({int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()})
