"""A cluster whose head, nodes or agents fall silent, by real signals to their processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command_line import read_log
from ray_clusters import (
    RayCluster,
    connect,
    find_parent,
    find_processes,
    stopped,
    wait_for_no_workers,
)
from ray_engines import RayDriver, make_engine, place
from running_command import RunningCommand
from waiting import wait_for

import paceline as pl
from paceline.api.stored import fold_log, replay_log
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.errors import ClusterLost, PacelineWarning
from paceline.core.values import Status
from paceline.engines.process.ray import head_watch, nodes
from paceline.engines.process.ray.config import Ray
from paceline.testing.engine_driver import FAR, WHY, make_open

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from paceline.core.decisions import Step
    from paceline.engines.process.ray.session import RayEngine
    from paceline.machine.state import StudyState

# All tests on Ray share one cluster, and so one process of pytest.
pytestmark = [pytest.mark.xdist_group("ray")]


@pytest.fixture
def drive(ray_cluster: RayCluster, tmp_path: Path) -> Iterator[Callable[[], RayDriver]]:
    """Start engines with two slots on the shared cluster; close them afterwards."""
    ray_cluster.settle()
    engines: list[RayEngine] = []

    def train(trial: Any) -> None:  # noqa: ANN401
        count = trial.keep(count=[0])
        for _ in trial.epochs():
            time.sleep(0.02)
            count[0] += 1
            (tmp_path / "count").write_text(str(count[0]))
            trial.report(loss=1.0 / count[0], pid=os.getpid(), forkserver=os.getppid())

    def start() -> RayDriver:
        engines.append(make_engine(train, tmp_path, Ray(cpus=2)))
        driver = RayDriver(engines[-1], 0.05)
        driver.apply(make_open(0, {"a": 1}))
        driver.wait_for_slots(2)
        driver.apply(place(driver.make_launch(0, goal=FAR), driver.slots[0]))
        # The first epoch after an improvement is saved.
        driver.wait_for(lambda: bool(driver.list_events(e.Saved)), "a checkpoint")
        return driver

    with connect(ray_cluster):
        yield start
        for engine in engines:
            engine.close()
    wait_for_no_workers(ray_cluster)


def find_head(cluster: RayCluster) -> int:
    """Return the process of the cluster's head."""
    (head,) = find_processes(cluster, b"gcs_server")
    return head


def find_agent(driver: RayDriver, attempt: int) -> int:
    """Return the process of the agent that runs an attempt."""
    return find_parent(int(driver.last_metrics(attempt)["forkserver"] or 0))


def test_while_the_head_is_silent_trials_train_on_and_slots_are_given_back(
    drive: Callable[[], RayDriver],
    ray_cluster: RayCluster,
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
) -> None:
    monkeypatch.setattr(head_watch, "find_head_limit", lambda: 1000.0)
    monkeypatch.setattr(head_watch, "_WARN_SHARE", 0.0003)
    driver = drive()
    with stopped(find_head(ray_cluster)):
        driver.apply(d.Retire(slots=driver.slots[1:], why=WHY))
        driver.wait_for(
            lambda: any("running trials train on" in str(each.message) for each in recwarn),
            "a warning",
        )
        last = len(driver.list_reports(0))
        driver.wait_for_report(0, last + 10)
    driver.apply(d.Provide(slots=1, why=WHY))
    driver.wait_for_slots(2)
    assert [epoch for epoch, _ in driver.list_reports(0)][: last + 10] == [*range(1, last + 11)]
    assert not driver.list_events(e.Ended)


def test_a_head_that_stays_silent_ends_the_study_and_its_workers(
    drive: Callable[[], RayDriver], ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_watch, "find_head_limit", lambda: 1.0)
    driver = drive()
    with stopped(find_head(ray_cluster)):
        with (
            pytest.warns(PacelineWarning, match="the study ends in"),
            pytest.raises(ClusterLost, match=r"the head of the Ray cluster at .* not answered"),
        ):
            driver.wait_for(lambda: False, "the end")
        driver.engine.close()
        wait_for_no_workers(ray_cluster)
    # The slots are given back when the head answers again.
    ray_cluster.settle()


def test_an_agent_that_is_cut_off_for_a_while_loses_no_report(
    drive: Callable[[], RayDriver], tmp_path: Path
) -> None:
    driver = drive()
    trained = len(driver.list_reports(0))
    with stopped(find_agent(driver, 0)):
        wait_for(lambda: count(tmp_path) > trained + 50, "epochs that the driver does not see")
    driver.wait_for_report(0, trained + 60)
    reported = [epoch for epoch, _ in driver.list_reports(0)]
    assert reported == [*range(1, len(reported) + 1)]
    assert not driver.list_events(e.Ended)


def count(folder: Path) -> int:
    """Return how many epochs the training function has trained."""
    text = (folder / "count").read_text()
    return int(text) if text else 0  # empty while it is written


@pytest.mark.slow
def test_an_agent_that_stays_silent_is_replaced_and_its_trials_continue(
    drive: Callable[[], RayDriver],
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
) -> None:
    driver = drive()
    before, worker = driver.slots, int(driver.last_metrics(0)["pid"] or 0)
    with stopped(find_agent(driver, 0)):
        monkeypatch.setattr(nodes, "ANSWER_S", 1.0)
        ended = driver.wait_for_end(0)
        monkeypatch.undo()  # the next agent may take its time
        assert (ended.cause, ended.note) == (e.Cause.LOST, "its node is gone")
        # Ray kills the process though it is stopped, and its workers end with it.
        wait_for(lambda: not Path(f"/proc/{worker}").exists(), "the end of the worker")
    assert any("it is killed and started again" in str(each.message) for each in recwarn)
    driver.wait_for_slots(2)
    assert before[0] not in driver.slots
    saved = max(event.epoch for event in driver.list_events(e.Saved))
    launch = driver.make_launch(1, goal=saved + 2, start=saved, source=0)
    driver.apply(place(launch, driver.slots[-1]))
    assert driver.wait_for_end(1).cause is e.Cause.GOAL


# Whole studies, each on a cluster of its own


FILE = """
import time
from pathlib import Path

import paceline as pl

HOLD = Path(__file__).parent / "hold"


def train(trial):
    weight = trial.keep(weight=[0.0])
    for epoch in trial.epochs():
        while epoch == 3 and HOLD.exists():
            time.sleep(0.01)
        weight[0] += trial["lr"]
        trial.report(loss=1 / weight[0])


study = pl.Study(train, space={"lr": pl.uniform(0.1, 1.0)}, metric="loss", mode="min", epochs=6,
                 generator="random", policy="fifo", trials=4, slots=1)
"""


def run_on(cluster: RayCluster, folder: Path, *command: str) -> RunningCommand:
    """Start a command for the study of the file in a folder, on a cluster."""
    return RunningCommand(folder, "paceline", *command, "--address", cluster.address, "--no-report")


def list_reports(folder: Path) -> list[e.Reported]:
    """Return the reports in the study's log."""
    if not (folder / "paceline.db").exists():
        return []
    log = read_log(f"sqlite:///{folder / 'paceline.db'}", "remote")
    return [step.event for step in log if isinstance(step.event, e.Reported)]


@pytest.mark.slow
def test_when_the_head_is_killed_the_driver_ends_with_a_sentence_and_another_cluster_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ray itself ends a driver whose head is gone for so long; the study ends after half of it.
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "24")
    (tmp_path / "study.py").write_text(FILE)
    (tmp_path / "hold").touch()
    first = RayCluster()
    try:
        run = ("run", "study.py", "--name", "remote", "--engine", "ray", "--slots", "cpu:2")
        with run_on(first, tmp_path, *run) as running:
            running.until("slots are available")
            wait_for(lambda: len(list_reports(tmp_path)) == 6, "three epochs of two trials")
            os.kill(find_head(first), signal.SIGKILL)
            ended = running.end()
    finally:
        first.close()
    assert ended.code == 1
    assert "Traceback" not in ended.err
    last = ended.err.strip().splitlines()[-1]
    assert last.startswith(f"paceline: the head of the Ray cluster at {first.address} has not")
    assert last.endswith(
        "the log is safe, resume with `paceline resume remote --address HOST:PORT`."
    )
    before = list_reports(tmp_path)
    assert len(before) == 6
    (tmp_path / "hold").unlink()
    second = RayCluster()
    try:
        with run_on(second, tmp_path, "resume", "remote") as running:
            resumed = running.end()
    finally:
        second.close()
    assert resumed.code == 0, resumed.err
    after = list_reports(tmp_path)
    assert after[:6] == before
    log = read_log(f"sqlite:///{tmp_path / 'paceline.db'}", "remote")
    assert [trial.status for trial in fold_log(log).trials] == [Status.FINISHED] * 4
    assert replay_log(log).difference is None


@pytest.mark.slow
def test_a_node_that_is_cut_off_is_lost_and_its_trials_continue_on_another(tmp_path: Path) -> None:
    # The head takes a silent node for lost after about two seconds.
    quick = {
        "RAY_health_check_initial_delay_ms": "0",
        "RAY_health_check_timeout_ms": "500",
        "RAY_health_check_failure_threshold": "3",
    }
    hold = tmp_path / "hold"
    hold.touch()

    def train(trial: Any) -> None:  # noqa: ANN401
        weight = trial.keep(weight=[0.0])
        for epoch in trial.epochs():
            while epoch == 3 and hold.exists():
                time.sleep(0.01)
            weight[0] += trial["lr"]
            trial.report(loss=1 / weight[0])

    cluster = RayCluster(**quick)
    try:
        node = cluster.add(num_cpus=2)
        (raylet,) = (
            pid
            for pid in find_processes(cluster, b"raylet/raylet")
            if node.node_id.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        is_cut = False

        def watch(state: StudyState, steps: Sequence[Step]) -> None:
            nonlocal is_cut
            if not is_cut and state.reports == 12:
                is_cut = True
                os.kill(raylet, signal.SIGSTOP)
            if is_cut and len(state.slots.present) == 2 and hold.exists():
                # The network is back: Ray ends the node, and its agent with the workers.
                os.kill(raylet, signal.SIGCONT)
                hold.unlink()

        store = f"sqlite:///{tmp_path / 'studies.db'}"
        study = pl.Study(
            train,
            space={"lr": pl.uniform(0.1, 1.0)},
            metric="loss",
            mode="min",
            epochs=6,
            generator="random",
            policy="fifo",
            trials=6,
            slots=pl.Ray(address=cluster.address),
            name="remote",
            store=store,
        )
        result = study.run(watch)
        wait_for_no_workers(cluster)
    finally:
        cluster.close()
    log = read_log(store, "remote")
    lost = [s.event for s in log if isinstance(s.event, e.Ended) and s.event.cause is e.Cause.LOST]
    assert [event.note for event in lost] == ["its node is gone"] * 2
    assert [trial.status for trial in result.trials] == ["finished"] * 6
    reported = [(s.event.attempt, s.event.epoch) for s in log if isinstance(s.event, e.Reported)]
    assert len(set(reported)) == len(reported)
    # The lost attempts had saved their third epoch: nothing is trained again.
    assert result.summary().epochs_trained == 36
    assert replay_log(log).difference is None
