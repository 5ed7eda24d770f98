"""Nodes that share no folder: checkpoints travel through a storage, output through the agents."""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from ray_clusters import RayCluster, connect, wait_for_no_workers
from ray_engines import RayDriver, make_engine, place, remove_lost_disk
from s3_server import BUCKET, S3Server, run_s3_server

import paceline as pl
from paceline.api.stored import open_existing, replay_log
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.errors import PacelineWarning, SpecError
from paceline.engines.process.checkpoint_files import CheckpointFiles
from paceline.engines.process.ray.config import Ray
from paceline.engines.process.ray.session import RayEngine, RaySession
from paceline.store.storage import FolderStorage, open_storage
from paceline.testing.engine_driver import FAR, WHY, make_open

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from paceline.core.decisions import Step
    from paceline.machine.state import StudyState

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


def count_epochs(trial: Any) -> None:  # noqa: ANN401
    """Train quickly, without end, improve each time, and print that it starts."""
    count = trial.keep(count=[0])
    sys.stdout.write("starts\n")
    for _ in trial.epochs():
        time.sleep(0.01)
        count[0] += 1
        trial.report(loss=1.0 / count[0])


@pytest.fixture
def drive(
    ray_cluster: RayCluster, disk: Path, tmp_path: Path
) -> Iterator[Callable[..., RayDriver]]:
    """Make engines with a driver on three slots of two nodes; close them afterwards."""
    engines: list[RayEngine] = []

    def start(cache_bytes: int | None = None) -> RayDriver:
        cluster, storage = Ray(cpus=3, disk=str(disk)), FolderStorage(tmp_path / "storage")
        folder = tmp_path / "study"
        engine = make_engine(
            count_epochs, folder, cluster, storage=storage, cache_bytes=cache_bytes
        )
        engines.append(engine)
        return start_trial(engine, 3)

    yield start
    for engine in engines:
        engine.close()
    wait_for_no_workers(ray_cluster)
    assert list(disk.iterdir()) == []


def start_trial(engine: RayEngine, slots: int) -> RayDriver:
    """Return a driver with one trial, when the engine has all its slots."""
    driver = RayDriver(engine, 0.05)
    driver.wait_for_slots(slots)
    driver.apply(make_open(0, {}))
    return driver


def choose_slots(driver: RayDriver) -> list[int]:
    """Return one slot of each node."""
    return list(dict(zip(driver.capacity.nodes, driver.slots, strict=True)).values())


def find_checkpoints(folder: Path) -> set[str]:
    """Return the names of all checkpoints in a folder and below."""
    return {path.name for path in folder.rglob("*.ckpt")}


def test_a_trial_continues_on_another_node_and_its_output_comes_to_the_driver(
    drive: Callable[..., RayDriver], disk: Path, tmp_path: Path
) -> None:
    driver = drive()
    first, second = choose_slots(driver)
    driver.apply(place(driver.make_launch(0, goal=3), first))
    assert driver.wait_for_end(0).cause is e.Cause.GOAL
    assert "0-3.ckpt" in find_checkpoints(tmp_path / "storage")
    driver.apply(place(driver.make_launch(1, goal=6, start=3, source=0), second))
    assert driver.wait_for_end(1).cause is e.Cause.GOAL
    assert [value for _, value in driver.list_reports(1)] == [1 / 4, 1 / 5, 1 / 6]
    # Each disk has the checkpoints saved or read there, and the study's own folder has none.
    both = {"0-3.ckpt", "1-6.ckpt"}
    found = sorted((both & find_checkpoints(node) for node in disk.iterdir()), key=len)
    assert found == [{"0-3.ckpt"}, both]
    assert find_checkpoints(tmp_path / "study") == set()
    logs = [tmp_path / "study" / "logs" / f"attempt-{attempt}.log" for attempt in (0, 1)]
    assert [log.read_text() for log in logs] == ["starts\n"] * 2
    driver.apply(d.Drop(checkpoints=((0, 3),), why=WHY))
    driver.apply(
        place(driver.make_launch(2, goal=1), first), place(driver.make_launch(3, goal=1), second)
    )
    for attempt in (2, 3):
        driver.wait_for_end(attempt)
    assert "0-3.ckpt" not in find_checkpoints(tmp_path)


@pytest.mark.slow
def test_a_node_starts_from_its_own_copy_while_there_is_room_for_it(
    drive: Callable[..., RayDriver], tmp_path: Path
) -> None:
    driver = drive()
    first, second = choose_slots(driver)
    driver.apply(place(driver.make_launch(0, goal=3), first))
    driver.wait_for_end(0)
    (tmp_path / "storage" / "0-3.ckpt").unlink()
    driver.apply(place(driver.make_launch(1, goal=4, start=3, source=0), first))
    assert driver.wait_for_end(1).cause is e.Cause.GOAL
    driver.apply(place(driver.make_launch(2, goal=4, start=3, source=0), second))
    assert driver.wait_for_end(2).cause is e.Cause.LOST
    (unusable,) = driver.list_events(e.Spoiled)
    assert "0-3.ckpt cannot be read from" in unusable.note


@pytest.mark.slow
def test_without_room_for_copies_a_change_in_the_storage_is_detected(
    drive: Callable[..., RayDriver], disk: Path, tmp_path: Path
) -> None:
    driver = drive(cache_bytes=0)
    first, _ = choose_slots(driver)
    driver.apply(place(driver.make_launch(0, goal=3), first))
    driver.wait_for_end(0)
    assert "0-3.ckpt" not in find_checkpoints(disk)
    path = tmp_path / "storage" / "0-3.ckpt"
    body = bytearray(path.read_bytes())
    body[-1] ^= 1
    path.write_bytes(body)
    driver.apply(place(driver.make_launch(1, goal=4, start=3, source=0), first))
    assert driver.wait_for_end(1).cause is e.Cause.LOST
    assert "0-3.ckpt is damaged: its digest does not match" in driver.list_events(e.Spoiled)[0].note


@pytest.mark.slow
def test_a_broken_storage_never_yields_a_saved_checkpoint(
    drive: Callable[..., RayDriver], tmp_path: Path
) -> None:
    driver = drive()
    storage = tmp_path / "storage"
    storage.rmdir()
    storage.write_text("not a folder")
    driver.apply(driver.make_launch(0, goal=4))
    with pytest.warns(PacelineWarning, match=r"cannot be written to .* Training goes on"):
        assert driver.wait_for_end(0).cause is e.Cause.GOAL
    assert [epoch for epoch, _ in driver.list_reports(0)] == [1, 2, 3, 4]
    assert driver.list_events(e.Saved) == []
    notes = [missed.note for missed in driver.list_events(e.Missed)]
    assert any("0-4.ckpt cannot be written to" in note for note in notes)


def test_a_disk_without_a_storage_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="needs a storage for checkpoints"):
        RaySession(Ray(disk="/disk"), count_epochs, CheckpointFiles(tmp_path / "study"))


def test_a_storage_that_is_another_one_on_each_node_is_refused(disk: Path, tmp_path: Path) -> None:
    storage = open_storage("memory://somewhere/checkpoints")
    with pytest.raises(SpecError, match=r"memory://.* is another storage than on the driver"):
        make_engine(count_epochs, tmp_path / "study", Ray(cpus=2, disk=str(disk)), storage=storage)
    assert list(disk.iterdir()) == []


class UnknownStorage(FolderStorage):
    """A storage of a kind that nodes have no library for."""


@pytest.mark.slow
def test_a_storage_that_nodes_cannot_open_is_refused(disk: Path, tmp_path: Path) -> None:
    storage = UnknownStorage(tmp_path / "storage")
    with pytest.raises(SpecError, match=r"cannot open .*storage: .*No module named"):
        make_engine(count_epochs, tmp_path / "study", Ray(cpus=2, disk=str(disk)), storage=storage)


def test_a_node_that_does_not_see_the_folder_uses_its_folder_for_temporary_files(
    tmp_path: Path,
) -> None:
    # A name that no other run of this test has on this machine.
    name = f"storage-{uuid4().hex}"
    storage = FolderStorage(tmp_path / name)
    engine = make_engine(
        count_epochs, tmp_path / "study", Ray(cpus=1), storage=storage, unseen=True
    )
    driver = start_trial(engine, 1)
    driver.apply(driver.make_launch(0, goal=2))
    assert driver.wait_for_end(0).cause is e.Cause.GOAL
    engine.close()
    assert "0-2.ckpt" in find_checkpoints(tmp_path / name)
    left = list(Path(tempfile.gettempdir()).glob(f"paceline-{name}-*"))
    assert left == [], "the folder was left behind"


# On nodes that reach an S3 server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with run_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return an address that the driver reaches like the nodes: by the usual variables."""
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/runs"


def add_node(cluster: RayCluster, server: S3Server) -> Any:  # noqa: ANN401 - Ray's class
    """Add a node with one GPU slot that reaches the server."""
    return cluster.add(num_cpus=1, num_gpus=1, env_vars=server.environ)


@pytest.fixture
def gpu_nodes(ray_cluster: RayCluster, server: S3Server) -> Iterator[None]:
    """Have two nodes with one GPU slot each."""
    added = [add_node(ray_cluster, server) for _ in range(2)]
    yield
    for node in added:
        ray_cluster.remove(node)


@pytest.mark.slow
@pytest.mark.usefixtures("gpu_nodes")
def test_a_checkpoint_that_a_lost_node_had_not_published_was_never_saved(
    ray_cluster: RayCluster, server: S3Server, bucket: str, disk: Path, tmp_path: Path
) -> None:
    node = add_node(ray_cluster, server)
    cluster, storage = Ray(gpus=3, disk=str(disk)), open_storage(f"{bucket}/cut")
    engine = make_engine(count_epochs, tmp_path / "study", cluster, storage=storage)
    driver = start_trial(engine, 3)
    slot_on = dict(zip(driver.capacity.nodes, driver.slots, strict=True))
    driver.apply(place(driver.make_launch(9, goal=FAR), slot_on.pop(node.node_id[:8])))
    driver.wait_for(lambda: bool(driver.list_events(e.Saved)), "a published checkpoint")
    with server.silent():

        def has_unpublished() -> bool:
            published = {f"9-{saved.epoch}.ckpt" for saved in driver.list_events(e.Saved)}
            return len(find_checkpoints(disk) - published) > 10

        driver.wait_for(has_unpublished, "checkpoints that are not published")
        ray_cluster.remove(node)
        with pytest.warns(PacelineWarning, match=r"went with its node before it was published"):
            ended = driver.wait_for_end(9)
    assert (ended.cause, ended.note) == (e.Cause.LOST, "its node is gone")
    last = max(saved.epoch for saved in driver.list_events(e.Saved) if saved.attempt == 9)
    launch = driver.make_launch(10, goal=last + 1, start=last, source=9)
    driver.apply(place(launch, slot_on.popitem()[1]))
    assert driver.wait_for_end(10).cause is e.Cause.GOAL
    assert [value for _, value in driver.list_reports(10)] == [1 / (last + 1)]
    engine.close()
    remove_lost_disk(disk, node.node_id)


def make_learner(hold: Path) -> Callable[[Any], None]:
    """Return a random walk at the speed of the learning rate: each value depends on all before."""

    def learn(trial: Any) -> None:  # noqa: ANN401
        state = trial.keep(state={"at": 0.0})
        for epoch in trial.epochs():
            while epoch == 2 and hold.exists():
                time.sleep(0.01)
            state["at"] += trial["lr"] * (1.0 + random.gauss(0.0, 0.1) - state["at"])
            trial.report(loss=abs(1.0 - state["at"]), forkserver=os.getppid())

    return learn


def make_study(folder: Path, **options: Any) -> pl.Study:  # noqa: ANN401
    defaults: dict[str, Any] = {
        "space": {"lr": pl.choice([0.02 * n for n in range(1, 10)])},
        "metric": "loss",
        "mode": "min",
        "epochs": 9,
        "generator": "grid",
        "policy": "sha:first=1",
        "name": "remote",
        "store": f"sqlite:///{folder / 'studies.db'}",
    }
    return pl.Study(make_learner(folder / "hold"), **{**defaults, **options})


def read_log(folder: Path) -> list[Step]:
    with open_existing(f"sqlite:///{folder / 'studies.db'}") as opened:
        return list(opened.read("remote"))


def summarize(result: pl.Result) -> list[Any]:
    """Return the config, the values and the last checkpoint of each trial."""
    kept = [trial.checkpoint and trial.checkpoint.load() for trial in result.trials]
    return [
        (trial.config, trial.values, each) for trial, each in zip(result.trials, kept, strict=True)
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("gpu_nodes")
def test_on_nodes_that_share_nothing_a_study_ends_as_on_one_machine(
    bucket: str, disk: Path, tmp_path: Path
) -> None:
    (tmp_path / "local").mkdir()
    slots = pl.Ray(gpus=2, disk=str(disk))
    remote = make_study(tmp_path, slots=slots, checkpoints=bucket).run()
    log = read_log(tmp_path)
    assert find_checkpoints(tmp_path) == set(), "a checkpoint came to the driver's machine"
    local = make_study(tmp_path / "local", slots="cpu:2").run()
    assert summarize(remote) == summarize(local)
    reports = [step.event for step in log if isinstance(step.event, e.Reported)]
    assert len({report.metrics["forkserver"] for report in reports}) == 2
    launches = [one for step in log for one in step.decisions if isinstance(one, d.Launch)]
    assert any(launch.source is not None for launch in launches), "no trial was resumed"
    assert not [step for step in log if isinstance(step.event, e.Spoiled)]
    assert replay_log(log).difference is None


@pytest.mark.slow
@pytest.mark.usefixtures("gpu_nodes")
def test_when_a_node_is_lost_others_continue_from_its_published_checkpoints(
    ray_cluster: RayCluster, server: S3Server, bucket: str, disk: Path, tmp_path: Path
) -> None:
    (tmp_path / "local").mkdir()
    hold = tmp_path / "hold"
    hold.touch()
    node = add_node(ray_cluster, server)

    def watch(state: StudyState, steps: Sequence[Step]) -> None:
        nonlocal node
        # The best three trials are resumed, one on each node.
        if node is not None and [one.epoch for one in state.attempts.values()] == [2, 2, 2]:
            ray_cluster.remove(node)
            node = None
        if node is None and len(state.slots.present) == 2:
            hold.unlink(missing_ok=True)

    slots = pl.Ray(gpus=3, disk=str(disk))
    remote = make_study(tmp_path, slots=slots, checkpoints=bucket).run(watch)
    log = read_log(tmp_path)
    ends = [step.event for step in log if isinstance(step.event, e.Ended)]
    notes = [end.note for end in ends if end.cause is not e.Cause.GOAL and end.note]
    assert notes == ["its node is gone"]
    launches = [one for step in log for one in step.decisions if isinstance(one, d.Launch)]
    assert sum(not launch.start for launch in launches) == 9, "a trial started over"
    assert summarize(remote) == summarize(make_study(tmp_path / "local", slots="cpu:2").run())
    assert replay_log(log).difference is None
