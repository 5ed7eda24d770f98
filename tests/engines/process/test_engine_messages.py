"""The process engine without processes: what it sends to workers, and how it reads their exits."""

from __future__ import annotations

import itertools
import signal
from typing import TYPE_CHECKING

import pytest
from fake_pool import FakePool
from msgspec.structs import replace
from process_engines import make_spec

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.values import GroupSpec, Part
from paceline.engines.process.checkpoint_files import CheckpointFiles
from paceline.engines.process.clock import Clock
from paceline.engines.process.engine import ProcessEngine
from paceline.engines.process.local.devices import LocalDevices
from paceline.engines.process.providers import SlotsChanged
from paceline.engines.process.supervisor import Timeouts
from paceline.machine.state import StudyState
from paceline.testing.engine_driver import (
    FAR,
    WHY,
    EngineDriver,
    StubAdvisor,
    make_amend,
    make_open,
)
from paceline.worker.forkserver_protocol import WorkerExited
from paceline.worker.protocol import (
    BestLoss,
    CheckpointWritten,
    EpochReport,
    FunctionReturned,
    Release,
    StartAttempt,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def pool() -> FakePool:
    return FakePool()


@pytest.fixture
def engine(pool: FakePool, tmp_path: Path) -> Iterator[ProcessEngine]:
    """An engine with three slots and no process."""
    engine = ProcessEngine(
        make_spec(),
        pool,
        LocalDevices(3, 3),
        files=CheckpointFiles(tmp_path),
        advisor=StubAdvisor(),
        timeouts=Timeouts(last_grace_s=0.0),
    )
    yield engine
    engine.close()


def make_report(epoch: int, loss: float) -> EpochReport:
    return EpochReport(epoch=epoch, metrics={"loss": loss}, seconds=1.0)


def make_saved(epoch: int) -> CheckpointWritten:
    return CheckpointWritten(epoch=epoch, seconds=0.1, bytes=1, digest="")


def list_best(pool: FakePool, worker: int) -> list[float]:
    sent = pool.channels[worker].sent
    return [message.loss for message in sent if isinstance(message, BestLoss)]


def test_a_new_best_loss_is_sent_to_the_other_attempts_once(
    pool: FakePool, engine: ProcessEngine
) -> None:
    driver = EngineDriver(engine, 0.02)
    driver.apply(*(make_open(trial, {}) for trial in range(2)))
    driver.apply(*(driver.make_launch(trial, trial=trial, goal=FAR) for trial in range(2)))
    for epoch, loss in enumerate((0.5, 0.7, 0.4, 0.4), 1):
        pool.post((0, make_report(epoch, loss)))
        driver.wait_for_report(0, epoch)
    assert list_best(pool, 0) == []
    assert list_best(pool, 1) == [0.5, 0.4]
    # A launch carries the best loss: the new attempt is not sent it again.
    driver.apply(driver.make_launch(2, trial=1, goal=FAR))
    pool.post((0, make_report(5, 0.45)))
    driver.wait_for_report(0, 5)
    (start,) = pool.channels[2].sent
    assert isinstance(start, StartAttempt)
    assert start.best == 0.4


def test_an_attempt_that_does_not_report_is_sent_a_limited_number_of_messages(
    pool: FakePool, engine: ProcessEngine
) -> None:
    driver = EngineDriver(engine, 0.02)
    driver.apply(*(make_open(trial, {}) for trial in range(2)))
    driver.apply(*(driver.make_launch(trial, trial=trial, goal=FAR) for trial in range(2)))
    for epoch in range(1, 30):
        pool.post((0, make_report(epoch, 1.0 / epoch)))
        driver.wait_for_report(0, epoch)
    assert len(list_best(pool, 1)) == 16


def test_the_best_loss_goes_to_attempts_of_the_same_study_alone(
    pool: FakePool, engine: ProcessEngine
) -> None:
    groups = tuple(
        GroupSpec(name=name, policy=Part("fifo"), generator=Part("grid")) for name in ("a", "b")
    )
    state = StudyState()
    number = 0

    def apply(event: e.AnyEvent, *decisions: d.AnyDecision) -> None:
        nonlocal number
        made = d.Step(number, event, decisions)
        number = made.after
        for entry in made.entries:
            state.apply(entry)
        engine.apply(made, state)

    apply(e.Opened(at=0.0, spec=replace(make_spec(), groups=groups, share=False)))
    for event in engine.wait() or ():
        apply(event)
    for trial, group in enumerate((0, 1, 1)):
        opened = d.Open(trial=trial, config={}, until=FAR, group=group, why=WHY)
        launch = d.Launch(
            attempt=trial,
            trial=trial,
            start=0,
            source=None,
            goal=FAR,
            save_at=(),
            slots=(trial,),
            width=1.0,
            why=WHY,
        )
        apply(e.Resumed(at=engine.now), opened, launch)
    for worker, loss in ((1, 0.5), (0, 0.3)):
        pool.post((worker, make_report(1, loss)))
        for event in engine.wait() or ():
            apply(event)
    assert [list_best(pool, worker) for worker in range(3)] == [[], [], [0.5]]


def test_the_exit_of_a_worker_ends_its_attempt_after_its_last_message(
    pool: FakePool, engine: ProcessEngine
) -> None:
    driver = EngineDriver(engine, 0.02)
    driver.apply(make_open(0, {}), driver.make_launch(0, goal=FAR))
    pool.post((0, make_report(1, 0.5)), (0, FunctionReturned()), WorkerExited(0, 0))
    assert driver.wait_for_end(0).cause is e.Cause.FINISHED
    assert [type(event) for event in driver.list_attempt_events(0)] == [e.Reported, e.Ended]


def make_driver_at_goal(pool: FakePool, engine: ProcessEngine, *more: EpochReport) -> EngineDriver:
    """Return the driver of an attempt that saved at its goal, which then moves to 4 and back.

    It has reported `more` before the orders reach it.
    """
    driver = EngineDriver(engine, 0.02)
    driver.apply(make_open(0, {}), driver.make_launch(0, goal=2))
    pool.post((0, make_report(1, 0.5)), (0, make_report(2, 0.5)), (0, make_saved(2)))
    pool.post(*((0, report) for report in more))
    driver.wait_for(lambda: bool(driver.list_events(e.Saved)), "a checkpoint")
    driver.apply(make_amend(0, version=1, goal=4))
    driver.apply(make_amend(0, version=2, goal=2))
    return driver


def test_an_attempt_that_trains_past_its_checkpoint_and_its_goal_is_ended_at_once(
    pool: FakePool, engine: ProcessEngine
) -> None:
    driver = make_driver_at_goal(pool, engine)
    pool.post(SlotsChanged(gone=(2,), why="any event"))
    driver.wait_for(lambda: bool(pool.signals), "a signal")
    assert pool.signals == [(0, signal.SIGTERM)]
    pool.post(WorkerExited(0, -signal.SIGTERM))
    assert driver.wait_for_end(0).cause is e.Cause.GOAL


@pytest.mark.parametrize("is_read", [True, False])
def test_an_attempt_that_reported_an_epoch_past_its_goal_saves_before_it_is_ended(
    pool: FakePool,
    engine: ProcessEngine,
    is_read: bool,
) -> None:
    report = make_report(3, 0.5)
    driver = make_driver_at_goal(pool, engine, *([report] if is_read else []))
    if not is_read:
        pool.post((0, report))  # while the orders are on their way
    driver.wait_for_report(0, 3)
    pool.post((0, make_report(4, 0.5)), (0, make_saved(4)))
    driver.wait_for(lambda: len(driver.list_events(e.Saved)) == 2, "a second checkpoint")
    assert Release() not in pool.channels[0].sent
    pool.post(WorkerExited(0, 0))
    assert driver.wait_for_end(0).cause is e.Cause.GOAL
    assert pool.channels[0].sent[-1] == Release()
    assert pool.signals == []


def test_an_attempt_on_a_lost_slot_is_ended_and_costs_no_retry(
    pool: FakePool, engine: ProcessEngine
) -> None:
    driver = EngineDriver(engine, 0.02)
    driver.apply(make_open(0, {}), driver.make_launch(0, goal=FAR))
    pool.post(SlotsChanged(gone=(0,), why="its node is gone"))
    driver.wait_for(lambda: bool(pool.signals), "a signal")
    assert pool.signals == [(0, signal.SIGTERM)]
    pool.post(WorkerExited(0, -signal.SIGTERM))
    ended = driver.wait_for_end(0)
    assert (ended.cause, ended.note) == (e.Cause.LOST, "its node is gone")
    assert driver.list_events(e.CapacityChanged)[-1].slots == (1, 2)


def test_a_checkpoint_dropped_before_its_launch_is_applied_is_not_read(
    pool: FakePool, engine: ProcessEngine
) -> None:
    driver = EngineDriver(engine, 0.02)
    driver.apply(make_open(0, {}))
    driver.apply(d.Drop(checkpoints=((0, 3),), why=WHY))
    driver.apply(driver.make_launch(1, start=3, source=0, goal=FAR))
    (start,) = pool.channels[0].sent
    assert isinstance(start, StartAttempt)
    # No file has this digest: the worker reports the checkpoint as unusable.
    assert (start.checkpoint, start.digest) == ("0-3.ckpt", "dropped")


def test_a_resumed_engine_reports_lost_attempts_and_repeats_open_requests(
    engine: ProcessEngine,
) -> None:
    state = StudyState()
    for entry in (
        e.Opened(at=0.0, spec=make_spec()),
        e.CapacityChanged(at=1.0, slots=(0, 1, 2)),
        d.Open(trial=0, config={}, until=FAR, why=WHY),
        d.Launch(
            attempt=0,
            trial=0,
            start=0,
            source=None,
            goal=FAR,
            save_at=(),
            slots=(0,),
            width=1.0,
            why=WHY,
        ),
        d.AskProposal(number=0, why=WHY),
        d.AskForecast(trial=0, epoch=1, horizons=(5, 9), why=WHY),
        d.WakeAt(at=7.0, trial=0, why=WHY),
        e.Woke(at=6.0),
    ):
        state.apply(entry)
    engine.resume(state)
    assert engine.now >= 6.0
    events: list[e.AnyEvent] = []
    while len(events) < 5:
        events += engine.wait() or ()
    capacity, ended, *answers = events
    assert isinstance(capacity, e.CapacityChanged)
    assert isinstance(ended, e.Ended)
    assert (ended.attempt, ended.cause, ended.note) == (0, e.Cause.LOST, "its driver was gone")
    assert {type(event) for event in answers} == {e.Proposed, e.Forecasted, e.Woke}
    assert all(sooner.at <= later.at for sooner, later in itertools.pairwise(events))


class SettableClock:
    """A monotonic clock that a test moves."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_attempts_do_not_hang_because_the_driver_was_stopped(
    pool: FakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = SettableClock()
    monkeypatch.setattr(
        "paceline.engines.process.engine.Clock", lambda _: Clock(100.0, time.monotonic)
    )
    engine = ProcessEngine(
        make_spec(),
        pool,
        LocalDevices(3, 3),
        files=CheckpointFiles(tmp_path),
        timeouts=Timeouts(last_grace_s=0.0, hang_s=40.0),
    )
    driver = EngineDriver(engine, 0.02)
    driver.apply(make_open(0, {}))
    driver.apply(driver.make_launch(0, trial=0, goal=FAR))
    engine.wait(0.0)
    # The driver gets no processor time for an hour, and what the worker has sent is unread.
    time.now += 3600.0
    pool.post((0, make_report(1, 0.5)))
    for _ in range(3):
        engine.wait(0.0)
    assert pool.signals == []
    # From now on the worker is silent, while the driver looks.
    for _ in range(9):
        time.now += 10.0
        engine.wait(0.0)
    assert pool.signals[0] == (0, signal.SIGTERM)
    engine.close()
