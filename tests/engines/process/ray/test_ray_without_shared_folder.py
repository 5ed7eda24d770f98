"""Nodes of a cluster that share no folder: checkpoints travel by a storage, output by the hosts."""

from __future__ import annotations

import logging
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from live_kit import wait_for
from msgspec.structs import replace
from ray_kit import Nodes, nodes, settled
from s3_kit import BUCKET, Server, serving
from test_local_engine import spec

import paceline as pl
from paceline.api.stored import opened as opened_store
from paceline.api.stored import replayed
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.errors import PacelineWarning, SpecError
from paceline.engines.process.checkpoint_files import Shelf
from paceline.engines.process.ray.config import Ray
from paceline.engines.process.ray.session import RayEngine, Tenancy
from paceline.engines.process.supervisor import Patience
from paceline.store.storage import Folder, open_storage
from paceline.testing.engine_driver import FAR, Advising, Hand, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from paceline.core.decisions import Step
    from paceline.core.ports import Storage
    from paceline.machine.state import StudyState

__all__ = ["nodes", "settled"]

# One cluster for all of them.
pytestmark = pytest.mark.xdist_group("far")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return an address that the driver reaches as nodes do: by the usual variables."""
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/runs"


def apart(nodes: Nodes, server: Server) -> Any:  # noqa: ANN401 - Ray's own word for a node
    """Add a node with one slot that reaches the server."""
    return nodes.add(num_cpus=1, num_gpus=1, env_vars=server.environ)


@pytest.fixture(scope="module", autouse=True)
def two(nodes: Nodes, server: Server) -> Iterator[None]:
    """Have two such nodes, and a connection."""
    import ray

    added = [apart(nodes, server) for _ in range(2)]
    ray.init(address=nodes.address, log_to_driver=False, logging_level=logging.WARNING)
    yield
    ray.shutdown()
    for node in added:
        nodes.remove(node)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Return where each node keeps files of its own, in a folder that no other looks into."""
    return tmp_path / "disk"


def counts(trial: Any) -> None:  # noqa: ANN401
    """Train fast, for ever, be better each time, and say that it begins."""
    count = trial.keep(count=[0])
    sys.stdout.write("begins\n")
    for _ in trial.epochs():
        time.sleep(0.01)
        count[0] += 1
        trial.report(loss=1.0 / count[0])


def engine(
    files: Path, storage: Storage, cache_bytes: int | None = None, slots: int = 2
) -> RayEngine:
    shelf = Shelf(files, storage, cache_bytes)
    wanted = Ray(gpus=slots, disk=str(files.parent / "disk"))
    return RayEngine(
        spec(),
        Tenancy(wanted, counts, shelf),
        shelf=shelf,
        adviser=Advising(),
        patience=Patience(grace_s=1.0),
    )


def begun(engine: RayEngine, slots: int) -> Hand:
    """Return an engine under control, with one trial, when all its slots have come."""
    hand = Hand(engine, 0.05)
    # The study before may still be giving them back.
    hand.until(lambda: len(hand.of(e.CapacityChanged)[-1].slots) == slots, "its slots")
    hand.give(opened(0, {}))
    return hand


@pytest.fixture
def driven(disk: Path, tmp_path: Path) -> Iterator[Callable[..., Hand]]:
    """Give engines under control, and close them afterwards."""
    engines: list[RayEngine] = []

    def make(cache_bytes: int | None = None) -> Hand:
        engines.append(engine(tmp_path / "study", Folder(tmp_path / "kept"), cache_bytes))
        return begun(engines[-1], 2)

    yield make
    for each in engines:
        each.close()
    assert list(disk.iterdir()) == []


def on(slot: int, launch: d.Launch) -> d.Launch:
    return replace(launch, slots=(slot,))


def named(folder: Path) -> set[str]:
    """Return the names of all checkpoints in a folder and below."""
    return {path.name for path in folder.rglob("*.ckpt")}


def test_a_trial_goes_on_on_another_node_and_what_it_printed_comes_here(
    driven: Callable[..., Hand], disk: Path, tmp_path: Path
) -> None:
    hand = driven()
    first, second = hand.of(e.CapacityChanged)[-1].slots
    hand.give(on(first, hand.launch(0, goal=3)))
    assert hand.until_ended(0).cause is e.Cause.GOAL
    assert "0-3.ckpt" in named(tmp_path / "kept")
    hand.give(on(second, hand.launch(1, goal=6, start=3, source=0)))
    assert hand.until_ended(1).cause is e.Cause.GOAL
    assert [value for _, value in hand.values(1)] == [1 / 4, 1 / 5, 1 / 6]
    # Each disk has what was saved or read there, and the study's own folder has nothing.
    held = sorted(({"0-3.ckpt", "1-6.ckpt"} & named(node) for node in disk.iterdir()), key=len)
    assert held == [{"0-3.ckpt"}, {"0-3.ckpt", "1-6.ckpt"}]
    assert named(tmp_path / "study") == set()
    logs = [tmp_path / "study" / "logs" / f"attempt-{attempt}.log" for attempt in (0, 1)]
    assert [log.read_text() for log in logs] == ["begins\n"] * 2
    hand.give(d.Drop(checkpoints=((0, 3),), why="the test asks for it"))
    hand.give(on(first, hand.launch(2, goal=1)), on(second, hand.launch(3, goal=1)))
    for attempt in (2, 3):
        hand.until_ended(attempt)
    assert "0-3.ckpt" not in named(tmp_path)


def test_a_node_starts_from_its_own_copy_while_there_is_room_for_it(
    driven: Callable[..., Hand], disk: Path, tmp_path: Path
) -> None:
    hand = driven()
    first, second = hand.of(e.CapacityChanged)[-1].slots
    hand.give(on(first, hand.launch(0, goal=3)))
    hand.until_ended(0)
    (tmp_path / "kept" / "0-3.ckpt").unlink()
    hand.give(on(first, hand.launch(1, goal=4, start=3, source=0)))
    assert hand.until_ended(1).cause is e.Cause.GOAL
    hand.give(on(second, hand.launch(2, goal=4, start=3, source=0)))
    assert hand.until_ended(2).cause is e.Cause.LOST
    (spoiled,) = hand.of(e.Spoiled)
    assert "0-3.ckpt cannot be read from" in spoiled.note


def test_without_room_for_copies_what_changed_in_the_storage_is_found_out(
    driven: Callable[..., Hand], disk: Path, tmp_path: Path
) -> None:
    hand = driven(cache_bytes=0)
    first = hand.of(e.CapacityChanged)[-1].slots[0]
    hand.give(on(first, hand.launch(0, goal=3)))
    hand.until_ended(0)
    assert "0-3.ckpt" not in named(disk)
    path = tmp_path / "kept" / "0-3.ckpt"
    body = bytearray(path.read_bytes())
    body[-1] ^= 1
    path.write_bytes(body)
    hand.give(on(first, hand.launch(1, goal=4, start=3, source=0)))
    assert hand.until_ended(1).cause is e.Cause.LOST
    assert "it is not what was written" in hand.of(e.Spoiled)[0].note


def test_a_storage_that_breaks_never_yields_a_named_checkpoint(
    driven: Callable[..., Hand], tmp_path: Path
) -> None:
    hand = driven()
    kept = tmp_path / "kept"
    kept.rmdir()
    kept.write_text("in the way")
    hand.give(hand.launch(0, goal=4))
    with pytest.warns(PacelineWarning, match=r"cannot be written to .* Training goes on"):
        assert hand.until_ended(0).cause is e.Cause.GOAL
    assert [epoch for epoch, _ in hand.values(0)] == [1, 2, 3, 4]
    assert hand.of(e.Saved) == []
    assert any("0-4.ckpt cannot be written to" in missed.note for missed in hand.of(e.Missed))


def test_what_a_node_had_not_published_when_it_died_was_never_named(
    nodes: Nodes, server: Server, bucket: str, disk: Path, tmp_path: Path
) -> None:
    import ray

    before = {node["NodeID"] for node in ray.nodes()}
    node = apart(nodes, server)
    (name,) = {node["NodeID"] for node in ray.nodes()} - before
    storage = open_storage(f"{bucket}/cut")
    there = engine(tmp_path / "study", storage, slots=3)
    hand = begun(there, 3)
    capacity = hand.of(e.CapacityChanged)[-1]
    places = dict(zip(capacity.nodes, capacity.slots, strict=True))
    hand.give(on(places.pop(name[:8]), hand.launch(9, goal=FAR)))
    hand.until_reported(9, 2)
    with server.silent():

        def ahead() -> bool:
            hand.told += there.wait(0.02) or ()
            return len(named(disk) - {f"9-{saved.epoch}.ckpt" for saved in hand.of(e.Saved)}) > 10

        wait_for(ahead)
        nodes.remove(node)
        with pytest.warns(PacelineWarning, match=r"went with its node before it was published"):
            ended = hand.until_ended(9)
    assert (ended.cause, ended.note) == (e.Cause.LOST, "its node is gone")
    last = max(saved.epoch for saved in hand.of(e.Saved) if saved.attempt == 9)
    hand.give(on(places.popitem()[1], hand.launch(10, goal=last + 1, start=last, source=9)))
    assert hand.until_ended(10).cause is e.Cause.GOAL
    assert [value for _, value in hand.values(10)] == [1 / (last + 1)]
    there.close()


def test_a_disk_is_refused_where_nothing_would_be_published_from_it(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="keeps nothing for good"):
        Tenancy(Ray(disk="/disk"), counts, Shelf(tmp_path / "study"))


def test_a_storage_that_is_another_one_on_each_node_is_refused(disk: Path, tmp_path: Path) -> None:
    each_its_own = open_storage("memory://somewhere/kept")
    with pytest.raises(SpecError, match=r"has another memory://.* than the driver"):
        engine(tmp_path / "study", each_its_own)
    assert list(disk.iterdir()) == []


class Nowhere(Folder):
    """A storage of a kind that nodes have no library for."""


def test_a_storage_that_nodes_cannot_open_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"cannot open .*kept: .*No module named"):
        engine(tmp_path / "study", Nowhere(tmp_path / "kept"))


def test_a_node_that_does_not_see_the_folder_keeps_files_among_its_temporary_ones(
    tmp_path: Path,
) -> None:
    shelf = Shelf(tmp_path / "study", Folder(tmp_path / "unseen"))
    shelf.checkpoints.rmdir()
    there = RayEngine(spec(), Tenancy(Ray(cpus=1), counts, shelf), shelf=shelf, adviser=Advising())
    hand = begun(there, 1)
    hand.give(hand.launch(0, goal=2))
    assert hand.until_ended(0).cause is e.Cause.GOAL
    there.close()
    assert "0-2.ckpt" in named(tmp_path / "unseen")
    assert not list(Path(tempfile.gettempdir()).glob("paceline-unseen-*")), "it goes with its host"


# Whole studies


def learner(hold: Path) -> Callable[[Any], None]:
    """Walk at random, at the pace of the learning rate: every bit depends on all before it."""

    def learns(trial: Any) -> None:  # noqa: ANN401
        state = trial.keep(state={"at": 0.0})
        for epoch in trial.epochs():
            while epoch == 2 and hold.exists():
                time.sleep(0.01)
            state["at"] += trial["lr"] * (1.0 + random.gauss(0.0, 0.1) - state["at"])
            trial.report(loss=abs(1.0 - state["at"]), nursery=os.getppid())

    return learns


def study(folder: Path, **options: Any) -> pl.Study:  # noqa: ANN401
    given: dict[str, Any] = {
        "space": {"lr": pl.choice([0.02 * n for n in range(1, 10)])},
        "metric": "loss",
        "mode": "min",
        "epochs": 9,
        "generator": "grid",
        "policy": "sha:first=1",
        "name": "far",
        "store": f"sqlite:///{folder / 'studies.db'}",
    }
    return pl.Study(learner(folder / "hold"), **{**given, **options})


def log_of(folder: Path) -> list[Step]:
    with opened_store(f"sqlite:///{folder / 'studies.db'}") as kept:
        return list(kept.read("far"))


def weights(result: pl.Result) -> list[Any]:
    """Return what was reported by each trial, and what it kept in the end."""
    kept = [trial.checkpoint and trial.checkpoint.load() for trial in result.trials]
    return [
        (trial.config, trial.values, each) for trial, each in zip(result.trials, kept, strict=True)
    ]


def test_on_nodes_that_share_nothing_a_study_ends_as_on_one_machine(
    bucket: str, disk: Path, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    there = pl.Ray(gpus=2, disk=str(disk))
    far = study(tmp_path, slots=there, checkpoints=bucket).run()
    log = log_of(tmp_path)
    assert named(tmp_path) == set(), "nothing came here"
    near = study(tmp_path / "here", slots="cpu:2").run()
    assert weights(far) == weights(near)
    reports = [step.event for step in log if isinstance(step.event, e.Reported)]
    assert len({report.metrics["nursery"] for report in reports}) == 2
    launches = [one for step in log for one in step.decisions if isinstance(one, d.Launch)]
    assert any(launch.source is not None for launch in launches), "some were paused and went on"
    assert not [step for step in log if isinstance(step.event, e.Spoiled)]
    assert replayed(log).difference is None


def test_when_a_node_dies_others_go_on_from_what_it_had_published(
    nodes: Nodes, server: Server, bucket: str, disk: Path, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    hold = tmp_path / "hold"
    hold.touch()
    node = apart(nodes, server)

    def watch(state: StudyState, steps: Sequence[Step]) -> None:
        nonlocal node
        # The best three are on their way again, one on each node.
        if node is not None and [one.epoch for one in state.attempts.values()] == [2, 2, 2]:
            nodes.remove(node)
            node = None
        if node is None and len(state.slots.present) == 2:
            hold.unlink(missing_ok=True)

    there = pl.Ray(gpus=3, disk=str(disk))
    far = study(tmp_path, slots=there, checkpoints=bucket).run(watch)
    log = log_of(tmp_path)
    ends = [step.event for step in log if isinstance(step.event, e.Ended)]
    notes = [end.note for end in ends if end.cause is not e.Cause.GOAL and end.note]
    assert notes == ["its node is gone"]
    launches = [one for step in log for one in step.decisions if isinstance(one, d.Launch)]
    assert sum(not launch.start for launch in launches) == 9, "nobody starts over"
    assert weights(far) == weights(study(tmp_path / "here", slots="cpu:2").run())
    assert replayed(log).difference is None
