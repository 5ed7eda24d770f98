"""GPUs that vanish while a study trains on them, and come back. The list of GPUs is a file's."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from process_engines import list_forkservers, make_spec

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.engines.process.checkpoint_files import CheckpointFiles
from paceline.engines.process.engine import ProcessEngine
from paceline.engines.process.local.devices import Gpu, LocalDevices
from paceline.engines.process.local.worker_pool import ForkServerPool
from paceline.engines.process.supervisor import Timeouts
from paceline.testing.engine_driver import FAR, WHY, EngineDriver, StubAdvisor, make_open

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Listed(LocalDevices, frozen=True):
    """GPUs that are there while a file names them."""

    def list_gpus(self) -> Sequence[Gpu]:
        return [Gpu(name, 1 << 30) for name in Path(self.mps).read_text().split()]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[EngineDriver]:
    """An engine on two of three GPUs."""
    list_of_gpus = tmp_path / "gpus"
    list_of_gpus.write_text("a b c")
    devices = Listed(2, 2, ("a", "b", "c"), (1 << 30,) * 3, str(list_of_gpus))
    pool = ForkServerPool(beats, devices.thread_limits())
    timeouts = Timeouts(grace_s=1.0, look_s=0.02)
    files = CheckpointFiles(tmp_path)
    engine = ProcessEngine(
        make_spec(), pool, devices, files=files, advisor=StubAdvisor(), timeouts=timeouts
    )
    driven = EngineDriver(engine, 0.02)
    driven.apply(*(make_open(trial, {"list": str(list_of_gpus)}) for trial in (0, 1)))
    yield driven
    engine.close()
    assert list_forkservers() == []


def beats(trial: Any) -> None:  # noqa: ANN401
    """Train fast, for ever; break where the GPU is gone."""
    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    for _ in trial.epochs():
        time.sleep(0.005)
        if trial.id and gpu not in Path(trial["list"]).read_text():
            raise RuntimeError("CUDA error: unspecified launch failure")
        trial.report(loss=1.0, gpu=ord(gpu))


def capacity(driver: EngineDriver) -> list[tuple[int, ...]]:
    return [event.slots for event in driver.list_events(e.CapacityChanged)]


def test_a_gpu_that_vanishes_takes_its_slot_and_its_attempt_along(
    driver: EngineDriver, tmp_path: Path
) -> None:
    driver.apply(driver.make_launch(0, goal=FAR), driver.make_launch(1, trial=1, goal=FAR))
    driver.wait_for_report(0, 2)
    driver.wait_for_report(1, 2)
    (tmp_path / "gpus").write_text("b c")
    ended = driver.wait_for_end(0)
    assert (ended.cause, ended.note) == (e.Cause.LOST, "its GPU is gone")
    assert capacity(driver)[-1] == (1,)
    seen = driver.list_reports(1)[-1][0]
    driver.wait_for_report(1, seen + 3)
    assert [event.attempt for event in driver.list_events(e.Ended)] == [0]


def test_an_error_on_a_lost_gpu_costs_no_retry(driver: EngineDriver, tmp_path: Path) -> None:
    driver.apply(driver.make_launch(0, goal=FAR), driver.make_launch(1, trial=1, goal=FAR))
    driver.wait_for_report(1, 2)
    (tmp_path / "gpus").write_text("a c")
    ended = driver.wait_for_end(1)
    assert (ended.cause, ended.note) == (e.Cause.LOST, "its GPU is gone")
    assert capacity(driver)[-1] == (0,)


def test_a_gpu_that_comes_back_is_a_slot_again(driver: EngineDriver, tmp_path: Path) -> None:
    (tmp_path / "gpus").write_text("a c")
    driver.wait_for(lambda: capacity(driver)[-1] == (0,), "a slot less")
    (tmp_path / "gpus").write_text("a b c")
    driver.wait_for(lambda: capacity(driver)[-1] == (0, 1), "the slot again")


def test_more_slots_are_present_gpus_that_are_not_in_use(
    driver: EngineDriver, tmp_path: Path
) -> None:
    driver.apply(d.Retire(slots=(0,), why=WHY))
    driver.apply(d.Provide(slots=1, why=WHY))
    driver.wait_for(lambda: capacity(driver)[-1] == (1, 0), "the slot again")
    driver.apply(d.Provide(slots=9, why=WHY))
    driver.wait_for(lambda: capacity(driver)[-1] == (1, 0, 2), "the third GPU")
    driver.apply(
        driver.make_launch(0, goal=2), driver.make_launch(1, goal=2), driver.make_launch(2, goal=2)
    )
    for attempt in (0, 1, 2):
        driver.wait_for_end(attempt)
    gpus = [report.metrics["gpu"] for report in driver.list_events(e.Reported) if report.epoch == 1]
    assert sorted(map(int, filter(None, gpus))) == [ord("a"), ord("b"), ord("c")]
