"""Process engines for tests: training functions, engines with a driver, and their processes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from waiting import wait_for

from paceline.core.values import Part, StudySpec
from paceline.engines.process.checkpoint_files import CheckpointFiles
from paceline.engines.process.engine import ProcessEngine
from paceline.engines.process.local.devices import LocalDevices
from paceline.engines.process.local.worker_pool import ForkServerPool
from paceline.engines.process.supervisor import Timeouts
from paceline.testing.engine_driver import (
    FAR,
    EngineDriver,
    StubAdvisor,
    make_open,
)
from paceline.testing.simulations import TrainingProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paceline.core import decisions as d
    from paceline.core.ports import Advisor, Workload


def make_training_function(workload: Workload) -> Callable[[Any], None]:
    """Return a training function that trains as a workload says, in real time."""

    def train(trial: Any) -> None:  # noqa: ANN401
        done = trial.keep(done=[0, 0.0])
        for _ in trial.epochs():
            setting = {name: trial[name] for name in trial.config}
            outcome: Any = workload.advance(TrainingProgress(*done), setting)
            time.sleep(outcome.seconds)
            if hasattr(outcome, "note"):
                raise RuntimeError(outcome.note)
            done[:] = outcome.state
            trial.report(outcome.metrics)
            if outcome.last:
                return

    return train


def make_spec() -> StudySpec:
    return StudySpec(
        name="local",
        metric="loss",
        mode="min",
        epochs=FAR,
        policy=Part("given"),
        generator=Part("given"),
    )


def make_engine(
    train: Callable[[Any], Any], files: Path, advisor: Advisor | None = None, **timeouts: float
) -> ProcessEngine:
    devices = LocalDevices(2, 2)
    pool = ForkServerPool(train, devices.thread_limits())
    return ProcessEngine(
        make_spec(),
        pool,
        devices,
        files=CheckpointFiles(files),
        advisor=advisor,
        timeouts=Timeouts(**{"grace_s": 1.0, **timeouts}),
    )


def list_forkservers() -> list[int]:
    """Return the running fork servers of this process."""
    mine = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    pids = [int(pid) for text in mine for pid in text.split()]
    return [pid for pid in pids if b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def wait_for_exit(pids: set[int]) -> None:
    """Wait until none of these processes runs; a process that is only to be reaped does not run."""
    wait_for(lambda: not any(map(is_running, pids)), f"the exit of processes {pids}")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def driven(tmp_path: Path) -> Iterator[Callable[..., EngineDriver]]:
    """Make engines with a driver, and close them after the test."""
    engines: list[ProcessEngine] = []

    def make(
        train: Callable[[Any], Any], *configs: dict[str, Any], **timeouts: float
    ) -> EngineDriver:
        engines.append(make_engine(train, tmp_path, StubAdvisor(), **timeouts))
        driver = EngineDriver(engines[-1], 0.02)
        driver.apply(*(make_open(trial, config) for trial, config in enumerate(configs)))
        return driver

    yield make
    for engine in engines:
        engine.close()
    assert list_forkservers() == []
    assert list((tmp_path / "checkpoints").glob("*.meeting")) == []


def widen(launch: d.Launch) -> d.Launch:
    """Return a launch on both slots."""
    return replace(launch, slots=(0, 1), width=2.0)


def train_forever(trial: Any) -> None:  # noqa: ANN401
    """Train quickly, without end, and count the epochs."""
    count = trial.keep(count=[0])
    for _ in trial.epochs():
        time.sleep(0.02)
        count[0] += 1
        trial.report(loss=1.0 / count[0], pid=os.getpid())
