"""The Ray engine on a real cluster of several nodes: the same contract as the other engines."""

from __future__ import annotations

import math
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from ray_clusters import RayCluster, connect, find_parent, wait_for_no_workers
from ray_engines import (
    LockstepEngine,
    RayDriver,
    make_engine,
    make_permit_folder,
    place,
    wait_for_permit,
)

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.errors import PacelineWarning, SpecError
from paceline.engines.process.checkpoint_files import CheckpointFiles
from paceline.engines.process.ray.config import Ray
from paceline.engines.process.ray.session import RayEngine, RaySession
from paceline.testing.engine_driver import FAR, WHY, make_open
from paceline.testing.engines import EngineContract
from paceline.testing.simulations import TrainingProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from paceline.core.ports import Advisor, Engine, Workload

# All tests on Ray share one cluster, and so one process of pytest.
pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.usefixtures("settled_cluster")]


@pytest.fixture(scope="module", autouse=True)
def connection(ray_cluster: RayCluster) -> Iterator[None]:
    """Connect once: engines use an open connection and leave it open."""
    with connect(ray_cluster):
        yield


def make_lockstep_function(workload: Workload, permits: Path) -> Callable[[Any], None]:
    """Return a training function that waits for a permit of the driver before each epoch."""

    def train(trial: Any) -> None:  # noqa: ANN401
        done = trial.keep(done=[0, 0.0])
        for epoch in trial.epochs():
            wait_for_permit(permits, epoch + 1)
            setting = {name: trial[name] for name in trial.config}
            outcome: Any = workload.advance(TrainingProgress(*done), setting)
            if hasattr(outcome, "note"):
                raise RuntimeError(outcome.note)
            done[:] = outcome.state
            trial.report(outcome.metrics)
            if outcome.last:
                return

    return train


class TestRayEngine(EngineContract):
    """The whole contract, with worker processes on several nodes."""

    epoch_s = 0.15
    # Run by `make test`; the others test code that is the same on one machine, and are slow here.
    smoke = (
        "test_every_launch_is_answered_by_exactly_one_ended",
        "test_a_requested_checkpoint_is_saved_or_missed",
        "test_a_checkpoint_is_continued_with_its_epoch_and_its_values",
        "test_a_schedule_is_followed_and_so_is_an_amended_path",
        "test_every_request_is_answered_by_its_key",
        "test_a_request_for_slots_is_answered",
        "test_close_ends_all_events_and_all_processes",
    )

    @pytest.fixture(autouse=True)
    def _folder(self, ray_cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.ray_cluster = ray_cluster
        self.folders = tmp_path_factory

    def make(self, workload: Workload, advisor: Advisor) -> Engine:
        files = CheckpointFiles(self.folders.mktemp("study"))
        train = make_lockstep_function(workload, make_permit_folder(files))
        return LockstepEngine(RaySession(Ray(cpus=2), train, files), files, advisor)

    def left_over(self) -> list[int]:
        wait_for_no_workers(self.ray_cluster)
        return []


@pytest.fixture
def drive(tmp_path: Path, ray_cluster: RayCluster) -> Iterator[Callable[..., RayDriver]]:
    """Make engines with a driver; close them afterwards, and see that no process is left."""
    engines: list[RayEngine] = []

    def start(train: Callable[[Any], Any], cluster: Ray) -> RayDriver:
        engines.append(make_engine(train, tmp_path, cluster))
        driver = RayDriver(engines[-1], 0.05)
        driver.apply(make_open(0, {"a": 1}))
        return driver

    yield start
    for engine in engines:
        engine.close()
    wait_for_no_workers(ray_cluster)


def train_forever(trial: Any) -> None:  # noqa: ANN401
    """Train without end, count the epochs, and report the process and its GPU."""
    count = trial.keep(count=[0])
    for _ in trial.epochs():
        time.sleep(0.02)
        count[0] += 1
        gpu = os.environ["CUDA_VISIBLE_DEVICES"] or "-1"
        trial.report(
            loss=1.0 / count[0],
            rank=trial.rank,
            size=trial.size,
            gpu=float(gpu),
            pid=os.getpid(),
            forkserver=os.getppid(),
        )


def get_pid(driver: RayDriver, attempt: int, metric: str) -> int:
    """Return a process that an attempt has reported."""
    return int(driver.last_metrics(attempt)[metric] or 0)


def test_a_killed_worker_fails_its_attempt_and_its_fork_server_stays(
    drive: Callable[..., RayDriver],
) -> None:
    driver = drive(train_forever, Ray(cpus=2))
    driver.apply(driver.make_launch(0, goal=FAR))
    driver.wait_for_report(0, 2)
    os.kill(get_pid(driver, 0, "pid"), signal.SIGKILL)
    ended = driver.wait_for_end(0)
    assert ended.cause is e.Cause.FAILED
    assert "SIGKILL" in ended.note
    before = get_pid(driver, 0, "forkserver")
    driver.apply(place(driver.make_launch(1, goal=2), 0))
    assert driver.wait_for_end(1).cause is e.Cause.GOAL
    assert get_pid(driver, 1, "forkserver") == before


def test_a_killed_fork_server_costs_its_node_no_slot_and_its_trials_no_retry(
    drive: Callable[..., RayDriver],
) -> None:
    driver = drive(train_forever, Ray(cpus=2))
    driver.apply(place(driver.make_launch(0, goal=FAR), 0))
    driver.wait_for_report(0, 2)
    os.kill(get_pid(driver, 0, "forkserver"), signal.SIGKILL)
    ended = driver.wait_for_end(0)
    assert (ended.cause, ended.note) == (e.Cause.LOST, "all workers of its node were killed")
    driver.apply(place(driver.make_launch(1, goal=2), 0))
    assert driver.wait_for_end(1).cause is e.Cause.GOAL


def test_a_killed_agent_takes_its_slots_along_and_others_come(
    drive: Callable[..., RayDriver],
) -> None:
    driver = drive(train_forever, Ray(cpus=2))
    driver.wait_for_slots(2)
    before = driver.slots
    driver.apply(place(driver.make_launch(0, goal=FAR), before[0]))
    # The first epoch after an improvement is saved, and the agent is killed after that.
    driver.wait_for(lambda: bool(driver.list_events(e.Saved)), "a checkpoint")
    os.kill(find_parent(get_pid(driver, 0, "forkserver")), signal.SIGKILL)
    ended = driver.wait_for_end(0)
    assert (ended.cause, ended.note) == (e.Cause.LOST, "its node is gone")
    driver.wait_for_slots(2)
    # A slot's number never means another place.
    assert before[0] not in driver.slots
    saved = max(event.epoch for event in driver.list_events(e.Saved))
    launch = driver.make_launch(1, goal=saved + 2, start=saved, source=0)
    driver.apply(place(launch, driver.slots[-1]))
    assert driver.wait_for_end(1).cause is e.Cause.GOAL


def test_a_launch_on_a_slot_that_is_gone_is_lost(drive: Callable[..., RayDriver]) -> None:
    driver = drive(train_forever, Ray(cpus=2))
    driver.apply(place(driver.make_launch(0, goal=FAR), 99))
    ended = driver.wait_for_end(0)
    assert (ended.cause, ended.note) == (e.Cause.LOST, "its node is gone")


@pytest.mark.slow
def test_slots_that_the_cluster_does_not_have_yet_stay_requested_and_come(
    drive: Callable[..., RayDriver], ray_cluster: RayCluster
) -> None:
    with pytest.warns(PacelineWarning, match="no free GPU now: the study waits"):
        driver = drive(train_forever, Ray(gpus=1))
    assert not any(event.slots for event in driver.list_events(e.CapacityChanged))
    node = ray_cluster.add(num_cpus=1, num_gpus=2)
    driver.wait_for_slots(1)
    driver.apply(d.Provide(slots=1, why=WHY))
    driver.wait_for_slots(2)
    first, second = driver.slots
    driver.apply(
        place(driver.make_launch(0, goal=2), first), place(driver.make_launch(1, goal=2), second)
    )
    driver.wait_for_end(0)
    driver.wait_for_end(1)
    # Each sees the GPU that Ray has given to its slot, and not the other.
    assert {driver.last_metrics(0)["gpu"], driver.last_metrics(1)["gpu"]} == {0.0, 1.0}
    ray_cluster.remove(node)
    driver.wait_for_slots(0)


@pytest.mark.slow
def test_a_gang_on_two_nodes_trains_every_epoch_together(
    drive: Callable[..., RayDriver], ray_cluster: RayCluster
) -> None:
    added = [ray_cluster.add(num_cpus=1, num_gpus=1) for _ in range(2)]
    driver = drive(train_forever, Ray(gpus=2))
    driver.wait_for_slots(2)
    slots = driver.slots
    driver.apply(place(driver.make_launch(0, goal=4), *slots))
    assert driver.wait_for_end(0).cause is e.Cause.GOAL
    assert [epoch for epoch, _ in driver.list_reports(0)] == [1, 2, 3, 4]
    metrics = driver.last_metrics(0)
    assert (metrics["rank"], metrics["size"]) == (0, 2)
    driver.apply(place(driver.make_launch(1, goal=FAR), *slots))
    driver.wait_for_report(1, 2)
    ray_cluster.remove(added.pop())
    ended = driver.wait_for_end(1)
    assert (ended.cause, ended.note) == (e.Cause.LOST, "its node is gone")
    for node in added:
        ray_cluster.remove(node)


def test_a_folder_that_a_node_does_not_see_is_refused(tmp_path: Path) -> None:
    files = CheckpointFiles(tmp_path)
    files.checkpoints.rmdir()
    with pytest.raises(SpecError, match=r"does not see .*: give files=… in a folder"):
        RaySession(Ray(cpus=1), train_forever, files)


def test_a_slot_that_is_given_back_is_free_for_others(drive: Callable[..., RayDriver]) -> None:
    driver = drive(train_forever, Ray(cpus=2))
    driver.wait_for_slots(2)
    first, second = driver.slots
    driver.apply(d.Retire(slots=(second,), why=WHY))
    driver.apply(d.Provide(slots=1, why=WHY))
    # The first answer is the slots there are; then comes the requested one.
    driver.wait_for_slots(1)
    driver.wait_for_slots(2)
    assert driver.slots[0] == first
    assert second not in driver.slots


@pytest.mark.slow
def test_a_study_that_gives_slots_back_withdraws_its_requests(
    drive: Callable[..., RayDriver],
) -> None:
    from ray.util import placement_group_table

    before = placement_group_table().keys()
    # Four slots are there, and two more stay requested.
    driver = drive(train_forever, Ray(cpus=6))
    driver.wait_for_slots(4)
    first, *_, last = driver.slots
    driver.apply(place(driver.make_launch(0, goal=FAR), first), d.Retire(slots=(last,), why=WHY))

    def list_states() -> list[str]:
        table = placement_group_table()
        return sorted(table[name]["state"] for name in table.keys() - before)

    driver.wait_for(lambda: list_states() == ["CREATED"] * 3 + ["REMOVED"] * 3, "three slots alone")


@pytest.mark.slow
def test_a_study_that_has_given_slots_back_replaces_its_last_one_when_the_node_is_lost(
    drive: Callable[..., RayDriver], ray_cluster: RayCluster
) -> None:
    added = ray_cluster.add(num_cpus=1)
    driver = drive(train_forever, Ray())
    driver.wait_for_slots(5)
    before = driver.capacity
    nodes = zip(before.slots, before.nodes, strict=True)
    elsewhere = tuple(slot for slot, node in nodes if not added.node_id.startswith(node))
    assert len(elsewhere) == 4
    driver.apply(d.Retire(slots=elsewhere, why=WHY))
    ray_cluster.remove(added)
    driver.wait_for(lambda: bool({*driver.slots} - {*before.slots}), "a slot on another node")


@pytest.mark.slow
def test_cpus_that_are_free_in_fractions_are_requested_less_and_less_often(
    drive: Callable[..., RayDriver],
) -> None:
    import ray
    from ray.util import placement_group, placement_group_table, remove_placement_group

    others = placement_group([{"CPU": 0.5}] * 2, strategy="STRICT_SPREAD")
    ray.get(others.ready())
    try:
        # One and a half CPUs are free on each node.
        driver = drive(train_forever, Ray())
        driver.wait_for_slots(2)
        driver.apply(driver.make_launch(0, goal=FAR))
        began, before = time.monotonic(), placement_group_table().keys()
        driver.wait_for_report(0, 300)
        requested = len(placement_group_table().keys() - before)
        # A request at every check would be more than one a second.
        assert requested <= 1 + math.log2(1 + (time.monotonic() - began) / 2)
    finally:
        remove_placement_group(others)
    driver.wait_for_slots(4)
