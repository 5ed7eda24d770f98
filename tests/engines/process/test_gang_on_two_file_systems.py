"""A gang of which one process sees the study's folder and another does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fake_pool import FakeChannel, FakePool
from process_engines import make_spec

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.engines.process.attempt import RunningAttempt
from paceline.engines.process.background import BackgroundJobs
from paceline.engines.process.checkpoint_files import CheckpointFiles
from paceline.engines.process.engine import ProcessEngine
from paceline.engines.process.local.devices import LocalDevices
from paceline.engines.process.ray.node_files import NodeFilesClient
from paceline.engines.process.ray.node_protocol import (
    AssignAttempt,
    ClearAttempt,
    DropCheckpoint,
    NodeMessage,
    PublishCheckpoint,
)
from paceline.engines.process.uploads import Uploads
from paceline.store.storage import FolderStorage
from paceline.testing.engine_driver import DrivenStudy, EngineDriver, make_open
from paceline.worker.protocol import StartAttempt

if TYPE_CHECKING:
    from pathlib import Path

    from paceline.engines.process.providers import WorkerChannel


class Half(LocalDevices, frozen=True):
    """Slots of which only the first is on this machine."""

    far: Any = None

    def node_files(self, slot: int) -> Any:  # noqa: ANN401
        return self.far if slot else None


LAUNCH = d.Launch(
    attempt=7,
    trial=0,
    start=3,
    source=5,
    goal=6,
    save_at=(),
    slots=(0, 1, 2),
    width=3.0,
    why="the test asks for it",
)


def ignore(_: object) -> None:
    """Do nothing."""


def list_starts(files: CheckpointFiles, node: NodeFilesClient) -> list[StartAttempt]:
    """Return the first message to each process of the attempt."""
    pool = FakePool()
    engine = ProcessEngine(make_spec(), pool, Half(3, 3, far=node), files=files)
    driver = EngineDriver(engine, 0.02)
    driver.apply(make_open(0, {}), LAUNCH)
    engine.close()
    firsts = [channel.sent[0] for channel in pool.channels]
    return [message for message in firsts if isinstance(message, StartAttempt)]


def test_each_process_gets_the_folder_of_its_own_node(tmp_path: Path) -> None:
    files = CheckpointFiles(tmp_path / "study", FolderStorage(tmp_path / "kept"))
    node = NodeFilesClient("/far", ignore, ignore)
    starts = list_starts(files, node)
    near = str(files.checkpoints)
    assert [start.folder for start in starts] == [near, "/far/checkpoints", "/far/checkpoints"]
    assert [start.checkpoint for start in starts] == ["5-3.ckpt"] * 3
    assert starts[0].log == str(files.log(7))
    assert starts[1].log == starts[2].log == "/far/logs/attempt-7.log"
    # The checkpoint is nowhere yet. Once it is on this machine, only the other node fetches it.
    assert [start.awaits for start in starts] == [True, True, True]
    files.path((5, 3)).touch()
    assert [start.awaits for start in list_starts(files, node)] == [False, True, True]


def test_every_other_node_gets_the_attempt_and_the_first_processes_node_publishes(
    tmp_path: Path,
) -> None:
    sent: list[tuple[str, NodeMessage]] = []
    first = NodeFilesClient("/a", lambda message: sent.append(("a", message)), ignore)
    third = NodeFilesClient("/b", lambda message: sent.append(("b", message)), ignore)
    files = CheckpointFiles(tmp_path / "study", FolderStorage(tmp_path / "kept"))
    uploads = Uploads(files, BackgroundJobs())
    channels: list[tuple[int, WorkerChannel]] = [(40 + rank, FakeChannel()) for rank in range(3)]
    attempt = RunningAttempt(LAUNCH, channels, tmp_path / "log")
    uploads.start(attempt, [first, None, third], (5, 3))
    assert sent == [("a", AssignAttempt(40, 7, (5, 3))), ("b", AssignAttempt(42, 7, (5, 3)))]
    assert [uploads.is_local(process) for process in attempt.processes] == [False, True, False]
    sent.clear()
    saved = e.Saved(at=0.0, attempt=7, epoch=6, seconds=0.1, bytes=1, digest="d")
    assert uploads.accept_checkpoint(saved, None, ordered=True) == ()
    assert sent == [("a", PublishCheckpoint((7, 6)))]
    sent.clear()
    uploads.drop((5, 3))
    assert sorted(sent, key=str) == [("a", DropCheckpoint((5, 3))), ("b", DropCheckpoint((5, 3)))]
    sent.clear()
    uploads.clear(e.Ended(at=0.0, attempt=7, cause=e.Cause.GOAL), DrivenStudy())
    assert sorted(sent, key=str) == [("a", ClearAttempt(7)), ("b", ClearAttempt(7))]
