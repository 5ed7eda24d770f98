"""Wide trials on nodes of a cluster that share no folder: a gang connects, trains and resumes."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from process_engines import make_spec
from ray_clusters import RayCluster, connect, wait_for_no_workers
from ray_engines import RayDriver, make_engine, place, remove_lost_disk
from small_networks import is_equal
from wide_training import EPOCHS, LR, train, train_by_hand

import paceline as pl
from paceline.api.stored import open_existing, replay_log
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.engines.process.ray.config import Ray
from paceline.store.storage import FolderStorage
from paceline.testing.engine_driver import FAR, WHY, make_open
from paceline.worker import checkpoint_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from paceline.engines.process.ray.session import RayEngine

# All tests on Ray share one cluster, and so one process of pytest.
pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.usefixtures("settled_cluster")]


@pytest.fixture(scope="module", autouse=True)
def connection(ray_cluster: RayCluster) -> Iterator[None]:
    """Connect once: engines use an open connection and leave it open."""
    with connect(ray_cluster):
        yield


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Return the folder in which each node keeps a folder of its own."""
    return tmp_path / "disk"


@pytest.fixture
def drive(
    ray_cluster: RayCluster, disk: Path, tmp_path: Path
) -> Iterator[Callable[..., RayDriver]]:
    """Make engines with a driver on three slots of two nodes; close them afterwards."""
    engines: list[RayEngine] = []

    def start(train: Callable[[Any], Any], config: dict[str, Any]) -> RayDriver:
        engine = make_engine(
            train,
            tmp_path / "study",
            Ray(cpus=3, disk=str(disk)),
            storage=FolderStorage(tmp_path / "storage"),
            spec=replace(make_spec(), span=3),
        )
        engines.append(engine)
        driver = RayDriver(engine, 0.05)
        driver.wait_for_slots(3)
        driver.apply(make_open(0, config))
        return driver

    yield start
    for engine in engines:
        engine.close()
    wait_for_no_workers(ray_cluster)
    assert list(disk.iterdir()) == []


def sort_slots(driver: RayDriver) -> list[int]:
    """Return the slots by node: the first is on one node, the last on another."""
    nodes = dict(zip(driver.slots, driver.capacity.nodes, strict=True))
    assert len(set(nodes.values())) == 2
    return sorted(nodes, key=nodes.__getitem__)


def find_checkpoints(folder: Path) -> set[str]:
    """Return the names of all checkpoints in a folder and below."""
    return {path.name for path in folder.rglob("*.ckpt")}


def count_epochs(trial: Any) -> None:  # noqa: ANN401
    """Connect the gang, count epochs, and print the process and its first count."""
    trial.meeting()
    count = trial.keep(count=[0])
    sys.stdout.write(f"process {trial.rank} of {trial.size} starts at {count[0]}\n")
    for _ in trial.epochs():
        time.sleep(0.01)
        count[0] += 1
        trial.report(loss=1.0 / count[0])


def read_output(files: Path, attempt: int) -> set[str]:
    return {*(files / "logs" / f"attempt-{attempt}.log").read_text().splitlines()}


def test_every_node_of_a_gang_fetches_the_checkpoint_and_sends_the_output_of_its_processes(
    drive: Callable[..., RayDriver], disk: Path, tmp_path: Path
) -> None:
    driver = drive(count_epochs, {})
    first, second, last = sort_slots(driver)
    driver.apply(place(driver.make_launch(0, goal=3), first))
    assert driver.wait_for_end(0).cause is e.Cause.GOAL, driver.list_events(e.Ended)
    driver.apply(place(driver.make_launch(1, goal=6, start=3, source=0), last, first, second))
    assert driver.wait_for_end(1).cause is e.Cause.GOAL, driver.list_events(e.Ended)
    assert [value for _, value in driver.list_reports(1)] == [1 / 4, 1 / 5, 1 / 6]
    # The first process writes on its own node; each process has read on its own node.
    both = {"0-3.ckpt", "1-6.ckpt"}
    found = sorted((both & find_checkpoints(node) for node in disk.iterdir()), key=len)
    assert found == [{"0-3.ckpt"}, both]
    assert find_checkpoints(tmp_path / "study") == set()
    printed = read_output(tmp_path / "study", 1)
    assert printed == {f"process {rank} of 3 starts at 3" for rank in range(3)}
    driver.apply(place(driver.make_launch(2, goal=7, start=6, source=1), first, last))
    assert driver.wait_for_end(2).cause is e.Cause.GOAL
    driver.apply(d.Drop(checkpoints=((0, 3), (1, 6)), why=WHY))
    driver.apply(place(driver.make_launch(3, goal=1), first, last))
    driver.wait_for_end(3)
    assert both.isdisjoint(find_checkpoints(tmp_path)), "a copy was left"


@pytest.mark.slow
def test_a_gang_that_cannot_fetch_its_checkpoint_reports_it_as_unusable_and_does_not_hang(
    drive: Callable[..., RayDriver], tmp_path: Path
) -> None:
    driver = drive(count_epochs, {})
    first, _, last = sort_slots(driver)
    driver.apply(place(driver.make_launch(0, goal=3), first))
    driver.wait_for_end(0)
    # The first node has a copy, and the other node cannot fetch one.
    (tmp_path / "storage" / "0-3.ckpt").unlink()
    driver.apply(place(driver.make_launch(1, goal=6, start=3, source=0), first, last))
    ended = driver.wait_for_end(1)
    assert ended.cause is e.Cause.LOST
    assert "0-3.ckpt cannot be read from" in ended.note
    assert len(driver.list_events(e.Spoiled)) == 1


# An upload may be under way when the node is lost.
@pytest.mark.filterwarnings("ignore:.*went with its node before it was published")
@pytest.mark.slow
@pytest.mark.parametrize("leads", [False, True])
def test_a_gang_is_lost_as_a_whole_with_one_of_its_nodes(
    drive: Callable[..., RayDriver], ray_cluster: RayCluster, disk: Path, leads: bool
) -> None:
    driver = drive(count_epochs, {})
    node = ray_cluster.add(num_cpus=1)
    driver.apply(d.Provide(slots=2, why=WHY))
    driver.wait_for_slots(5)
    slot_on = dict(zip(driver.capacity.nodes, driver.slots, strict=True))
    there = slot_on.pop(node.node_id[:8])
    slots = [there, *slot_on.values()] if leads else [*slot_on.values(), there]
    driver.apply(place(driver.make_launch(0, goal=FAR), *slots))
    driver.wait_for_report(0, 2)
    ray_cluster.remove(node)
    ended = driver.wait_for_end(0)
    assert (ended.cause, ended.note) == (e.Cause.LOST, "its node is gone")
    remove_lost_disk(disk, node.node_id)


@pytest.mark.slow
def test_a_network_that_grows_across_nodes_and_shrinks_is_the_same_to_the_last_bit(
    drive: Callable[..., RayDriver], tmp_path: Path
) -> None:
    stages = [(0, 3, 1.0), (3, 6, 2.0), (6, EPOCHS, 1.0)]
    driver = drive(train, {"lr": LR})
    first, _, last = sort_slots(driver)
    for attempt, (start, goal, width) in enumerate(stages):
        source = attempt - 1 if attempt else None
        launch = driver.make_launch(attempt, goal=goal, start=start, source=source)
        # Each stage starts on a node that has not saved the stage before.
        slots = (first, last) if attempt == 1 else (last,)
        assert len(slots) == width
        driver.apply(place(launch, *slots))
        assert driver.wait_for_end(attempt).cause is e.Cause.GOAL, driver.list_events(e.Ended)
    kept = checkpoint_file.read(tmp_path / "storage" / f"2-{EPOCHS}.ckpt")["kept"]
    assert is_equal(kept, train_by_hand(tmp_path / "hand", stages)["kept"])


@pytest.mark.slow
def test_a_study_of_wide_trials_on_nodes_that_share_nothing_ends_like_one_of_narrow_trials(
    disk: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "space": {"lr": pl.grid([LR, LR / 2, LR / 4, LR / 8])},
        "metric": "loss",
        "mode": "min",
        "epochs": 4,
        "generator": "grid",
        "policy": "sha:first=1,eta=2",
        "curves": "last",
    }
    store = f"sqlite:///{tmp_path / 'studies.db'}"
    wide = pl.tune(
        train,
        **options,
        slots=pl.Ray(cpus=3, disk=str(disk)),
        span=3,
        store=store,
        name="wide",
        checkpoints=str(tmp_path / "storage"),
    )
    narrow = pl.tune(train, **options, slots="cpu:2")
    with open_existing(store) as opened:
        log = list(opened.read("wide"))
    launches = [one for step in log for one in step.decisions if isinstance(one, d.Launch)]
    assert {launch.width for launch in launches} == {3.0}
    assert any(launch.source is not None for launch in launches), "no trial was resumed"
    assert not [step for step in log if isinstance(step.event, e.Spoiled)]
    for one, other in zip(wide.trials, narrow.trials, strict=True):
        assert one.config == other.config
        assert one.values == pytest.approx(other.values, rel=1e-4)
    assert replay_log(log).difference is None
