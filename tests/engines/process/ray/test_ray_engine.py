"""The Ray engine on a real cluster of several nodes: the same contract as the others."""

from __future__ import annotations

import logging
import math
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from ray_kit import Nodes, nodes, nurseries, parent_of, settled
from test_local_engine import spec, trains

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.errors import PacelineWarning, SpecError
from paceline.engines.process.checkpoint_files import Shelf
from paceline.engines.process.ray.config import Ray
from paceline.engines.process.ray.session import RayEngine, Tenancy
from paceline.engines.process.supervisor import Patience
from paceline.testing.engine_driver import FAR, WHY, Advising, Hand, opened
from paceline.testing.engines import EngineContract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paceline.core.ports import Adviser, Engine, Workload

__all__ = ["nodes", "settled"]

# One cluster for all of them.
pytestmark = pytest.mark.xdist_group("ray")


def engine(
    train: Callable[[Any], Any],
    files: Path,
    wanted: Ray,
    adviser: Adviser | None = None,
    **patience: float,
) -> RayEngine:
    patient = Patience(**{"grace_s": 1.0, **patience})
    shelf = Shelf(files)
    return RayEngine(
        spec(), Tenancy(wanted, train, shelf), shelf=shelf, adviser=adviser, patience=patient
    )


@pytest.fixture(scope="module", autouse=True)
def connection(nodes: Nodes) -> Iterator[None]:
    """Connect once: engines use a connection that is there, and leave it."""
    import ray

    ray.init(address=nodes.address, log_to_driver=False, logging_level=logging.WARNING)
    yield
    ray.shutdown()


class TestRayEngine(EngineContract):
    """The whole contract, with actors on several nodes."""

    epoch_s = 0.15

    @staticmethod
    def make(workload: Workload, adviser: Adviser) -> Engine:
        return engine(trains(workload), Path(tempfile.mkdtemp()), Ray(cpus=2), adviser)

    @pytest.fixture(autouse=True)
    def cluster(self, nodes: Nodes) -> None:
        self.nodes = nodes

    def left_over(self) -> list[int]:
        return nurseries(self.nodes)


@pytest.fixture
def driven(tmp_path: Path, nodes: Nodes) -> Iterator[Callable[..., Hand]]:
    """Give engines under control, and close them afterwards."""
    engines: list[RayEngine] = []

    def make(train: Callable[[Any], Any], wanted: Ray, *configs: dict[str, Any]) -> Hand:
        engines.append(engine(train, tmp_path, wanted, Advising()))
        hand = Hand(engines[-1], 0.05)
        hand.give(*(opened(trial, config) for trial, config in enumerate(configs)))
        return hand

    yield make
    for each in engines:
        each.close()
    assert nurseries(nodes) == []


def beats(trial: Any) -> None:  # noqa: ANN401
    """Train fast, for ever, keep the count, and say where."""
    count = trial.keep(count=[0])
    for _ in trial.epochs():
        time.sleep(0.01)
        count[0] += 1
        gpu = os.environ["CUDA_VISIBLE_DEVICES"] or "-1"
        told = {"rank": trial.rank, "size": trial.size, "gpu": float(gpu), "pid": os.getpid()}
        trial.report(loss=1.0 / count[0], nursery=os.getppid(), **told)


def said(hand: Hand, attempt: int) -> dict[str, float | None]:
    """Return what an attempt reported last."""
    return [event.metrics for event in hand.of(e.Reported) if event.attempt == attempt][-1]


def on(launch: d.Launch, *slots: int) -> d.Launch:
    return replace(launch, slots=slots, width=float(len(slots)))


def test_a_killed_worker_is_a_failure_and_its_host_stays_warm(driven: Callable[..., Hand]) -> None:
    hand = driven(beats, Ray(cpus=2), {"a": 1})
    hand.give(hand.launch(0, goal=FAR))
    hand.until_reported(0, 2)
    os.kill(int(said(hand, 0)["pid"] or 0), signal.SIGKILL)
    ended = hand.until_ended(0)
    assert ended.cause is e.Cause.FAILED
    assert "SIGKILL" in ended.note
    before = said(hand, 0)["nursery"]
    hand.give(on(hand.launch(1, goal=2), 0))
    assert hand.until_ended(1).cause is e.Cause.GOAL
    assert said(hand, 1)["nursery"] == before


def test_a_killed_nursery_costs_its_node_no_slot_and_its_trials_no_retry(
    driven: Callable[..., Hand],
) -> None:
    hand = driven(beats, Ray(cpus=2), {"a": 1})
    hand.give(on(hand.launch(0, goal=FAR), 0))
    hand.until_reported(0, 2)
    os.kill(int(said(hand, 0)["nursery"] or 0), signal.SIGKILL)
    ended = hand.until_ended(0)
    assert (ended.cause, ended.note) == (e.Cause.LOST, "all workers of its node were killed")
    hand.give(on(hand.launch(1, goal=2), 0))
    assert hand.until_ended(1).cause is e.Cause.GOAL


def test_a_killed_host_takes_its_slots_along_and_others_come(driven: Callable[..., Hand]) -> None:
    hand = driven(beats, Ray(cpus=2), {"a": 1})
    (before,) = hand.of(e.CapacityChanged)
    hand.give(on(hand.launch(0, goal=FAR), before.slots[0]))
    hand.until_reported(0, 2)
    os.kill(parent_of(int(said(hand, 0)["nursery"] or 0)), signal.SIGKILL)
    ended = hand.until_ended(0)
    assert (ended.cause, ended.note) == (e.Cause.LOST, "its node is gone")
    hand.until(lambda: len(hand.of(e.CapacityChanged)[-1].slots) == 2, "its slots again")
    after = hand.of(e.CapacityChanged)[-1]
    # A slot's number never means another place.
    assert before.slots[0] not in after.slots
    saved = max(event.epoch for event in hand.of(e.Saved))
    launch = hand.launch(1, goal=saved + 2, start=saved, source=0)
    hand.give(on(launch, after.slots[-1]))
    assert hand.until_ended(1).cause is e.Cause.GOAL


def test_a_launch_on_a_slot_that_went_meanwhile_is_lost(driven: Callable[..., Hand]) -> None:
    hand = driven(beats, Ray(cpus=2), {"a": 1})
    hand.give(on(hand.launch(0, goal=FAR), 99))
    ended = hand.until_ended(0)
    assert (ended.cause, ended.note) == (e.Cause.LOST, "its node is gone")


def test_what_the_cluster_does_not_have_yet_stays_asked_for_and_comes(
    driven: Callable[..., Hand], nodes: Nodes
) -> None:
    with pytest.warns(PacelineWarning, match="no free GPU now: the study waits"):
        hand = driven(beats, Ray(gpus=1), {"a": 1})
    assert [event.slots for event in hand.of(e.CapacityChanged)] == [()]
    node = nodes.add(num_cpus=1, num_gpus=2)
    hand.until(lambda: len(hand.of(e.CapacityChanged)[-1].slots) == 1, "its GPU")
    hand.give(d.Provide(slots=1, why=WHY))
    hand.until(lambda: len(hand.of(e.CapacityChanged)[-1].slots) == 2, "another GPU")
    first, second = hand.of(e.CapacityChanged)[-1].slots
    hand.give(on(hand.launch(0, goal=2), first), on(hand.launch(1, goal=2), second))
    hand.until_ended(0)
    hand.until_ended(1)
    # Each sees the GPU that Ray has given to its slot, and no other.
    assert {said(hand, 0)["gpu"], said(hand, 1)["gpu"]} == {0.0, 1.0}
    nodes.remove(node)
    hand.until(lambda: not hand.of(e.CapacityChanged)[-1].slots, "that its GPUs are gone")


def test_a_gang_on_two_nodes_trains_every_epoch_together(
    driven: Callable[..., Hand], nodes: Nodes
) -> None:
    added = [nodes.add(num_cpus=1, num_gpus=1) for _ in range(2)]
    hand = driven(beats, Ray(gpus=2), {"a": 1})
    slots = hand.of(e.CapacityChanged)[-1].slots
    hand.give(on(hand.launch(0, goal=4), *slots))
    assert hand.until_ended(0).cause is e.Cause.GOAL
    assert [epoch for epoch, _ in hand.values(0)] == [1, 2, 3, 4]
    assert (said(hand, 0)["rank"], said(hand, 0)["size"]) == (0, 2)
    hand.give(on(hand.launch(1, goal=FAR), *slots))
    hand.until_reported(1, 2)
    nodes.remove(added.pop())
    ended = hand.until_ended(1)
    assert (ended.cause, ended.note) == (e.Cause.LOST, "its node is gone")
    for node in added:
        nodes.remove(node)


def test_a_folder_that_a_node_does_not_see_is_refused(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.checkpoints.rmdir()
    with pytest.raises(SpecError, match=r"does not see .*: give files=… in a folder"):
        Tenancy(Ray(cpus=1), beats, shelf)


def test_a_slot_that_is_given_back_is_free_for_others(driven: Callable[..., Hand]) -> None:
    hand = driven(beats, Ray(cpus=2), {"a": 1})
    first, second = hand.of(e.CapacityChanged)[-1].slots
    hand.give(d.Retire(slots=(second,), why=WHY))
    hand.give(d.Provide(slots=1, why=WHY))
    # Its answer is what there is; then comes what was asked for.
    hand.until(lambda: len(hand.of(e.CapacityChanged)) == 3, "a slot for it")
    assert hand.of(e.CapacityChanged)[-1].slots[0] == first
    assert second not in hand.of(e.CapacityChanged)[-1].slots


def test_who_gives_slots_back_asks_for_no_more(driven: Callable[..., Hand]) -> None:
    from ray.util import placement_group_table

    before = placement_group_table().keys()
    # Four are there, and two more are asked for.
    hand = driven(beats, Ray(cpus=6), {"a": 1})
    hand.until(lambda: len(hand.of(e.CapacityChanged)[-1].slots) == 4, "what others gave back")
    first, *_, last = hand.of(e.CapacityChanged)[-1].slots
    hand.give(on(hand.launch(0, goal=FAR), first), d.Retire(slots=(last,), why=WHY))

    def asked() -> list[str]:
        table = placement_group_table()
        return sorted(table[name]["state"] for name in table.keys() - before)

    hand.until(lambda: asked() == ["CREATED"] * 3 + ["REMOVED"] * 3, "three slots alone")


def test_who_has_given_slots_back_has_one_again_when_its_node_dies(
    driven: Callable[..., Hand], nodes: Nodes
) -> None:
    added = nodes.add(num_cpus=1)
    hand = driven(beats, Ray(), {"a": 1})
    hand.until(lambda: len(hand.of(e.CapacityChanged)[-1].slots) == 5, "what others gave back")
    told = hand.of(e.CapacityChanged)[-1]
    where = zip(told.slots, told.nodes, strict=True)
    elsewhere = tuple(slot for slot, node in where if not added.node_id.startswith(node))
    assert len(elsewhere) == 4
    hand.give(d.Retire(slots=elsewhere, why=WHY))
    nodes.remove(added)
    hand.until(lambda: {*hand.of(e.CapacityChanged)[-1].slots} - {*told.slots} != set(), "another")


def test_what_is_free_in_pieces_alone_is_asked_for_less_and_less_often(
    driven: Callable[..., Hand],
) -> None:
    import ray
    from ray.util import placement_group, placement_group_table, remove_placement_group

    others = placement_group([{"CPU": 0.5}] * 2, strategy="STRICT_SPREAD")
    ray.get(others.ready())
    # One and a half on each node.
    hand = driven(beats, Ray(), {"a": 1})
    hand.until(lambda: len(hand.of(e.CapacityChanged)[-1].slots) == 2, "one on each")
    hand.give(hand.launch(0, goal=FAR))
    began, before = time.monotonic(), placement_group_table().keys()
    hand.until_reported(0, 600)
    asked = len(placement_group_table().keys() - before)
    # Where it is asked for at every look, that is once a second and more.
    assert asked <= 1 + math.log2(1 + (time.monotonic() - began) / 2)
    remove_placement_group(others)
    hand.until(lambda: len(hand.of(e.CapacityChanged)[-1].slots) == 4, "the rest")
