"""Whole studies on a real Ray cluster: nodes come and go, drivers die, and the log stands."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mps_kit import library, service
from ray_kit import Nodes, nodes, nurseries, parent_of, processes, settled

import paceline as pl
from paceline.api.stored import opened, replayed
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.errors import PacelineWarning

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paceline.core.decisions import Step
    from paceline.machine.state import StudyState

__all__ = ["nodes", "settled"]

# One cluster for all of them.
pytestmark = pytest.mark.xdist_group("ray")

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
    """Approach 1 at the pace of the learning rate, and say by whom it was trained."""
    weight = trial.keep(weight=[0.0])
    for _ in trial.epochs():
        time.sleep(0.03)
        weight[0] += 0.2 * trial["lr"] * (1 - weight[0])
        trial.report(accuracy=weight[0], nursery=os.getppid())


def study(nodes: Nodes, store: str, train: Any = train, **options: Any) -> pl.Study:  # noqa: ANN401
    given: dict[str, Any] = {
        "space": SCHEDULES,
        "metric": "accuracy",
        "mode": "max",
        "range": (0, 1),
        "epochs": 6,
        "generator": "grid",
        "policy": "fifo",
        "slots": pl.Ray(address=nodes.address),
        "name": "far",
        "store": store,
    }
    return pl.Study(train, **{**given, **options})


def log_of(store: str) -> list[Step]:
    with opened(store) as kept:
        return list(kept.read("far"))


def told(log: Sequence[Step], kind: type[Any]) -> list[Any]:
    return [step.event for step in log if isinstance(step.event, kind)]


def launches(log: Sequence[Step]) -> list[d.Launch]:
    return [one for step in log for one in step.decisions if isinstance(one, d.Launch)]


def trained_twice(log: Sequence[Step]) -> list[tuple[int, int]]:
    """Return the epochs of attempts that began before what their trial had saved by then."""
    saved: dict[int, int] = {}
    trials: dict[int, int] = {}
    again = []
    for step in log:
        if isinstance(step.event, e.Saved):
            trial = trials[step.event.attempt]
            saved[trial] = max(saved.get(trial, 0), step.event.epoch)
        for launch in launches([step]):
            trials[launch.attempt] = launch.trial
            if launch.start < saved.get(launch.trial, 0):
                again.append((launch.trial, launch.start))
    return again


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'studies.db'}"


def test_a_study_of_64_trials_forecasts_shares_and_ends_on_several_nodes(
    nodes: Nodes, store: str
) -> None:
    result = study(nodes, store, policy="pop", allocator="fluid", span=2, pack=2).run()
    log = log_of(store)
    assert len(result.trials) == 64
    assert all(trial.status in ("finished", "stopped") for trial in result.trials)
    assert result.summary().epochs_shared > 0
    assert any(event.forecast is not None for event in told(log, e.Forecasted))
    assert len({event.metrics["nursery"] for event in told(log, e.Reported)}) >= 2
    assert replayed(log).difference is None
    assert nurseries(nodes) == []


def test_a_node_that_dies_costs_nothing_but_running_epochs(
    nodes: Nodes, store: str, tmp_path: Path
) -> None:
    node = nodes.add(num_cpus=2)
    hold = tmp_path / "hold"
    hold.touch()

    def waits(trial: Any) -> None:  # noqa: ANN401
        weight = trial.keep(weight=[0.0])
        for epoch in trial.epochs():
            # All slots are taken when the node dies, and every trial has a checkpoint.
            while epoch == 3 and hold.exists():
                time.sleep(0.01)
            weight[0] += trial["lr"]
            trial.report(accuracy=weight[0])

    def watch(state: StudyState, steps: Sequence[Step]) -> None:
        nonlocal node
        if node is not None and state.reports == 18:
            nodes.remove(node)
            node = None
        if node is None and len(state.slots.present) == 4:
            hold.unlink(missing_ok=True)

    result = study(nodes, store, train=waits, share=False, trials=12).run(watch)
    log = log_of(store)
    lost = [event for event in told(log, e.Ended) if event.cause is e.Cause.LOST]
    assert [event.note for event in lost] == ["its node is gone"] * 2
    before, *_, after = told(log, e.CapacityChanged)
    assert (len(before.slots), len(after.slots)) == (6, 4)
    # Nobody was blamed, everybody went on from the last checkpoint, and all came to their end.
    assert [trial.status for trial in result.trials] == ["finished"] * 12
    assert not [event for event in told(log, e.Ended) if event.cause is e.Cause.FAILED]
    assert trained_twice(log) == []
    assert replayed(log).difference is None


def test_a_node_that_comes_is_used(nodes: Nodes, store: str, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()

    def waits(trial: Any) -> None:  # noqa: ANN401
        for _ in trial.epochs():
            while hold.exists():
                time.sleep(0.01)
            trial.report(accuracy=0.5)

    added: list[Any] = []

    def watch(state: StudyState, steps: Sequence[Step]) -> None:
        if not added and state.attempts:
            added.append(nodes.add(num_cpus=2))
        if len(state.slots.present) == 6:
            hold.unlink(missing_ok=True)

    study(nodes, store, train=waits, share=False).run(watch)
    log = log_of(store)
    first, *_, last = told(log, e.CapacityChanged)
    fresh = set(last.slots) - set(first.slots)
    assert len(fresh) == 2
    assert fresh <= {slot for launch in launches(log) for slot in launch.slots}
    nodes.remove(added[0])


@contextmanager
def connected(nodes: Nodes) -> Iterator[Any]:
    """Give Ray, connected to the cluster."""
    import ray

    ray.init(address=nodes.address, log_to_driver=False, logging_level=logging.WARNING)
    try:
        yield ray
    finally:
        ray.shutdown()


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from test_ray_study import study
class Here: address = {address!r}
def watch(state, steps):
    print(state.reports, flush=True)
study(Here, {store!r}, share=False, trials=16, epochs=20, files={files!r}).run(watch)
"""


def elsewhere(nodes: Nodes, text: str) -> None:
    """Run a program on the last node of the cluster, and wait until it is done."""
    with connected(nodes) as ray:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        last = [node["NodeID"] for node in ray.nodes() if node["Alive"]][-1]
        there = NodeAffinitySchedulingStrategy(last, soft=False)
        run = ray.remote(subprocess.run).options(num_cpus=0, scheduling_strategy=there)
        ray.get(run.remote([sys.executable, "-c", text], stdout=subprocess.DEVNULL, check=True))


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_killed_driver_leaves_nothing_behind_and_another_goes_on_elsewhere(
    nodes: Nodes, store: str, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    if kind == "postgresql":
        store = request.getfixturevalue("cluster").url()
    places = {"tests": str(Path(__file__).parents[3]), "files": str(tmp_path / "files")}
    text = SCRIPT.format(address=nodes.address, store=store, **places)
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        for line in first.stdout:
            # Ray has words of its own about nodes that went.
            if line.strip().isdigit() and int(line) > 60:
                break
        first.send_signal(signal.SIGKILL)
    # How soon an actor ends whose driver is gone is Ray's.
    while nurseries(nodes):
        time.sleep(0.05)
    done = len(told(log_of(store), e.Reported))
    elsewhere(nodes, text)
    log = log_of(store)
    notes = {event.note for event in told(log, e.Ended) if event.cause is e.Cause.LOST}
    assert notes == {"its driver was gone"}
    assert trained_twice(log) == []
    assert 16 * 20 <= len(told(log, e.Reported)) <= 16 * 20 + done
    assert replayed(log).difference is None


FILE = """
import os
import paceline as pl

def train(trial):
    print("begun in", os.path.basename(os.getcwd()))
    for _ in trial.epochs():
        trial.report(loss=trial["lr"])

study = pl.Study(train, space={"lr": pl.uniform(0.1, 1.0)}, metric="loss", mode="min", epochs=2,
                 generator="random", policy="fifo", trials=4, slots=1)
"""


def test_the_command_line_runs_a_file_on_a_cluster_and_keeps_what_trials_print(
    nodes: Nodes, tmp_path: Path
) -> None:
    (tmp_path / "study.py").write_text(FILE)
    far = ("--engine", "ray", "--address", nodes.address, "--slots", "cpu:2", "--no-report", "-q")
    done = subprocess.run(
        [sys.executable, "-m", "paceline.cli", "run", "study.py", "--name", "far", *far],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    log = log_of(f"sqlite:///{tmp_path / 'paceline.db'}")
    assert told(log, e.Opened)[0].engine["given"]["slots"] == f"ray:cpu:2@{nodes.address}"
    assert len(told(log, e.CapacityChanged)[0].slots) == 2
    printed = {path.read_text() for path in tmp_path.rglob("attempt-*.log")}
    # Relative paths begin where they do for the driver.
    assert printed == {f"begun in {tmp_path.name}\n"}


def test_code_travels_by_the_runtime_environment(nodes: Nodes, store: str, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "only_there.py").write_text("ANSWER = 42.0\n")

    def asks(trial: Any) -> None:  # noqa: ANN401
        import only_there  # type: ignore[import-not-found]

        for _ in trial.epochs():
            trial.report(accuracy=only_there.ANSWER)

    there = pl.Ray(address=nodes.address, cpus=1, runtime_env={"working_dir": str(code)})
    result = study(nodes, store, train=asks, slots=there, trials=1).run()
    assert result.best is not None
    assert result.best.value == 42.0


SLOWLY = "time.sleep(0.05)\n        trial.report"
ENDLESS = "import time\n" + FILE.replace("trials=4, ", "").replace("trial.report", SLOWLY)


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "paceline.cli", *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)


def test_a_submitted_study_goes_on_without_us_and_is_stopped_through_its_store(
    nodes: Nodes, store: str, tmp_path: Path
) -> None:
    (tmp_path / "study.py").write_text(ENDLESS)
    far = ("--address", nodes.address, "--slots", "cpu:2", "--name", "far", "--store", store)
    begun = command(tmp_path, "submit", "study.py", *far)
    assert begun.returncode == 0, begun.stderr
    assert f"`paceline stop far --store {store}` ends it" in begun.stdout
    again = command(tmp_path, "submit", "study.py", *far)
    assert (again.returncode, "is running" in again.stderr) == (2, True)
    while len(told(log_of(store), e.Reported)) < 4:
        time.sleep(0.05)
    # Who keeps the driver running dies, and is made again: another driver goes on.
    (driver,) = processes(nodes, b"paceline.cli.submit")
    os.kill(parent_of(driver), signal.SIGKILL)
    while not told(log_of(store), e.Resumed):
        time.sleep(0.05)
    stopped = command(tmp_path, "stop", "far", "--store", store)
    assert stopped.returncode == 0, stopped.stderr
    with connected(nodes) as ray:
        # The driver ends with its study, and the actor that kept it running with the driver.
        while ray.util.list_named_actors(all_namespaces=True):
            time.sleep(0.05)
    assert nurseries(nodes) == []
    log = log_of(store)
    assert [one.cause for step in log for one in step.decisions if isinstance(one, d.End)] == [
        d.EndCause.COMMAND
    ]


def test_a_study_that_cannot_begin_on_the_cluster_says_why(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "study.py").write_text(FILE)
    without = command(tmp_path, "submit", "study.py", "--address", nodes.address)
    assert without.returncode == 2
    assert "needs a store that the cluster sees: give --store URL" in without.stderr
    nowhere = ("--store", "sqlite:////proc/nowhere/studies.db", "--name", "lost")
    failed = command(tmp_path, "submit", "study.py", "--address", nodes.address, *nowhere)
    assert failed.returncode == 2
    assert "study 'lost' could not begin on the cluster" in failed.stderr
    assert "Traceback" not in failed.stderr


def shares(trial: Any) -> None:  # noqa: ANN401
    """Train a little, and say whether the service for shared GPUs is there."""
    for _ in trial.epochs():
        pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "")
        share = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "0")
        trial.report(accuracy=0.5, served=os.path.isdir(pipe), share=float(share))


def test_trials_that_share_a_gpu_of_a_node_run_there_at_the_same_time(
    nodes: Nodes, store: str, tmp_path: Path
) -> None:
    log = service(tmp_path)
    library(tmp_path)
    found = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}",
    }
    node = nodes.add(num_cpus=1, num_gpus=1, env_vars=found)
    here = pl.Ray(address=nodes.address, gpus=1)
    result = study(nodes, store, shares, slots=here, pack=4, trials=8).run()
    told_of = {(each["served"], each["share"]) for each in reported(result)}
    assert told_of == {(1.0, 50.0)}
    first = log_of(store)[0].event
    assert isinstance(first, e.Opened)
    assert first.engine["mps"] == "up"
    assert log.read_text().split() == ["-d", "0", "0", "quit"]
    nodes.remove(node)


def test_where_a_node_has_no_such_service_trials_take_turns_and_that_is_told(
    nodes: Nodes, store: str
) -> None:
    node = nodes.add(num_cpus=1, num_gpus=1)
    here = pl.Ray(address=nodes.address, gpus=1)
    with pytest.warns(PacelineWarning, match=r"take turns on a node: .* is not installed"):
        result = study(nodes, store, shares, slots=here, pack=4, trials=4).run()
    assert {each["served"] for each in reported(result)} == {0.0}
    nodes.remove(node)


def reported(result: pl.Result) -> list[Any]:
    return [event.metrics for event in told(list(result.log), e.Reported)]
