"""Studies on a Ray cluster that grows and shrinks: a real autoscaler, with real nodes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from ray_kit import Autoscaled, nurseries, until

import paceline as pl
from paceline.api.stored import opened, replayed
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
    pytest.mark.xdist_group("far"),
    # Whether a first node is there before the study begins without is a matter of luck.
    pytest.mark.filterwarnings("ignore:the cluster has no free CPU now"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Autoscaled]:
    cluster = Autoscaled(tmp_path_factory.mktemp("autoscaler"), most=3)
    yield cluster
    cluster.close()


@pytest.fixture(autouse=True)
def empty(cluster: Autoscaled) -> Iterator[None]:
    """Begin without nodes, and end without: nothing of a study holds one when it is over."""
    assert cluster.workers() == []
    yield
    until(lambda: cluster.workers() == [])
    assert nurseries(cluster) == []


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'studies.db'}"


@pytest.fixture
def hold(tmp_path: Path) -> Path:
    """Trials go on for as long as this is there."""
    path = tmp_path / "hold"
    path.touch()
    return path


def study(cluster: Autoscaled, store: str, hold: Path, **options: Any) -> pl.Study:  # noqa: ANN401
    def beats(trial: Any) -> None:  # noqa: ANN401
        for _ in trial.epochs():
            time.sleep(0.05)
            trial.report(accuracy=trial["lr"])
            if not hold.exists() or (hold.parent / f"end-{trial.id}").exists():
                return

    given: dict[str, Any] = {
        "space": {"lr": pl.uniform(0.1, 1.0)},
        "metric": "accuracy",
        "mode": "max",
        "epochs": 100_000,
        "generator": "random",
        "policy": "fifo",
        "trials": 6,
        "name": "far",
        "store": store,
    }
    return pl.Study(beats, **{**given, **options})


def log_of(store: str) -> list[Step]:
    with opened(store) as kept:
        return list(kept.read("far"))


def capacities(log: Sequence[Step]) -> list[int]:
    """Return how many slots there were, one after the other."""
    told = [step.event for step in log if isinstance(step.event, e.CapacityChanged)]
    return [len(event.slots) for event in told]


def used(log: Sequence[Step]) -> set[int]:
    launches = [one for step in log for one in step.decisions if isinstance(one, d.Launch)]
    return {slot for launch in launches for slot in launch.slots}


def command(*words: str) -> None:
    assert main(words) == 0


def test_nodes_come_for_the_slots_a_study_asks_for_and_again_for_one_that_is_taken_away(
    cluster: Autoscaled, store: str, hold: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken: list[str] = []

    def watch(state: StudyState, steps: Sequence[Step]) -> None:
        if not taken and len(state.attempts) == 4:
            taken.append(cluster.workers()[0])
            cluster.kill(taken[0])
        elif state.slots.present >= {4, 5} and len(state.attempts) == 4:
            hold.unlink(missing_ok=True)

    far = pl.Ray(address=cluster.address, cpus=4)
    result = study(cluster, store, hold, slots=far).run(watch)
    log = log_of(store)
    slots = capacities(log)
    # All that was asked for came; the study went on with what was left of it; all came again.
    assert slots[slots.index(4) :] == [4, 2, 4]
    assert used(log) == set(range(6))
    lost = [step.event for step in log if isinstance(step.event, e.Ended) and step.event.note]
    assert [event.note for event in lost] == ["its node is gone"] * 2
    assert [trial.status for trial in result.trials] == ["finished"] * 6
    assert replayed(log).difference is None
    command("show", "far", "--store", store)
    assert "6: 6 finished, 0 stopped, 0 failed, 0 unfinished" in capsys.readouterr().out


def test_slots_that_are_given_back_let_their_node_go_while_the_study_goes_on(
    cluster: Autoscaled, store: str, hold: Path, tmp_path: Path
) -> None:
    asked: list[int] = []

    def watch(state: StudyState, steps: Sequence[Step]) -> None:
        if not asked and len(state.attempts) == 4:
            asked.append(len(cluster.workers()))
            command("slots", "far", "-2", "--store", store)
        elif state.slots.capacity == 2 and len(state.attempts) == 4:
            # Who trains on what is given back comes to an end there first.
            assert len(cluster.workers()) == 2
            for attempt in state.attempts.values():
                if attempt.slots[0] in state.slots.retiring:
                    (tmp_path / f"end-{attempt.trial.id}").touch()
        elif asked and len(cluster.workers()) == 1:
            hold.unlink(missing_ok=True)

    far = pl.Ray(address=cluster.address, cpus=4)
    result = study(cluster, store, hold, slots=far, trials=4).run(watch)
    log = log_of(store)
    assert asked == [2]
    assert not [step for step in log if isinstance(step.event, e.Ended) and step.event.note]
    assert [trial.status for trial in result.trials] == ["finished"] * 4
    assert replayed(log).difference is None


def test_a_study_that_takes_what_is_free_asks_an_autoscaler_for_nothing(
    cluster: Autoscaled, store: str, hold: Path
) -> None:
    from ray.util import placement_group, remove_placement_group

    # What somebody else asks for: half a node, and then, when the study has the rest, all of one.
    asked: list[Any] = []

    def watch(state: StudyState, steps: Sequence[Step]) -> None:
        assert len(cluster.workers()) <= 2
        if not asked:
            asked.append(placement_group([{"CPU": 1}]))
        elif len(asked) == 1 and len(state.attempts) == 1:
            asked.append(placement_group([{"CPU": 2}]))
        elif len(asked) == 2 and asked[1].wait(0):
            # An autoscaler that has answered has seen all that was asked for.
            hold.unlink(missing_ok=True)

    far = pl.Ray(address=cluster.address)
    with pytest.warns(PacelineWarning, match="asks nobody for it: give cpus=… where nodes come"):
        study(cluster, store, hold, slots=far, trials=4).run(watch)
    assert capacities(log_of(store)) == [0, 1]
    for group in asked:
        remove_placement_group(group)
