"""Studies on a Ray cluster that grows and shrinks: a real autoscaler, with real nodes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from ray_clusters import AutoscaledCluster, connect, wait_for_no_workers
from waiting import wait_for

import paceline as pl
from paceline.api.stored import open_existing, replay_log
from paceline.cli.main import main
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.errors import PacelineWarning

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from paceline.core.decisions import Step
    from paceline.machine.state import StudyState

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("ray"),
    # A study may start before the first node is there.
    pytest.mark.filterwarnings("ignore:the cluster has no free CPU now"),
]


@pytest.fixture(scope="module")
def autoscaled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AutoscaledCluster]:
    cluster = AutoscaledCluster(tmp_path_factory.mktemp("autoscaler"), max_nodes=3)
    with connect(cluster):
        yield cluster
    cluster.close()


@pytest.fixture(autouse=True)
def no_nodes(autoscaled: AutoscaledCluster) -> Iterator[None]:
    """Start without nodes and end without: a study that is over holds none."""
    from ray.util import get_placement_group, placement_group_table, remove_placement_group

    wait_for(lambda: not autoscaled.list_nodes(), "the autoscaler to end all nodes before the test")
    yield
    # Of a test that failed.
    for entry in placement_group_table().values():
        if entry["name"] and entry["state"] != "REMOVED":
            remove_placement_group(get_placement_group(entry["name"]))
    wait_for(lambda: not autoscaled.list_nodes(), "the autoscaler to end all nodes after the test")
    wait_for_no_workers(autoscaled)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'studies.db'}"


@pytest.fixture
def hold(tmp_path: Path) -> Path:
    """Return a file; trials train while it exists."""
    path = tmp_path / "hold"
    path.touch()
    return path


def make_study(store: str, hold: Path, **options: Any) -> pl.Study:  # noqa: ANN401
    def train_while_held(trial: Any) -> None:  # noqa: ANN401
        for _ in trial.epochs():
            time.sleep(0.05)
            trial.report(accuracy=trial["lr"])
            if not hold.exists() or (hold.parent / f"end-{trial.id}").exists():
                return

    defaults: dict[str, Any] = {
        "space": {"lr": pl.uniform(0.1, 1.0)},
        "metric": "accuracy",
        "mode": "max",
        "epochs": 100_000,
        "generator": "random",
        "policy": "fifo",
        "trials": 6,
        "name": "remote",
        "store": store,
    }
    return pl.Study(train_while_held, **{**defaults, **options})


def read_log(store: str) -> list[Step]:
    with open_existing(store) as opened:
        return list(opened.read("remote"))


def list_capacities(log: Sequence[Step]) -> list[int]:
    """Return the numbers of slots, in order."""
    events = [step.event for step in log if isinstance(step.event, e.CapacityChanged)]
    return [len(event.slots) for event in events]


def find_used_slots(log: Sequence[Step]) -> set[int]:
    launches = [one for step in log for one in step.decisions if isinstance(one, d.Launch)]
    return {slot for launch in launches for slot in launch.slots}


def run_command(*arguments: str) -> None:
    assert main(arguments) == 0


def test_nodes_come_for_requested_slots_and_again_for_a_node_that_is_taken_away(
    autoscaled: AutoscaledCluster, store: str, hold: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed: list[str] = []

    def watch(state: StudyState, steps: Sequence[Step]) -> None:
        if not killed and len(state.attempts) == 4:
            killed.append(autoscaled.list_nodes()[0])
            autoscaled.kill(killed[0])
        elif state.slots.present >= {4, 5} and len(state.attempts) == 4:
            hold.unlink(missing_ok=True)

    slots = pl.Ray(address=autoscaled.address, cpus=4)
    result = make_study(store, hold, slots=slots).run(watch)
    log = read_log(store)
    # All requested slots came; the study continued with the rest of them; all came again.
    capacities = list_capacities(log)
    complete = capacities[capacities.index(4) :]
    assert complete[:2] == [4, 2]
    # The slots of the new node may come one by one.
    assert complete[1:] in ([2, 4], [2, 3, 4])
    assert find_used_slots(log) == set(range(6))
    lost = [step.event for step in log if isinstance(step.event, e.Ended) and step.event.note]
    assert [event.note for event in lost] == ["its node is gone"] * 2
    assert [trial.status for trial in result.trials] == ["finished"] * 6
    assert replay_log(log).difference is None
    run_command("show", "remote", "--store", store)
    assert "6: 6 finished" in capsys.readouterr().out


# Its function keeps nothing, so that those which lose their slots start over.
@pytest.mark.filterwarnings("ignore:the training function:paceline.PacelineWarning")
def test_slots_that_are_given_back_free_their_node_while_the_study_goes_on(
    autoscaled: AutoscaledCluster, store: str, hold: Path, tmp_path: Path
) -> None:
    nodes_before: list[int] = []

    def watch(state: StudyState, steps: Sequence[Step]) -> None:
        if not nodes_before and len(state.attempts) == 4:
            nodes_before.append(len(autoscaled.list_nodes()))
            run_command("slots", "remote", "-2", "--store", store)
        elif state.slots.capacity == 2 and len(state.attempts) == 4:
            # Attempts on the slots that are given back end first.
            assert len(autoscaled.list_nodes()) == 2
            for attempt in state.attempts.values():
                if attempt.slots[0] in state.slots.retiring:
                    (tmp_path / f"end-{attempt.trial.id}").touch()
        elif nodes_before and len(autoscaled.list_nodes()) == 1:
            hold.unlink(missing_ok=True)

    slots = pl.Ray(address=autoscaled.address, cpus=4)
    result = make_study(store, hold, slots=slots, trials=4).run(watch)
    log = read_log(store)
    assert nodes_before == [2]
    assert not [step for step in log if isinstance(step.event, e.Ended) and step.event.note]
    assert [trial.status for trial in result.trials] == ["finished"] * 4
    assert replay_log(log).difference is None


def test_a_study_that_takes_all_free_slots_requests_none_from_an_autoscaler(
    autoscaled: AutoscaledCluster, store: str, hold: Path
) -> None:
    from ray.util import placement_group

    # Requests of another program: half a node, and then, when the study has the rest, a whole one.
    others: list[Any] = []

    def watch(state: StudyState, steps: Sequence[Step]) -> None:
        assert len(autoscaled.list_nodes()) <= 2
        if not others:
            others.append(placement_group([{"CPU": 1}], name="half a node"))
        elif len(others) == 1 and len(state.attempts) == 1:
            others.append(placement_group([{"CPU": 2}], name="a node"))
        elif len(others) == 2 and others[1].wait(0):
            # An autoscaler that has served a request has seen all earlier ones.
            hold.unlink(missing_ok=True)

    slots = pl.Ray(address=autoscaled.address)
    with pytest.warns(PacelineWarning, match="it requests none from an autoscaler; give cpus=…"):
        make_study(store, hold, slots=slots, trials=4).run(watch)
    assert list_capacities(read_log(store)) == [0, 1]
