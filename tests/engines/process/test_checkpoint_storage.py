"""Checkpoints that are kept elsewhere: storages, uploads beside the training, the cache."""

from __future__ import annotations

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
from command_line import read_log, run_command
from process_engines import list_forkservers, make_spec, make_training_function, train_forever
from remote_checkpoints import make_options, train_counter
from running_command import RunningCommand, write_study_file
from waiting import LIMIT_S, wait_for

import paceline as pl
from paceline.api.stored import fold_log
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.errors import CheckpointError, PacelineWarning, SpecError
from paceline.engines.process.background import BackgroundJobs
from paceline.engines.process.checkpoint_files import CheckpointFiles
from paceline.engines.process.engine import ProcessEngine
from paceline.engines.process.local.devices import LocalDevices
from paceline.engines.process.local.worker_pool import ForkServerPool
from paceline.engines.process.providers import CheckpointPublished
from paceline.engines.process.supervisor import Timeouts
from paceline.engines.process.uploads import Uploads
from paceline.store.storage import FolderStorage, check_storage, open_storage
from paceline.testing.engine_driver import EngineDriver, StubAdvisor, make_open
from paceline.testing.engines import EngineContract
from paceline.testing.storages import StorageContract
from paceline.worker.trial import checkpoint_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from paceline.core.ports import Advisor, Engine, Storage, Workload


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


def test_a_storage_url_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(SpecError, match="nowhere://x is not a storage URL"):
        open_storage("nowhere://x")


def test_without_fsspec_an_address_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "paceline.store.object_storage", raising=False)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(SpecError, match=r"needs fsspec.*pip install 'paceline\[s3\]'"):
        open_storage("s3://bucket/prefix")


def test_without_its_library_a_kind_of_storage_says_what_to_install() -> None:
    with pytest.raises(SpecError, match=r"needs fsspec's support for 'gcs'.*pip install"):
        open_storage("gcs://bucket/prefix")


def test_a_place_that_cannot_be_written_is_found_out_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="cannot be written to"):
        check_storage(FolderStorage(tmp_path / "file" / "below"))
    check_storage(FolderStorage(tmp_path / "new"))
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


class RecordedFiles(CheckpointFiles):
    """Files that record the epochs of the uploads that begin."""

    def __init__(self, files: Path) -> None:
        super().__init__(files, FolderStorage(files / "storage"))
        self.epochs: list[int] = []

    def publish_job(self, name: tuple[int, int]) -> Callable[[], str]:
        self.epochs.append(name[1])
        return super().publish_job(name)


class IdleJobs(BackgroundJobs):
    """Background jobs that never run."""

    def submit(self, kind: str, job: Callable[[], object]) -> None:
        """Leave the job alone."""


class UploadsOfOneAttempt:
    """The uploads of attempt 7, and the events that were told so far."""

    def __init__(self, files: Path) -> None:
        self.told: list[str] = []
        self._files = RecordedFiles(files)
        self._uploads = Uploads(self._files, IdleJobs())

    @property
    def epochs(self) -> list[int]:
        """The epochs of the uploads that began."""
        return self._files.epochs

    def report(self, epoch: int) -> None:
        self._tell(self._uploads.accept(reported(epoch)))

    def save(self, epoch: int, report: e.Reported | None = None, *, ordered: bool = False) -> None:
        self._tell(self._uploads.accept_checkpoint(saved(epoch), report, ordered=ordered))

    def finish(self, epoch: int, note: str = "") -> None:
        self._tell(self._uploads.finish(CheckpointPublished((7, epoch), note), 9.0))

    def end(self, attempt: int = 7) -> None:
        self._tell(self._uploads.accept(e.Ended(at=1.0, attempt=attempt, cause=e.Cause.FINISHED)))

    def _tell(self, events: Sequence[e.AnyEvent]) -> None:
        for event in events:
            self.told.append(f"{type(event).__name__} {getattr(event, 'epoch', '')}".strip())


@pytest.fixture
def uploads(tmp_path: Path) -> UploadsOfOneAttempt:
    return UploadsOfOneAttempt(tmp_path)


def test_saved_waits_for_the_upload_and_reports_do_not(
    uploads: UploadsOfOneAttempt,
) -> None:
    uploads.report(1)
    uploads.save(1)
    uploads.report(2)
    assert (uploads.told, uploads.epochs) == (["Reported 1", "Reported 2"], [1])
    uploads.finish(1)
    assert uploads.told[2:] == ["Saved 1"]


def test_a_report_with_its_checkpoint_waits_for_the_upload_and_later_reports_after_it(
    uploads: UploadsOfOneAttempt,
) -> None:
    uploads.save(1, reported(1))
    uploads.report(2)
    assert uploads.told == []
    uploads.finish(1)
    assert uploads.told == ["Reported 1", "Reported 2", "Saved 1"]


def test_an_upload_that_fails_is_a_miss_and_holds_nothing_back(
    uploads: UploadsOfOneAttempt,
) -> None:
    uploads.save(1, reported(1), ordered=True)
    uploads.report(2)
    with pytest.warns(PacelineWarning, match="the connection failed"):
        uploads.finish(1, "the connection failed.")
    assert uploads.told == ["Reported 1", "Reported 2", "Missed 1"]


def test_of_pending_checkpoints_the_latest_and_the_ordered_ones_are_uploaded(
    uploads: UploadsOfOneAttempt,
) -> None:
    for epoch in (1, 2, 3, 4, 5):
        uploads.report(epoch)
        uploads.save(epoch, ordered=epoch == 3)
    for epoch in (1, 3, 5):
        assert uploads.epochs[-1] == epoch
        uploads.finish(epoch)
    assert uploads.epochs == [1, 3, 5]
    assert [name for name in uploads.told if not name.startswith("Rep")] == [
        "Missed 2",
        "Missed 4",
        "Saved 1",
        "Saved 3",
        "Saved 5",
    ]


def test_reports_of_an_attempt_that_keeps_improving_wait_for_the_latest_safe_checkpoint(
    uploads: UploadsOfOneAttempt,
) -> None:
    for epoch in (1, 2, 3):
        uploads.save(epoch, reported(epoch))
    assert uploads.told == []
    uploads.finish(1)
    assert uploads.told == ["Reported 1", "Saved 1"]
    uploads.save(4, reported(4))
    uploads.finish(3)
    assert uploads.told[2:] == ["Reported 2", "Missed 2", "Reported 3", "Saved 3"]
    uploads.finish(4)
    assert uploads.told[6:] == ["Reported 4", "Saved 4"]


def test_ended_waits_until_all_uploads_are_finished(uploads: UploadsOfOneAttempt) -> None:
    uploads.save(1)
    uploads.save(2, reported(2), ordered=True)
    uploads.end()
    uploads.finish(1)
    assert uploads.told == ["Saved 1"]
    uploads.finish(2)
    assert uploads.told == ["Saved 1", "Reported 2", "Saved 2", "Ended"]
    uploads.end(8)
    assert uploads.told[-1] == "Ended"


# With processes


class Watched(FolderStorage):
    """A folder that counts what is fetched, and puts nothing while it is told to wait."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.fetched: list[str] = []
        self.open = threading.Event()
        self.open.set()
        self.broken = False

    def put(self, name: str, path: str) -> None:
        assert self.open.wait(LIMIT_S)
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
    adviser: Advisor | None = None,
    cache_bytes: int | None = None,
) -> ProcessEngine:
    """Return an engine whose checkpoints are kept in a storage."""
    devices = LocalDevices(2, 2)
    return ProcessEngine(
        make_spec(),
        ForkServerPool(train, devices.thread_limits()),
        devices,
        files=CheckpointFiles(files, storage, cache_bytes),
        advisor=adviser or StubAdvisor(),
        timeouts=Timeouts(grace_s=1.0),
    )


class TestLocalEngineElsewhere(EngineContract):
    """The whole contract, with checkpoints that are kept in another folder."""

    epoch_s = 0.03

    @staticmethod
    def make(workload: Workload, adviser: Advisor) -> Engine:
        folder = Path(tempfile.mkdtemp())
        # Nothing stays in the cache: whatever is restored is fetched.
        return elsewhere(
            make_training_function(workload),
            folder / "here",
            FolderStorage(folder / "there"),
            adviser,
            0,
        )

    def left_over(self) -> list[int]:
        return list_forkservers()


@pytest.fixture
def storage(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "there")


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Callable[..., EngineDriver]]:
    """Give engines under control, each with files of its own, and close them afterwards."""
    made: list[ProcessEngine] = []

    def make(
        storage: Storage,
        cache_bytes: int | None = None,
        train: Callable[[Any], None] = train_forever,
    ) -> EngineDriver:
        files = tmp_path / f"node-{len(made)}"
        made.append(elsewhere(train, files, storage, cache_bytes=cache_bytes))
        driver = EngineDriver(made[-1], 0.02)
        driver.apply(make_open(0, {}))
        return driver

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
    storage: Watched, engines: Callable[..., EngineDriver], tmp_path: Path
) -> None:
    driver = engines(storage, train=prints)
    storage.open.clear()
    driver.apply(driver.make_launch(0, goal=10**6, save_at=(3,)))
    output = tmp_path / "node-0" / "logs" / "attempt-0.log"

    def goes_on() -> bool:
        driver.events += driver.engine.wait(0.02) or ()
        return output.exists() and output.read_text().count("done") > 20

    wait_for(goes_on)
    assert driver.list_attempt_events(0) == [], "the best is told only with its checkpoint"
    storage.open.set()
    driver.wait_for(lambda: bool(driver.list_events(e.Saved)), "a save")
    assert len(storage.list()) <= 3, "what was saved meanwhile need not be uploaded any more"


def test_on_the_machine_that_saved_it_nothing_is_fetched(
    storage: Watched, engines: Callable[..., EngineDriver]
) -> None:
    driver = engines(storage)
    driver.apply(driver.make_launch(0, goal=3))
    assert driver.wait_for_end(0).cause is e.Cause.GOAL
    driver.apply(driver.make_launch(1, goal=6, start=3, source=0))
    assert driver.wait_for_end(1).cause is e.Cause.GOAL
    assert [epoch for epoch, _ in driver.list_reports(1)] == [4, 5, 6]
    assert storage.fetched == []
    assert {stored.name for stored in storage.list()} >= {"0-3.ckpt", "1-6.ckpt"}


def test_another_machine_fetches_what_it_starts_from(
    storage: Watched, engines: Callable[..., EngineDriver]
) -> None:
    first = engines(storage)
    first.apply(first.make_launch(0, goal=3))
    first.wait_for_end(0)
    second = engines(storage)
    second.apply(second.make_launch(1, goal=6, start=3, source=0))
    assert second.wait_for_end(1).cause is e.Cause.GOAL
    assert storage.fetched == ["0-3.ckpt"]
    assert [value for _, value in second.list_reports(1)] == [1 / 4, 1 / 5, 1 / 6]


def test_what_cannot_be_fetched_is_spoiled(
    storage: Watched, engines: Callable[..., EngineDriver]
) -> None:
    driver = engines(storage)
    driver.apply(driver.make_launch(0, goal=6, start=3, source=5))
    assert driver.wait_for_end(0).cause is e.Cause.LOST
    (spoiled,) = driver.list_events(e.Spoiled)
    assert "5-3.ckpt cannot be read from" in spoiled.note


def test_what_was_changed_elsewhere_is_spoiled(
    storage: Watched, engines: Callable[..., EngineDriver], tmp_path: Path
) -> None:
    driver = engines(storage, cache_bytes=0)
    driver.apply(driver.make_launch(0, goal=3))
    driver.wait_for_end(0)
    path = tmp_path / "there" / "0-3.ckpt"
    body = bytearray(path.read_bytes())
    body[-1] ^= 1
    path.write_bytes(body)
    driver.apply(driver.make_launch(1, goal=6, start=3, source=0))
    assert driver.wait_for_end(1).cause is e.Cause.LOST
    assert "its digest does not match" in driver.list_events(e.Spoiled)[0].note


def test_a_trial_goes_on_where_uploads_fail_and_nothing_is_named(
    storage: Watched, engines: Callable[..., EngineDriver], tmp_path: Path
) -> None:
    storage.broken = True
    driver = engines(storage)
    driver.apply(driver.make_launch(0, goal=5))
    with pytest.warns(PacelineWarning, match="it is broken. Training goes on without it"):
        assert driver.wait_for_end(0).cause is e.Cause.GOAL
    assert [epoch for epoch, _ in driver.list_reports(0)] == [1, 2, 3, 4, 5]
    assert driver.list_events(e.Saved) == []
    assert {missed.note for missed in driver.list_events(e.Missed)} >= {
        "checkpoint 0-5.ckpt cannot be written: it is broken."
    }
    assert storage.list() == []
    assert list((tmp_path / "node-0" / "checkpoints").iterdir()) == []


def test_what_is_dropped_goes_here_and_there(
    storage: Watched, engines: Callable[..., EngineDriver], tmp_path: Path
) -> None:
    driver = engines(storage)
    driver.apply(driver.make_launch(0, goal=3))
    driver.wait_for_end(0)
    names = tuple((saved.attempt, saved.epoch) for saved in driver.list_events(e.Saved))
    assert (0, 3) in names
    driver.apply(d.Drop(checkpoints=names, why="the test asks for it"))
    driver.apply(driver.make_launch(4, goal=1))  # goes through the same line, after it
    driver.wait_for_end(4)
    assert {stored.name for stored in storage.list()} == {"4-1.ckpt"}
    here = (tmp_path / "node-0" / "checkpoints").iterdir()
    assert {path.name for path in here} == {"4-1.ckpt"}


def test_the_cache_keeps_what_was_used_last(tmp_path: Path) -> None:
    files = CheckpointFiles(tmp_path / "files", FolderStorage(tmp_path / "there"), 250)

    def lie(name: tuple[int, int]) -> None:
        files.path(name).write_bytes(b"x" * 100)
        files.add_cached(name)

    def here() -> set[str]:
        return {path.name for path in files.checkpoints.iterdir()}

    lie((0, 1))
    lie((1, 1))
    assert files.reserve(9, (0, 1))
    lie((2, 1))
    assert here() == {"0-1.ckpt", "2-1.ckpt"}
    lie((3, 1))
    assert here() == {"0-1.ckpt", "3-1.ckpt"}, "an attempt has not read it yet"
    files.release(9)
    lie((4, 1))
    assert here() == {"3-1.ckpt", "4-1.ckpt"}
    assert not files.reserve(9, (0, 1))


# Whole studies


def test_a_study_goes_on_from_a_shared_folder_on_another_machine(tmp_path: Path) -> None:
    rates = (0.1, 0.2, 0.4)
    with pl.Study(train_counter, **make_options(tmp_path, "one")) as study:
        study.group([({"lr": rate}, 3) for rate in rates])
    with pl.Study(train_counter, **make_options(tmp_path, "two")) as study:
        ran = study.group([({"lr": rate}, 6) for rate in rates])
        weights = [trial.checkpoint and trial.checkpoint.load()["weight"][0] for trial in ran]
    state = fold_log(read_log(f"sqlite:///{tmp_path / 'studies.db'}", "moves"))
    assert (state.epochs_trained, state.repeats) == (6 * len(rates), 0)
    assert weights == pytest.approx([1 - (1 - rate) ** 6 for rate in rates])


def test_a_study_keeps_its_checkpoints_where_they_were(tmp_path: Path) -> None:
    with pl.Study(train_counter, **make_options(tmp_path, "one")) as study:
        study.group([({"lr": 0.1}, 3)])
    with (
        pytest.raises(SpecError, match=r"has its checkpoints in .*shared, not in"),
        pl.Study(
            train_counter, **make_options(tmp_path, "one", checkpoints=str(tmp_path / "other"))
        ) as study,
    ):
        study.group([({"lr": 0.1}, 6)])


def test_a_driver_that_is_killed_is_followed_by_one_on_another_machine(tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    write_study_file(tmp_path)
    run = (
        *("run", "study.py", "--name", "told", "--checkpoints", "shared", "--no-report", "-q"),
        *("--policy", "asha:drain=true"),  # every trial goes on after the kill
    )
    with RunningCommand(tmp_path, "paceline", *run) as driver:
        # Two trials stand in their third epoch; what was the best before is saved.
        store = f"sqlite:///{tmp_path / 'paceline.db'}"
        wait_for(lambda: any((tmp_path / "shared").glob("*/*.ckpt")))
        wait_for(lambda: any(isinstance(step.event, e.Saved) for step in read_log(store, "told")))
        driver.signal(signal.SIGKILL)
        assert driver.end().code == -signal.SIGKILL
    shutil.rmtree(tmp_path / "paceline.files")
    (tmp_path / "hold").unlink()
    ran = run_command(tmp_path, "resume", "told", "--no-report", "-q")
    assert ran.code == 0, ran.err
    log = read_log(store, "told")
    state = fold_log(log)
    assert state.end is not None
    again = next(at for at, step in enumerate(log) if isinstance(step.event, e.Resumed))
    starts = [
        (decision.source, decision.start)
        for step in log[again:]
        for decision in step.decisions
        if isinstance(decision, d.Launch)
    ]
    assert any(start > 0 for _, start in starts), "no attempt continued from a checkpoint"
    assert not [step for step in log if isinstance(step.event, e.Spoiled)]
    (folder,) = (tmp_path / "shared").iterdir()
    assert {path.name for path in folder.iterdir()} == {
        checkpoint_name(*name) for name in state.checkpoints.records
    }
