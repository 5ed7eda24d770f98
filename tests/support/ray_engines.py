"""Engines on a Ray cluster for tests, and a driver that waits for them as long as it takes."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from process_engines import make_spec
from waiting import LIMIT_S, wait_for

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.engines.process.checkpoint_files import CheckpointFiles
from paceline.engines.process.ray.session import RayEngine, RaySession
from paceline.engines.process.supervisor import Timeouts
from paceline.testing.engine_driver import EngineDriver, StubAdvisor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.ports import Advisor, Storage
    from paceline.core.values import StudySpec
    from paceline.core.views import EngineView
    from paceline.engines.process.ray.config import Ray

_TIMEOUTS = Timeouts(grace_s=1.0)


def make_engine(
    train: Callable[[Any], Any],
    folder: Path,
    cluster: Ray,
    *,
    storage: Storage | None = None,
    cache_bytes: int | None = None,
    spec: StudySpec | None = None,
    unseen: bool = False,
) -> RayEngine:
    """Return an engine whose files are in a folder, on the cluster this process is connected to.

    A folder that is `unseen` is one that nodes do not find.
    """
    files = CheckpointFiles(folder, storage, cache_bytes)
    if unseen:
        files.checkpoints.rmdir()
    return RayEngine(
        spec or make_spec(),
        RaySession(cluster, train, files),
        files=files,
        advisor=StubAdvisor(),
        timeouts=_TIMEOUTS,
    )


def place(launch: d.Launch, *slots: int) -> d.Launch:
    """Return a launch on other slots, one process on each."""
    return replace(launch, slots=slots, width=float(len(slots)))


def remove_lost_disk(disk: Path, node: str) -> None:
    """Delete the folder of a lost node, which a real machine would have taken along."""
    (folder,) = disk.glob(f"*-{node}")

    def is_gone() -> bool:
        # Processes of the node may write for a moment longer.
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    wait_for(is_gone, "the processes of the lost node to end")


class RayDriver(EngineDriver):
    """A driver that waits for an event for LIMIT_S, however many others come before."""

    def wait_for(self, met: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not met():
            events = self.engine.wait(1.0) or ()
            self.events += events
            self.clock_readings.append(self.engine.now)
            for event in events:
                self._apply(event)
            assert time.monotonic() < deadline, (
                f"waited {LIMIT_S:g} s in vain for {what}; last events: {self.events[-9:]}"
            )

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots of the last CapacityChanged."""
        return self.capacity.slots

    @property
    def capacity(self) -> e.CapacityChanged:
        """The last CapacityChanged."""
        return self.list_events(e.CapacityChanged)[-1]

    def wait_for_slots(self, count: int) -> None:
        """Wait until the engine has exactly this number of slots."""
        self.wait_for(lambda: len(self.slots) == count, f"{count} slots")

    def last_metrics(self, attempt: int) -> dict[str, float | None]:
        """Return the metrics of an attempt's last report."""
        reports = self.list_events(e.Reported)
        return [dict(event.metrics) for event in reports if event.attempt == attempt][-1]


class LockstepEngine(RayEngine):
    """An engine whose attempts are never more than one epoch ahead of the driver.

    An attempt begins its next epoch when the driver has seen the report of the last one, has
    decided, and every order has arrived on the attempt's node. So an order reaches the attempt in
    the epoch after the report that caused it, on the slowest machine too.
    """

    def __init__(self, session: RaySession, files: CheckpointFiles, advisor: Advisor) -> None:
        super().__init__(make_spec(), session, files=files, advisor=advisor, timeouts=_TIMEOUTS)
        self._permits = make_permit_folder(files)
        self._next_epochs: dict[int, int] = {}

    def apply(self, step: d.Step, study: EngineView) -> None:
        for decision in step.decisions:
            if isinstance(decision, d.Launch):
                self._next_epochs.setdefault(decision.attempt, decision.start + 1)
        super().apply(step, study)

    def wait(self, timeout_s: float | None = None) -> Sequence[e.AnyEvent] | None:
        import ray

        if not self._closed:
            ray.get(self._session.pool.flush(), timeout=LIMIT_S)
        for attempt, epoch in self._next_epochs.items():
            (self._permits / f"attempt-{attempt}-epoch-{epoch}").touch()
        events = super().wait(LIMIT_S if timeout_s is None else timeout_s)
        for event in events or ():
            if isinstance(event, e.Reported):
                self._next_epochs[event.attempt] = event.epoch + 1
        return events


def make_permit_folder(files: CheckpointFiles) -> Path:
    """Return the folder of a LockstepEngine's permits."""
    folder = files.logs.parent / "permits"
    folder.mkdir(exist_ok=True)
    return folder


def wait_for_permit(permits: Path, epoch: int) -> None:
    """Wait, in a training function, until the LockstepEngine permits an epoch."""
    # The standard output of a worker process is the log of its attempt.
    attempt = Path(os.readlink("/proc/self/fd/1")).stem
    while not (permits / f"{attempt}-epoch-{epoch}").exists():
        time.sleep(0.002)
