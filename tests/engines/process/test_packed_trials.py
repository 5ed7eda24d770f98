"""Packed trials on this machine: several on one slot, each in its process, and room for all."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from machine_bench import MachineBench, ScriptedPolicy

import paceline as pl
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.engines.process.local.devices import Gpu, LocalDevices, find_devices, select_visible
from paceline.worker.memory_usage import is_out_of_memory

if TYPE_CHECKING:
    from pathlib import Path


def tuned(train: Any, **options: Any) -> pl.Result:  # noqa: ANN401
    """Run two trials that share one slot."""
    return pl.tune(
        train,
        **{
            "space": {"a": pl.grid([1, 2])},
            "metric": "loss",
            "mode": "min",
            "epochs": 3,
            "policy": "fifo",
            "generator": "grid",
            "curves": "last",
            "slots": "cpu:1",
            "pack": 2,
            **options,
        },
    )


def launches(result: pl.Result) -> list[d.Launch]:
    made = (decision for step in result.log for decision in step.decisions)
    return [decision for decision in made if isinstance(decision, d.Launch)]


def ends(result: pl.Result) -> list[e.Ended]:
    return [step.event for step in result.log if isinstance(step.event, e.Ended)]


def test_two_trials_share_a_core_at_the_same_time(tmp_path: Path) -> None:
    def meets(trial: Any) -> None:  # noqa: ANN401
        for epoch in trial.epochs():
            (tmp_path / f"{trial['a']}-{epoch}").touch()
            # Neither goes on before the other has come as far: in turns they never would.
            while len(list(tmp_path.glob(f"*-{epoch}"))) < 2:
                time.sleep(0.001)
            trial.report(loss=1.0, pid=os.getpid(), threads=int(os.environ["OMP_NUM_THREADS"]))

    result = tuned(meets)
    assert [(launch.slots, launch.width) for launch in launches(result)] == [((0,), 0.5)] * 2
    reports = [step.event for step in result.log if isinstance(step.event, e.Reported)]
    assert len({report.metrics["pid"] for report in reports}) == 2
    threads = find_devices("cpu:1").threads(0.5)
    assert {report.metrics["threads"] for report in reports} == {threads}
    assert {end.cause for end in ends(result)} == {e.Cause.FINISHED}


def test_a_trial_out_of_memory_on_a_shared_slot_gets_a_whole_slot_and_loses_no_retry() -> None:
    def greedy(trial: Any) -> None:  # noqa: ANN401
        steps = trial.keep(steps=[0])
        for epoch in trial.epochs():
            if trial["a"] == 2 and epoch == 1 and trial.width < 1:
                raise MemoryError("no room for the second batch")
            steps[0] += 1
            trial.report(loss=1.0 / steps[0])

    result = tuned(greedy, retries=0)
    crowded = [end for end in ends(result) if end.cause is e.Cause.CROWDED]
    assert [end.note.splitlines()[-1] for end in crowded] == [
        "MemoryError: no room for the second batch"
    ]
    assert [launch.width for launch in launches(result)] == [0.5, 0.5, 1.0]
    assert [len(trial.values) for trial in result.trials] == [3, 3]
    assert [trial.failures for trial in result.trials] == [0, 0]
    assert "runs out of memory on a shared slot" in result.story(1)


def test_a_trial_out_of_memory_on_a_whole_slot_fails() -> None:
    def greedy(trial: Any) -> None:  # noqa: ANN401
        for _ in trial.epochs():
            if trial["a"] == 2:
                raise MemoryError
            trial.report(loss=1.0)

    result = tuned(greedy, retries=0)
    causes = [end.cause for end in ends(result)]
    assert sorted(causes) == [e.Cause.CROWDED, e.Cause.FAILED, e.Cause.FINISHED]
    assert [trial.status for trial in result.trials] == ["finished", "failed"]


def test_a_packed_trial_that_the_kernel_ends_is_tried_on_a_whole_slot() -> None:
    def taken(trial: Any) -> None:  # noqa: ANN401
        for _ in trial.epochs():
            if trial["a"] == 2 and trial.width < 1:
                os.kill(os.getpid(), signal.SIGKILL)
            trial.report(loss=1.0)

    result = tuned(taken, retries=0)
    (crowded,) = [end for end in ends(result) if end.cause is e.Cause.CROWDED]
    assert "SIGKILL, perhaps for want of memory" in crowded.note
    assert [trial.status for trial in result.trials] == ["finished", "finished"]


@pytest.mark.parametrize("pack", [1, 2])
def test_memory_is_in_the_first_report_if_trials_may_share_slots(pack: int) -> None:
    def holds(trial: Any) -> None:  # noqa: ANN401
        block = bytearray(os.urandom(1 << 20)) * 64
        for _ in trial.epochs():
            trial.report(loss=float(block[0]))

    result = tuned(holds, pack=pack)
    reports = [step.event for step in result.log if isinstance(step.event, e.Reported)]
    slot = LocalDevices(1, 1).slot_bytes(0)
    for report in reports:
        assert set(report.metrics) == {"loss"}
        if pack > 1 and report.epoch == 1:
            assert (64 << 20) / slot < report.memory < (1 << 30) / slot
        else:
            assert report.memory == 0.0


@pytest.mark.parametrize(
    ("error", "is_so"),
    [
        (MemoryError(), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("memory"), False),
    ],
)
def test_errors_that_mean_too_little_memory_are_known(error: Exception, is_so: bool) -> None:
    assert is_out_of_memory(error) is is_so


def widths(decided: tuple[d.AnyDecision, ...]) -> list[float]:
    return [each.width for each in decided if isinstance(each, d.Launch)]


def test_what_the_first_epoch_takes_of_memory_is_the_least_width_from_then_on() -> None:
    bench = MachineBench(ScriptedPolicy(), [{"a": a} for a in range(6)], slots=2, pack=4)
    assert widths(bench.first) == [0.25] * 6
    bench = MachineBench(ScriptedPolicy(), [{"a": a} for a in range(9)], slots=1, pack=4)
    assert widths(bench.first) == [0.25] * 4
    heavy = e.Reported(at=1.0, attempt=0, epoch=1, metrics={"loss": 1.0}, seconds=1.0, memory=0.4)
    bench.say(heavy)
    for attempt in (1, 2):
        decided = bench.say(e.Ended(at=2.0, attempt=attempt, cause=e.Cause.FINISHED))
    # Half of the slot is free. Nobody knows what the next one takes: as much as the heaviest.
    assert widths(decided) == [0.5]


def test_a_crowded_trial_waits_for_a_whole_slot() -> None:
    bench = MachineBench(ScriptedPolicy(), [{"a": 1}, {"a": 2}], slots=1, pack=2)
    assert widths(bench.first) == [0.5, 0.5]
    assert widths(bench.say(e.Ended(at=1.0, attempt=1, cause=e.Cause.CROWDED))) == []
    assert widths(bench.say(e.Ended(at=2.0, attempt=0, cause=e.Cause.FINISHED))) == [1.0]
    assert bench.state.trials[1].failures == 0


def test_trials_that_share_a_gpu_see_the_same_one_and_its_service() -> None:
    devices = LocalDevices(2, 16, ("gpu-a", "gpu-b"), (1 << 30, 2 << 30), "/run/mps")
    shared = devices.variables((1,), 0.25, 0)
    assert shared["CUDA_VISIBLE_DEVICES"] == "gpu-b"
    assert shared["CUDA_MPS_PIPE_DIRECTORY"] == "/run/mps"
    assert shared["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert shared["OMP_NUM_THREADS"] == "2"
    assert devices.slot_bytes(1) == 2 << 30
    whole = devices.variables((1,), 1.0, 0)
    assert not [name for name in whole if "MPS" in name]
    gang = [devices.variables((0, 1), 2.0, rank) for rank in (0, 1)]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in gang] == ["gpu-a", "gpu-b"]
    assert {each["OMP_NUM_THREADS"] for each in gang} == {"8"}


@pytest.mark.parametrize(
    ("told", "left"),
    [
        (None, "abc"),
        ("", ""),
        ("-1", ""),
        ("2,0", "ca"),
        ("GPU-b", "b"),
        ("1,7,0", "b"),
        ("0,0", "a"),
        ("GPU-", ""),
    ],
)
def test_a_study_keeps_to_the_gpus_its_driver_may_see(told: str | None, left: str) -> None:
    gpus = [Gpu(f"GPU-{name}", 1) for name in "abc"]
    assert select_visible(gpus, told) == [Gpu(f"GPU-{name}", 1) for name in left]
