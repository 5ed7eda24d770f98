"""Whole studies on a real Ray cluster: nodes come and go, drivers are killed, and the log holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_mps import write_cuda_stub, write_mps_service
from ray_clusters import (
    RayCluster,
    connect,
    find_parent,
    find_processes,
    wait_for_no_workers,
)
from waiting import LIMIT_S, wait_for

import paceline as pl
from paceline.api.stored import open_existing, replay_log
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.errors import PacelineWarning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Step
    from paceline.machine.state import StudyState

# All tests on Ray share one cluster, and so one process of pytest.
pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.usefixtures("settled_cluster")]

SCHEDULES = {
    "lr": pl.choice(
        [
            pl.piecewise([(0, first), (2, second), (4, third)])
            for first in (1.0, 0.7, 0.5, 0.3)
            for second in (0.5, 0.4, 0.3, 0.2)
            for third in (0.2, 0.1, 0.05, 0.02)
        ]
    )
}


def train(trial: Any) -> None:  # noqa: ANN401
    """Approach 1 at the speed of the learning rate, and report the fork server."""
    weight = trial.keep(weight=[0.0])
    for _ in trial.epochs():
        time.sleep(0.03)
        weight[0] += 0.2 * trial["lr"] * (1 - weight[0])
        trial.report(accuracy=weight[0], forkserver=os.getppid())


def make_study(address: str, store: str, train: Any = train, **options: Any) -> pl.Study:  # noqa: ANN401
    defaults: dict[str, Any] = {
        "space": SCHEDULES,
        "metric": "accuracy",
        "mode": "max",
        "range": (0, 1),
        "epochs": 6,
        "generator": "grid",
        "policy": "fifo",
        "slots": pl.Ray(address=address),
        "name": "remote",
        "store": store,
    }
    return pl.Study(train, **{**defaults, **options})


def read_log(store: str) -> list[Step]:
    with open_existing(store) as opened:
        return list(opened.read("remote"))


def list_events(log: Sequence[Step], kind: type[Any]) -> list[Any]:
    return [step.event for step in log if isinstance(step.event, kind)]


def list_launches(log: Sequence[Step]) -> list[d.Launch]:
    return [one for step in log for one in step.decisions if isinstance(one, d.Launch)]


def find_trained_twice(log: Sequence[Step]) -> list[tuple[int, int]]:
    """Return (trial, epoch) of attempts that started before their trial's last checkpoint."""
    saved: dict[int, int] = {}
    trials: dict[int, int] = {}
    found = []
    for step in log:
        if isinstance(step.event, e.Saved):
            trial = trials[step.event.attempt]
            saved[trial] = max(saved.get(trial, 0), step.event.epoch)
        for launch in list_launches([step]):
            trials[launch.attempt] = launch.trial
            if launch.start < saved.get(launch.trial, 0):
                found.append((launch.trial, launch.start))
    return found


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'studies.db'}"


@pytest.fixture
def hold(tmp_path: Path) -> Path:
    """Return a file; trials of `train_while_held` wait while it exists."""
    path = tmp_path / "hold"
    path.touch()
    return path


@pytest.mark.parametrize("trials", [16, pytest.param(64, marks=pytest.mark.slow)])
def test_a_study_forecasts_shares_and_ends_on_several_nodes(
    ray_cluster: RayCluster, store: str, trials: int
) -> None:
    options = {"policy": "pop", "allocator": "fluid", "span": 2, "pack": 2, "trials": trials}
    result = make_study(ray_cluster.address, store, **options).run()
    log = read_log(store)
    assert len(result.trials) == trials
    assert all(trial.status in ("finished", "stopped") for trial in result.trials)
    assert result.summary().epochs_shared > 0
    assert any(event.forecast is not None for event in list_events(log, e.Forecasted))
    assert len({event.metrics["forkserver"] for event in list_events(log, e.Reported)}) >= 2
    assert replay_log(log).difference is None
    wait_for_no_workers(ray_cluster)


@pytest.mark.slow
def test_a_lost_node_costs_only_the_running_epochs(
    ray_cluster: RayCluster, store: str, hold: Path
) -> None:
    node = ray_cluster.add(num_cpus=2)

    def train_while_held(trial: Any) -> None:  # noqa: ANN401
        weight = trial.keep(weight=[0.0])
        for epoch in trial.epochs():
            # When the node is removed all slots are used, and every trial has a checkpoint.
            while epoch == 3 and hold.exists():
                time.sleep(0.01)
            weight[0] += trial["lr"]
            trial.report(accuracy=weight[0])

    def watch(state: StudyState, steps: Sequence[Step]) -> None:
        nonlocal node
        if node is not None and state.reports == 18:
            ray_cluster.remove(node)
            node = None
        if node is None and len(state.slots.present) == 4:
            hold.unlink(missing_ok=True)

    options = {"share": False, "trials": 12}
    result = make_study(ray_cluster.address, store, train_while_held, **options).run(watch)
    log = read_log(store)
    lost = [event for event in list_events(log, e.Ended) if event.cause is e.Cause.LOST]
    assert [event.note for event in lost] == ["its node is gone"] * 2
    capacities = [len(event.slots) for event in list_events(log, e.CapacityChanged)]
    assert capacities[capacities.index(6) :][:2] == [6, 4]
    # No trial failed, all went on from their last checkpoints, and all were finished.
    assert [trial.status for trial in result.trials] == ["finished"] * 12
    assert not [event for event in list_events(log, e.Ended) if event.cause is e.Cause.FAILED]
    assert find_trained_twice(log) == []
    assert replay_log(log).difference is None


@pytest.mark.slow
def test_a_node_that_comes_is_used(ray_cluster: RayCluster, store: str, hold: Path) -> None:
    def train_while_held(trial: Any) -> None:  # noqa: ANN401
        for _ in trial.epochs():
            while hold.exists():
                time.sleep(0.01)
            trial.report(accuracy=0.5)

    added: list[Any] = []

    def watch(state: StudyState, steps: Sequence[Step]) -> None:
        if not added and state.attempts:
            added.append(ray_cluster.add(num_cpus=2))
        if len(state.slots.present) == 6:
            hold.unlink(missing_ok=True)

    make_study(ray_cluster.address, store, train_while_held, share=False).run(watch)
    log = read_log(store)
    first, *_, last = list_events(log, e.CapacityChanged)
    new = set(last.slots) - set(first.slots)
    assert len(new) >= 2
    nodes = dict(zip(last.slots, last.nodes, strict=True))
    on_added = {slot for slot in new if added[0].node_id.startswith(nodes[slot])}
    assert len(on_added) == 2
    assert on_added <= {slot for launch in list_launches(log) for slot in launch.slots}
    ray_cluster.remove(added[0])


SCRIPT = """
import sys
sys.path[:0] = {paths!r}
from test_ray_study import make_study
def watch(state, steps):
    print("reports:", state.reports, flush=True)
make_study({address!r}, {store!r}, share=False, trials={trials}, files={files!r}).run(watch)
"""


def run_on_last_node(cluster: RayCluster, script: str) -> None:
    """Run a program on the last node of the cluster, and wait for its end."""
    with connect(cluster) as ray:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        last = [node["NodeID"] for node in ray.nodes() if node["Alive"]][-1]
        there = NodeAffinitySchedulingStrategy(last, soft=False)
        run = ray.remote(subprocess.run).options(num_cpus=0, scheduling_strategy=there)
        command = [sys.executable, "-c", script]
        ray.get(run.remote(command, stdout=subprocess.DEVNULL, check=True, timeout=LIMIT_S))


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_a_killed_driver_leaves_no_process_and_another_resumes_on_another_node(
    ray_cluster: RayCluster, store: str, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    if kind == "postgresql":
        store = request.getfixturevalue("postgres").url()
    trials, here = 12, Path(__file__).parent
    script = SCRIPT.format(
        paths=[str(here), str(here.parents[2] / "support")],
        address=ray_cluster.address,
        store=store,
        trials=trials,
        files=str(tmp_path / "files"),
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as first:
        assert first.stdout is not None
        printed = []
        for line in first.stdout:
            printed.append(line)
            # Ray prints lines of its own about nodes that are gone.
            if line.startswith("reports: ") and int(line.split()[1]) > 20:
                break
        else:
            pytest.fail("the driver ended before it was killed:\n" + "".join(printed))
        first.send_signal(signal.SIGKILL)
    # Ray ends the actors of a driver that is gone, at its own time.
    wait_for_no_workers(ray_cluster)
    done = len(list_events(read_log(store), e.Reported))
    run_on_last_node(ray_cluster, script)
    log = read_log(store)
    notes = {event.note for event in list_events(log, e.Ended) if event.cause is e.Cause.LOST}
    assert notes == {"its driver was gone"}
    assert find_trained_twice(log) == []
    assert trials * 6 <= len(list_events(log, e.Reported)) <= trials * 6 + done
    assert replay_log(log).difference is None


FILE = """
import os
import paceline as pl

def train(trial):
    print("started in", os.path.basename(os.getcwd()))
    for _ in trial.epochs():
        trial.report(loss=trial["lr"])

study = pl.Study(train, space={"lr": pl.uniform(0.1, 1.0)}, metric="loss", mode="min", epochs=2,
                 generator="random", policy="fifo", trials=4, slots=1)
"""


def run_command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "paceline.cli", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )


def test_the_command_line_runs_a_file_on_a_cluster_and_keeps_the_output_of_trials(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    (tmp_path / "study.py").write_text(FILE)
    where = ("--engine", "ray", "--address", ray_cluster.address, "--slots", "cpu:2")
    done = run_command(tmp_path, "run", "study.py", "--name", "remote", *where, "--no-report", "-q")
    assert done.returncode == 0, done.stderr
    log = read_log(f"sqlite:///{tmp_path / 'paceline.db'}")
    slots = list_events(log, e.Opened)[0].engine["given"]["slots"]
    assert slots == f"ray:cpu:2@{ray_cluster.address}"
    assert len(list_events(log, e.CapacityChanged)[-1].slots) == 2
    printed = {path.read_text() for path in tmp_path.rglob("attempt-*.log")}
    # Workers run in the driver's working directory.
    assert printed == {f"started in {tmp_path.name}\n"}


def test_code_travels_by_the_runtime_environment(
    ray_cluster: RayCluster, store: str, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "only_there.py").write_text("ANSWER = 42.0\n")

    def train_with_module(trial: Any) -> None:  # noqa: ANN401
        import only_there  # type: ignore[import-not-found]

        for _ in trial.epochs():
            trial.report(accuracy=only_there.ANSWER)

    there = pl.Ray(address=ray_cluster.address, cpus=1, runtime_env={"working_dir": str(code)})
    options = {"slots": there, "trials": 1}
    result = make_study(ray_cluster.address, store, train_with_module, **options).run()
    assert result.best is not None
    assert result.best.value == 42.0


SLOWLY = "time.sleep(0.05)\n        trial.report"
ENDLESS = "import time\n" + FILE.replace("trials=4, ", "").replace("trial.report", SLOWLY)


@pytest.mark.slow
def test_a_submitted_study_runs_without_the_submitter_and_is_stopped_through_its_store(
    ray_cluster: RayCluster, store: str, tmp_path: Path
) -> None:
    (tmp_path / "study.py").write_text(ENDLESS)
    where = ("--address", ray_cluster.address, "--slots", "cpu:2")
    named = ("--name", "remote", "--store", store)
    submitted = run_command(tmp_path, "submit", "study.py", *where, *named)
    assert submitted.returncode == 0, submitted.stderr
    assert f"`paceline stop remote --store {store}` ends it" in submitted.stdout
    again = run_command(tmp_path, "submit", "study.py", *where, *named)
    assert (again.returncode, "is running" in again.stderr) == (2, True)
    wait_for(lambda: len(list_events(read_log(store), e.Reported)) >= 4, "four reports")
    # The actor of the driver is killed and restarted: another driver resumes.
    (driver,) = find_processes(ray_cluster, b"paceline.cli.submit")
    os.kill(find_parent(driver), signal.SIGKILL)
    wait_for(lambda: bool(list_events(read_log(store), e.Resumed)), "another driver")
    stopped = run_command(tmp_path, "stop", "remote", "--store", store)
    assert stopped.returncode == 0, stopped.stderr
    with connect(ray_cluster) as ray:
        # The driver ends with its study, and its actor with the driver.
        wait_for(
            lambda: not ray.util.list_named_actors(all_namespaces=True), "the end of the actor"
        )
    wait_for_no_workers(ray_cluster)
    log = read_log(store)
    assert [one.cause for step in log for one in step.decisions if isinstance(one, d.End)] == [
        d.EndCause.COMMAND
    ]


def test_a_study_that_cannot_start_on_the_cluster_says_why(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    (tmp_path / "study.py").write_text(FILE)
    without = run_command(tmp_path, "submit", "study.py", "--address", ray_cluster.address)
    assert without.returncode == 2
    assert "give --store URL" in without.stderr
    nowhere = ("--store", "sqlite:////proc/nowhere/studies.db", "--name", "lost")
    failed = run_command(tmp_path, "submit", "study.py", "--address", ray_cluster.address, *nowhere)
    assert failed.returncode == 2
    assert "study 'lost' could not start on the cluster" in failed.stderr
    assert "Traceback" not in failed.stderr


def train_with_mps(trial: Any) -> None:  # noqa: ANN401
    """Train a little, and report whether the MPS service is there."""
    for _ in trial.epochs():
        pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "")
        share = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "0")
        trial.report(accuracy=0.5, served=os.path.isdir(pipe), share=float(share))


@pytest.mark.slow
def test_trials_that_share_a_gpu_of_a_node_run_there_at_the_same_time(
    ray_cluster: RayCluster, store: str, tmp_path: Path
) -> None:
    service_log = write_mps_service(tmp_path)
    write_cuda_stub(tmp_path)
    environ = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}",
    }
    node = ray_cluster.add(num_cpus=1, num_gpus=1, env_vars=environ)
    options = {"slots": pl.Ray(address=ray_cluster.address, gpus=1), "pack": 4, "trials": 8}
    result = make_study(ray_cluster.address, store, train_with_mps, **options).run()
    metrics = list_metrics(result)
    assert {(each["served"], each["share"]) for each in metrics} == {(1.0, 50.0)}
    first = read_log(store)[0].event
    assert isinstance(first, e.Opened)
    assert first.engine["mps"] == "up"
    assert service_log.read_text().split() == ["-d", "0", "0", "quit"]
    ray_cluster.remove(node)


@pytest.mark.slow
def test_on_a_node_without_mps_trials_take_turns_and_a_warning_says_so(
    ray_cluster: RayCluster, store: str
) -> None:
    node = ray_cluster.add(num_cpus=1, num_gpus=1)
    options = {"slots": pl.Ray(address=ray_cluster.address, gpus=1), "pack": 4, "trials": 4}
    with pytest.warns(PacelineWarning, match=r"take turns on a node: .* is not installed"):
        result = make_study(ray_cluster.address, store, train_with_mps, **options).run()
    assert {each["served"] for each in list_metrics(result)} == {0.0}
    ray_cluster.remove(node)


def list_metrics(result: pl.Result) -> list[Any]:
    return [event.metrics for event in list_events(list(result.log), e.Reported)]
