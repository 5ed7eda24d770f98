"""Checkpoints that are kept elsewhere: storages, uploads beside the training, the cache."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from cli_kit import log_of, outside
from live_kit import Running, study_file, wait_for
from test_local_engine import beats, children, spec, trains

import paceline as pl
from paceline.api.stored import folded
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.errors import CheckpointError, PacelineWarning, SpecError
from paceline.engines.process.checkpoint_files import Shelf
from paceline.engines.process.engine import LocalEngine
from paceline.engines.process.local.devices import Devices
from paceline.engines.process.local.worker_pool import Nest
from paceline.engines.process.supervisor import Patience
from paceline.engines.process.uploads import Outbox
from paceline.store.storage import Folder, open_storage, try_out
from paceline.testing.engine_driver import Advising, Hand, opened
from paceline.testing.engines import EngineContract
from paceline.testing.storages import StorageContract
from paceline.worker.trial import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paceline.core.ports import Adviser, Engine, Storage, Workload


class TestFolder(StorageContract):
    """A folder keeps the contract."""

    @pytest.fixture(autouse=True)
    def somewhere(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.folder = tmp_path_factory.mktemp("shared")

    def make(self, place: str) -> Storage:
        return open_storage(str(self.folder / place))


class TestMemory(StorageContract):
    """Another kind of fsspec's keeps it too: nothing is S3's alone."""

    run = uuid4().hex

    def make(self, place: str) -> Storage:
        return open_storage(f"memory://{self.run}/{place}")


def test_an_address_of_a_kind_that_nobody_knows_is_refused() -> None:
    with pytest.raises(SpecError, match="nowhere://x names no storage"):
        open_storage("nowhere://x")


def test_without_fsspec_an_address_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "paceline.store.object_storage", raising=False)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(SpecError, match=r"needs fsspec.*pip install 'paceline\[s3\]'"):
        open_storage("s3://bucket/prefix")


def test_without_its_library_a_kind_of_storage_says_what_to_install() -> None:
    with pytest.raises(SpecError, match=r"needs what fsspec has for 'gcs'.*pip install"):
        open_storage("gcs://bucket/prefix")


def test_a_place_that_cannot_be_written_is_found_out_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="cannot be written to"):
        try_out(Folder(tmp_path / "file" / "below"))
    try_out(Folder(tmp_path / "new"))
    assert list((tmp_path / "new").iterdir()) == []


def test_a_study_whose_place_cannot_be_written_trains_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    def never(trial: Any) -> None:  # noqa: ANN401
        (tmp_path / "trained").touch()

    with pytest.raises(CheckpointError, match="Not a directory"):
        pl.tune(
            never,
            space={"lr": pl.uniform(0, 1)},
            metric="loss",
            mode="min",
            epochs=1,
            checkpoints=tmp_path / "file" / "below",
        )
    assert not (tmp_path / "trained").exists()


# What is told when


def saved(epoch: int) -> e.Saved:
    return e.Saved(at=1.0, attempt=7, epoch=epoch)


def reported(epoch: int) -> e.Reported:
    return e.Reported(at=1.0, attempt=7, epoch=epoch, metrics={"loss": 1.0}, seconds=1.0)


class Box:
    """An outbox, what it has told and what it uploads."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.uploads: list[int] = []
        self.box = Outbox(lambda saved: self.uploads.append(saved.epoch), self._tell, lambda: 9.0)

    def _tell(self, event: e.AnyEvent) -> None:
        self.told.append(f"{type(event).__name__} {getattr(event, 'epoch', '')}".strip())

    def say(self, epoch: int) -> None:
        self.box.say(7, reported(epoch))


def test_a_save_is_told_when_it_is_uploaded_and_reports_do_not_wait_for_it() -> None:
    box = Box()
    box.say(1)
    box.box.saved(saved(1), None, asked=False)
    box.say(2)
    assert (box.told, box.uploads) == (["Reported 1", "Reported 2"], [1])
    box.box.settled(saved(1), "")
    assert box.told[2:] == ["Saved 1"]


def test_a_report_that_may_be_told_only_with_its_checkpoint_waits_and_others_after_it() -> None:
    box = Box()
    box.box.saved(saved(1), reported(1), asked=False)
    box.say(2)
    assert box.told == []
    box.box.settled(saved(1), "")
    assert box.told == ["Reported 1", "Reported 2", "Saved 1"]


def test_an_upload_that_fails_is_a_miss_and_holds_up_nothing() -> None:
    box = Box()
    box.box.saved(saved(1), reported(1), asked=True)
    box.say(2)
    box.box.settled(saved(1), "the line was cut")
    assert box.told == ["Reported 1", "Reported 2", "Missed 1"]


def test_of_saves_that_queue_up_the_latest_is_uploaded_and_those_somebody_asked_for() -> None:
    box = Box()
    for epoch in (1, 2, 3, 4, 5):
        box.say(epoch)
        box.box.saved(saved(epoch), None, asked=epoch == 3)
    for epoch in (1, 3, 5):
        assert box.uploads[-1] == epoch
        box.box.settled(saved(epoch), "")
    assert box.uploads == [1, 3, 5]
    assert [told for told in box.told if not told.startswith("Rep")] == [
        "Missed 2",
        "Missed 4",
        "Saved 1",
        "Saved 3",
        "Saved 5",
    ]


def test_who_is_better_in_every_epoch_is_told_with_the_latest_that_is_safe() -> None:
    box = Box()
    for epoch in (1, 2, 3):
        box.box.saved(saved(epoch), reported(epoch), asked=False)
    assert box.told == []
    box.box.settled(saved(1), "")
    assert box.told == ["Reported 1", "Saved 1"]
    box.box.saved(saved(4), reported(4), asked=False)
    box.box.settled(saved(3), "")
    assert box.told[2:] == ["Reported 2", "Missed 2", "Reported 3", "Saved 3"]
    box.box.settled(saved(4), "")
    assert box.told[6:] == ["Reported 4", "Saved 4"]


def test_an_end_is_told_when_all_that_was_saved_is_settled() -> None:
    box = Box()
    box.box.saved(saved(1), None, asked=False)
    box.box.saved(saved(2), reported(2), asked=True)
    box.box.end(e.Ended(at=1.0, attempt=7, cause=e.Cause.FINISHED))
    box.box.settled(saved(1), "")
    assert box.told == ["Saved 1"]
    box.box.settled(saved(2), "")
    assert box.told == ["Saved 1", "Reported 2", "Saved 2", "Ended"]
    box.box.end(e.Ended(at=1.0, attempt=8, cause=e.Cause.HALTED))
    assert box.told[-1] == "Ended"


# With processes


class Watched(Folder):
    """A folder that counts what is fetched, and puts nothing while it is told to wait."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.fetched: list[str] = []
        self.open = threading.Event()
        self.open.set()
        self.broken = False

    def put(self, name: str, path: str) -> None:
        assert self.open.wait(60)
        if self.broken:
            raise CheckpointError(f"checkpoint {name} cannot be written: it is broken.")
        super().put(name, path)

    def get(self, name: str, path: str) -> None:
        self.fetched.append(name)
        super().get(name, path)


def elsewhere(
    train: Callable[[Any], Any],
    files: Path,
    storage: Storage,
    adviser: Adviser | None = None,
    cache_bytes: int | None = None,
) -> LocalEngine:
    """Return an engine whose checkpoints are kept in a storage."""
    devices = Devices(2, 2)
    return LocalEngine(
        spec(),
        Nest(train, devices.thread_limits()),
        devices,
        shelf=Shelf(files, storage, cache_bytes),
        adviser=adviser or Advising(),
        patience=Patience(grace_s=1.0),
    )


class TestLocalEngineElsewhere(EngineContract):
    """The whole contract, with checkpoints that are kept in another folder."""

    epoch_s = 0.03

    @staticmethod
    def make(workload: Workload, adviser: Adviser) -> Engine:
        folder = Path(tempfile.mkdtemp())
        # Nothing stays in the cache: whatever is restored is fetched.
        return elsewhere(trains(workload), folder / "here", Folder(folder / "there"), adviser, 0)

    def left_over(self) -> list[int]:
        return children()


@pytest.fixture
def storage(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "there")


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Callable[..., Hand]]:
    """Give engines under control, each with files of its own, and close them afterwards."""
    made: list[LocalEngine] = []

    def make(
        storage: Storage,
        cache_bytes: int | None = None,
        train: Callable[[Any], None] = beats,
    ) -> Hand:
        files = tmp_path / f"node-{len(made)}"
        made.append(elsewhere(train, files, storage, cache_bytes=cache_bytes))
        hand = Hand(made[-1], 0.02)
        hand.give(opened(0, {}))
        return hand

    yield make
    for engine in made:
        engine.close()


def prints(trial: Any) -> None:  # noqa: ANN401
    """Train fast, for ever, be better each time, and print that an epoch is done."""
    count = trial.keep(count=[0])
    for _ in trial.epochs():
        time.sleep(0.005)
        count[0] += 1
        trial.report(loss=1.0 / count[0])
        sys.stdout.write("done\n")
        sys.stdout.flush()


def test_training_goes_on_while_a_checkpoint_is_uploaded(
    storage: Watched, engines: Callable[..., Hand], tmp_path: Path
) -> None:
    hand = engines(storage, train=prints)
    storage.open.clear()
    hand.give(hand.launch(0, goal=10**6, save_at=(3,)))
    output = tmp_path / "node-0" / "logs" / "attempt-0.log"

    def goes_on() -> bool:
        hand.told += hand.engine.wait(0.02) or ()
        return output.exists() and output.read_text().count("done") > 20

    wait_for(goes_on)
    assert hand.about(0) == [], "the best is told only with its checkpoint"
    storage.open.set()
    hand.until(lambda: bool(hand.of(e.Saved)), "a save")
    assert len(storage.list()) <= 3, "what was saved meanwhile need not be uploaded any more"


def test_on_the_machine_that_saved_it_nothing_is_fetched(
    storage: Watched, engines: Callable[..., Hand]
) -> None:
    hand = engines(storage)
    hand.give(hand.launch(0, goal=3))
    assert hand.until_ended(0).cause is e.Cause.GOAL
    hand.give(hand.launch(1, goal=6, start=3, source=0))
    assert hand.until_ended(1).cause is e.Cause.GOAL
    assert [epoch for epoch, _ in hand.values(1)] == [4, 5, 6]
    assert storage.fetched == []
    assert {stored.name for stored in storage.list()} >= {"0-3.ckpt", "1-6.ckpt"}


def test_another_machine_fetches_what_it_starts_from(
    storage: Watched, engines: Callable[..., Hand]
) -> None:
    first = engines(storage)
    first.give(first.launch(0, goal=3))
    first.until_ended(0)
    second = engines(storage)
    second.give(second.launch(1, goal=6, start=3, source=0))
    assert second.until_ended(1).cause is e.Cause.GOAL
    assert storage.fetched == ["0-3.ckpt"]
    assert [value for _, value in second.values(1)] == [1 / 4, 1 / 5, 1 / 6]


def test_what_cannot_be_fetched_is_spoiled(storage: Watched, engines: Callable[..., Hand]) -> None:
    hand = engines(storage)
    hand.give(hand.launch(0, goal=6, start=3, source=5))
    assert hand.until_ended(0).cause is e.Cause.LOST
    (spoiled,) = hand.of(e.Spoiled)
    assert "5-3.ckpt cannot be read from" in spoiled.note


def test_what_was_changed_elsewhere_is_spoiled(
    storage: Watched, engines: Callable[..., Hand], tmp_path: Path
) -> None:
    hand = engines(storage, cache_bytes=0)
    hand.give(hand.launch(0, goal=3))
    hand.until_ended(0)
    path = tmp_path / "there" / "0-3.ckpt"
    body = bytearray(path.read_bytes())
    body[-1] ^= 1
    path.write_bytes(body)
    hand.give(hand.launch(1, goal=6, start=3, source=0))
    assert hand.until_ended(1).cause is e.Cause.LOST
    assert "it is not what was written" in hand.of(e.Spoiled)[0].note


def test_a_trial_goes_on_where_uploads_fail_and_nothing_is_named(
    storage: Watched, engines: Callable[..., Hand], tmp_path: Path
) -> None:
    storage.broken = True
    hand = engines(storage)
    hand.give(hand.launch(0, goal=5))
    with pytest.warns(PacelineWarning, match="it is broken. Training goes on without it"):
        assert hand.until_ended(0).cause is e.Cause.GOAL
    assert [epoch for epoch, _ in hand.values(0)] == [1, 2, 3, 4, 5]
    assert hand.of(e.Saved) == []
    assert {missed.note for missed in hand.of(e.Missed)} >= {
        "checkpoint 0-5.ckpt cannot be written: it is broken."
    }
    assert storage.list() == []
    assert list((tmp_path / "node-0" / "checkpoints").iterdir()) == []


def test_what_is_dropped_goes_here_and_there(
    storage: Watched, engines: Callable[..., Hand], tmp_path: Path
) -> None:
    hand = engines(storage)
    hand.give(hand.launch(0, goal=3))
    hand.until_ended(0)
    names = tuple((saved.attempt, saved.epoch) for saved in hand.of(e.Saved))
    assert (0, 3) in names
    hand.give(d.Drop(checkpoints=names, why="the test asks for it"))
    hand.give(hand.launch(4, goal=1))  # goes through the same line, after it
    hand.until_ended(4)
    assert {stored.name for stored in storage.list()} == {"4-1.ckpt"}
    here = (tmp_path / "node-0" / "checkpoints").iterdir()
    assert {path.name for path in here} == {"4-1.ckpt"}


def test_the_cache_keeps_what_was_used_last(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "files", Folder(tmp_path / "there"), 250)

    def lie(name: tuple[int, int]) -> None:
        shelf.path(name).write_bytes(b"x" * 100)
        shelf.cached(name)

    def here() -> set[str]:
        return {path.name for path in shelf.checkpoints.iterdir()}

    lie((0, 1))
    lie((1, 1))
    assert shelf.wanted(9, (0, 1))
    lie((2, 1))
    assert here() == {"0-1.ckpt", "2-1.ckpt"}
    lie((3, 1))
    assert here() == {"0-1.ckpt", "3-1.ckpt"}, "an attempt has not read it yet"
    shelf.read(9)
    lie((4, 1))
    assert here() == {"3-1.ckpt", "4-1.ckpt"}
    assert not shelf.wanted(9, (0, 1))


# Whole studies


def learns(trial: Any) -> None:  # noqa: ANN401
    weight = trial.keep(weight=[0.0])
    for _ in trial.epochs():
        time.sleep(0.002)
        weight[0] += trial["lr"] * (1 - weight[0])
        trial.report(loss=(1 - weight[0]) ** 2, pid=os.getpid())


def told(folder: Path, node: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return what a study on one of several machines is given."""
    return {
        "metric": "loss",
        "mode": "min",
        "epochs": 6,
        "slots": 2,
        "name": "moves",
        "store": f"sqlite:///{folder / 'studies.db'}",
        "files": folder / node,
        "checkpoints": str(folder / "shared"),
        "progress": False,
        **more,
    }


def test_a_study_goes_on_from_a_shared_folder_on_another_machine(tmp_path: Path) -> None:
    rates = (0.1, 0.2, 0.4)
    with pl.Study(learns, **told(tmp_path, "one")) as study:
        study.group([({"lr": rate}, 3) for rate in rates])
    with pl.Study(learns, **told(tmp_path, "two")) as study:
        ran = study.group([({"lr": rate}, 6) for rate in rates])
        weights = [trial.checkpoint and trial.checkpoint.load()["weight"][0] for trial in ran]
    state = folded(log_of(f"sqlite:///{tmp_path / 'studies.db'}", "moves"))
    assert (state.epochs_trained, state.repeats) == (6 * len(rates), 0)
    assert weights == pytest.approx([1 - (1 - rate) ** 6 for rate in rates])


def test_a_study_keeps_its_checkpoints_where_they_were(tmp_path: Path) -> None:
    with pl.Study(learns, **told(tmp_path, "one")) as study:
        study.group([({"lr": 0.1}, 3)])
    with (
        pytest.raises(SpecError, match=r"keeps its checkpoints in .*shared, not in"),
        pl.Study(learns, **told(tmp_path, "one", checkpoints=str(tmp_path / "other"))) as study,
    ):
        study.group([({"lr": 0.1}, 6)])


def test_a_driver_that_is_killed_is_followed_by_one_on_another_machine(tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    study_file(tmp_path)
    run = ("run", "study.py", "--name", "told", "--checkpoints", "shared", "--no-report", "-q")
    with Running(tmp_path, "paceline", *run) as driver:
        # Two trials stand in their third epoch; what was the best before is saved.
        store = f"sqlite:///{tmp_path / 'paceline.db'}"
        wait_for(lambda: any((tmp_path / "shared").glob("*/*.ckpt")))
        wait_for(lambda: any(isinstance(step.event, e.Saved) for step in log_of(store, "told")))
        driver.signal(signal.SIGKILL)
        assert driver.end().code == -signal.SIGKILL
    shutil.rmtree(tmp_path / "paceline.files")
    (tmp_path / "hold").unlink()
    ran = outside(tmp_path, "resume", "told", "--no-report", "-q")
    assert ran.code == 0, ran.err
    log = log_of(store, "told")
    state = folded(log)
    assert state.end is not None
    again = next(at for at, step in enumerate(log) if isinstance(step.event, e.Resumed))
    starts = [
        (decision.source, decision.start)
        for step in log[again:]
        for decision in step.decisions
        if isinstance(decision, d.Launch)
    ]
    assert any(start > 0 for _, start in starts), "nobody went on from what was saved"
    assert not [step for step in log if isinstance(step.event, e.Spoiled)]
    (folder,) = (tmp_path / "shared").iterdir()
    assert {path.name for path in folder.iterdir()} == {
        name_of(*name) for name in state.files.files
    }
