"""Wide trials on nodes of a cluster that share no folder: a gang meets, trains and goes on."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from ray_kit import Nodes, nodes, settled
from test_exact_resume import same
from test_local_engine import spec
from test_torch_wide_trials import EPOCHS, LR, by_hand, train

import paceline as pl
from paceline.api.stored import opened as opened_store
from paceline.api.stored import replayed
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.engines.process.checkpoint_files import Shelf
from paceline.engines.process.ray.config import Ray
from paceline.engines.process.ray.session import RayEngine, Tenancy
from paceline.engines.process.supervisor import Patience
from paceline.store.storage import Folder
from paceline.testing.engine_driver import FAR, Advising, Hand, opened
from paceline.worker import checkpoint_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["nodes", "settled"]

# One cluster for all of them.
pytestmark = pytest.mark.xdist_group("far")


@pytest.fixture(scope="module", autouse=True)
def connection(nodes: Nodes) -> Iterator[None]:
    """Connect once: engines use a connection that is there, and leave it."""
    import ray

    ray.init(address=nodes.address, log_to_driver=False, logging_level=logging.WARNING)
    yield
    ray.shutdown()


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Return where each node keeps files of its own, in a folder that no other looks into."""
    return tmp_path / "disk"


@pytest.fixture
def driven(nodes: Nodes, disk: Path, tmp_path: Path) -> Iterator[Callable[..., Hand]]:
    """Give engines on three slots of two nodes under control, and close them afterwards."""
    engines: list[RayEngine] = []

    def make(train: Callable[[Any], Any], config: dict[str, Any]) -> Hand:
        shelf = Shelf(tmp_path / "study", Folder(tmp_path / "kept"))
        made = RayEngine(
            replace(spec(), span=3),
            Tenancy(Ray(cpus=3, disk=str(disk)), train, shelf),
            shelf=shelf,
            adviser=Advising(),
            patience=Patience(grace_s=1.0),
        )
        engines.append(made)
        hand = Hand(made, 0.05)
        # The study before may still be giving them back.
        hand.until(lambda: len(hand.of(e.CapacityChanged)[-1].slots) == 3, "its slots")
        hand.give(opened(0, config))
        return hand

    yield make
    for each in engines:
        each.close()
    assert list(disk.iterdir()) == []


def parted(hand: Hand) -> list[int]:
    """Return the slots: the first on one node, the last on another."""
    capacity = hand.of(e.CapacityChanged)[-1]
    at = dict(zip(capacity.slots, capacity.nodes, strict=True))
    assert len(set(at.values())) == 2
    return sorted(at, key=at.__getitem__)


def on(launch: d.Launch, *slots: int) -> d.Launch:
    return replace(launch, slots=slots, width=float(len(slots)))


def named(folder: Path) -> set[str]:
    """Return the names of all checkpoints in a folder and below."""
    return {path.name for path in folder.rglob("*.ckpt")}


def counts(trial: Any) -> None:  # noqa: ANN401
    """Meet, count, and say who counts from where."""
    trial.meeting()
    count = trial.keep(count=[0])
    sys.stdout.write(f"process {trial.rank} of {trial.size} begins at {count[0]}\n")
    for _ in trial.epochs():
        time.sleep(0.01)
        count[0] += 1
        trial.report(loss=1.0 / count[0], nursery=os.getppid())


def said(files: Path, attempt: int) -> set[str]:
    return {*(files / "logs" / f"attempt-{attempt}.log").read_text().splitlines()}


def test_every_node_of_a_gang_has_what_it_starts_from_and_what_each_process_printed_comes_here(
    driven: Callable[..., Hand], disk: Path, tmp_path: Path
) -> None:
    hand = driven(counts, {})
    first, second, last = parted(hand)
    hand.give(on(hand.launch(0, goal=3), first))
    assert hand.until_ended(0).cause is e.Cause.GOAL, hand.of(e.Ended)
    hand.give(on(hand.launch(1, goal=6, start=3, source=0), last, first, second))
    assert hand.until_ended(1).cause is e.Cause.GOAL, hand.of(e.Ended)
    assert [value for _, value in hand.values(1)] == [1 / 4, 1 / 5, 1 / 6]
    # The first process writes where it is; all have read where they are.
    held = sorted(({"0-3.ckpt", "1-6.ckpt"} & named(node) for node in disk.iterdir()), key=len)
    assert held == [{"0-3.ckpt"}, {"0-3.ckpt", "1-6.ckpt"}]
    assert named(tmp_path / "study") == set()
    assert said(tmp_path / "study", 1) == {f"process {n} of 3 begins at 3" for n in range(3)}
    hand.give(on(hand.launch(2, goal=7, start=6, source=1), first, last))
    assert hand.until_ended(2).cause is e.Cause.GOAL
    hand.give(d.Drop(checkpoints=((0, 3), (1, 6)), why="the test asks for it"))
    hand.give(on(hand.launch(3, goal=1), first, last))
    hand.until_ended(3)
    assert {"0-3.ckpt", "1-6.ckpt"}.isdisjoint(named(tmp_path)), "copies go everywhere"


def test_a_gang_that_cannot_have_what_it_starts_from_has_a_spoiled_checkpoint_and_does_not_hang(
    driven: Callable[..., Hand], tmp_path: Path
) -> None:
    hand = driven(counts, {})
    first, _, last = parted(hand)
    hand.give(on(hand.launch(0, goal=3), first))
    hand.until_ended(0)
    # The first node has a copy, and the other's fetch finds nothing.
    (tmp_path / "kept" / "0-3.ckpt").unlink()
    hand.give(on(hand.launch(1, goal=6, start=3, source=0), first, last))
    ended = hand.until_ended(1)
    assert ended.cause is e.Cause.LOST
    assert "0-3.ckpt cannot be read from" in ended.note
    assert len(hand.of(e.Spoiled)) == 1


# It may have been saving.
@pytest.mark.filterwarnings("ignore:.*went with its node before it was published")
@pytest.mark.parametrize("leads", [False, True])
def test_a_gang_without_a_folder_is_lost_as_a_whole_with_one_of_its_nodes(
    driven: Callable[..., Hand], nodes: Nodes, disk: Path, leads: bool
) -> None:
    hand = driven(counts, {})
    node = nodes.add(num_cpus=1)
    hand.give(d.Provide(slots=2, why="the test asks for it"))
    hand.until(lambda: len(hand.of(e.CapacityChanged)[-1].slots) == 5, "more slots")
    capacity = hand.of(e.CapacityChanged)[-1]
    at = dict(zip(capacity.nodes, capacity.slots, strict=True))
    there = at.pop(node.node_id[:8])
    slots = [there, *at.values()] if leads else [*at.values(), there]
    hand.give(on(hand.launch(0, goal=FAR), *slots))
    hand.until_reported(0, 2)
    nodes.remove(node)
    ended = hand.until_ended(0)
    assert (ended.cause, ended.note) == (e.Cause.LOST, "its node is gone")
    # As its disk would be.
    shutil.rmtree(next(disk.glob(f"*-{node.node_id}")))


def test_a_network_that_grows_across_nodes_and_shrinks_is_the_same_to_the_last_bit(
    driven: Callable[..., Hand], tmp_path: Path
) -> None:
    stages = [(0, 3, 1.0), (3, 6, 2.0), (6, EPOCHS, 1.0)]
    hand = driven(train, {"lr": LR})
    first, _, last = parted(hand)
    for attempt, (start, goal, width) in enumerate(stages):
        launch = hand.launch(
            attempt, goal=goal, start=start, source=attempt - 1 if attempt else None
        )
        # Each stage begins where the one before did not save.
        slots = (first, last) if attempt == 1 else (last,)
        assert len(slots) == width
        hand.give(on(launch, *slots))
        assert hand.until_ended(attempt).cause is e.Cause.GOAL, hand.of(e.Ended)
    kept = checkpoint_file.read(tmp_path / "kept" / f"2-{EPOCHS}.ckpt")["kept"]
    assert same(kept, by_hand(tmp_path / "hand", stages)["kept"])


def test_a_study_of_wide_trials_on_nodes_that_share_nothing_ends_as_one_of_narrow_ones(
    disk: Path, tmp_path: Path
) -> None:
    given: dict[str, Any] = {
        "space": {"lr": pl.grid([LR, LR / 2, LR / 4, LR / 8])},
        "metric": "loss",
        "mode": "min",
        "epochs": 4,
        "generator": "grid",
        "policy": "sha:first=1,eta=2",
        "curves": "last",
    }
    store = f"sqlite:///{tmp_path / 'studies.db'}"
    there = pl.Ray(cpus=3, disk=str(disk))
    kept = str(tmp_path / "kept")
    wide = pl.tune(train, **given, slots=there, span=3, store=store, name="w", checkpoints=kept)
    narrow = pl.tune(train, **given, slots="cpu:2")
    with opened_store(store) as opened:
        log = list(opened.read("w"))
    launches = [one for step in log for one in step.decisions if isinstance(one, d.Launch)]
    assert {launch.width for launch in launches} == {3.0}
    assert any(launch.source is not None for launch in launches), "some were paused and went on"
    assert not [step for step in log if isinstance(step.event, e.Spoiled)]
    for one, other in zip(wide.trials, narrow.trials, strict=True):
        assert one.config == other.config
        assert one.values == pytest.approx(other.values, rel=1e-4)
    assert replayed(log).difference is None
