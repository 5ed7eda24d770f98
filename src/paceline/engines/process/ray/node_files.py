"""Files of a study on a node that does not share the study's folder: checkpoints and output.

`NodeFileStore` runs in the agent on the node: workers write checkpoints there, and it uploads them
to the storage that all nodes reach, downloads checkpoints to start from, and keeps copies while
there is room. `NodeFilesClient` is its counterpart on the driver. The folder starts empty and is
deleted with the agent: whatever must last is in the storage.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.core.errors import CheckpointError, SpecError
from paceline.engines.process.checkpoint_files import CheckpointFiles
from paceline.engines.process.providers import CheckpointPublished
from paceline.engines.process.ray.config import import_ray
from paceline.engines.process.ray.node_protocol import (
    AssignAttempt,
    AttemptOutput,
    ClearAttempt,
    DropCheckpoint,
    PublishCheckpoint,
)
from paceline.worker.atomic_file import open_regular_file
from paceline.worker.trial import checkpoint_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.ports import Storage
    from paceline.core.values import AttemptId
    from paceline.engines.process.providers import CheckpointKey
    from paceline.engines.process.ray.node_protocol import FileCommand, NodeMessage


# Concurrent uploads, and concurrent downloads.
_TRANSFERS = 4
# How much of an attempt's output is brought to the driver.
_OUTPUT_BYTES = 2**20


class NodePaths(NamedTuple):
    """Folders and storage of a study, as sent to each node."""

    # The study's checkpoints. A file beside them with a random text: a node that reads the same
    # text sees the same folder.
    checkpoints: str
    mark: str
    mark_text: str
    # The working directory of the driver; None: the runtime environment has one.
    cwd: str | None
    # The storage of checkpoints, empty without one; as an object reference, since a node that sees
    # the study's folder may lack the storage's library.
    storage_url: str
    storage: Any
    cache_bytes: int | None
    # The folder for node-local files, on nodes that see the study's folder, too.
    disk: str | None

    @property
    def is_folder_shared(self) -> bool:
        """Whether this node sees the study's folder, not another one under the same path."""
        try:
            found = Path(self.mark).read_text()
        except OSError:
            return False
        return os.path.isdir(self.checkpoints) and found == self.mark_text


def open_node_files(paths: NodePaths, node: str) -> NodeFileStore | None:
    """Create this node's own folder; None: the node uses the study's folder."""
    is_shared = paths.is_folder_shared
    if not paths.storage_url:
        if is_shared:
            return None
        raise SpecError(
            f"a node of the cluster does not see {paths.checkpoints}, the folder of checkpoints: "
            "give files=… in a folder that all nodes share, or checkpoints=… in a storage that all "
            "nodes reach"
        )
    if is_shared and paths.disk is None:
        return None
    try:
        storage: Storage = import_ray().get(paths.storage)
    except Exception as error:  # any error of the storage's library, or that it is missing
        last = str(error).strip().splitlines()[-1]
        raise SpecError(f"a node of the cluster cannot open {paths.storage_url}: {last}") from error
    disk = paths.disk or tempfile.gettempdir()
    folder = Path(disk) / f"paceline-{paths.storage_url.rpartition('/')[2]}-{node}"
    shutil.rmtree(folder, ignore_errors=True)  # of an agent that was killed
    try:
        # Others on the node may neither read it nor have made it before.
        folder.mkdir(mode=0o700, parents=True)
        return NodeFileStore(folder, storage, paths.cache_bytes)
    except OSError as error:
        raise SpecError(f"a node of the cluster cannot write to {disk}: {error.strerror}") from None


class NodeFileStore:
    """The files of one study on one node, in the agent's process."""

    def __init__(self, folder: Path, storage: Storage, cache_bytes: int | None) -> None:
        self.folder = folder
        self._files = CheckpointFiles(folder, storage, cache_bytes)
        self._storage = storage
        self._uploads = ThreadPoolExecutor(_TRANSFERS, "paceline-uploads")
        self._downloads = ThreadPoolExecutor(_TRANSFERS, "paceline-downloads")
        self._transfers: set[asyncio.Task[None]] = set()
        # Downloads under way, with the functions to call at the end.
        self._fetching: dict[CheckpointKey, list[Callable[[str], None]]] = {}
        # How many bytes of an attempt's output the driver has.
        self._output_sent: dict[AttemptId, int] = {}
        self._published: set[CheckpointKey] = set()

    def write_probe(self, name: str) -> None:
        """Put a small object into the storage, by which the driver recognizes the same storage."""
        with tempfile.NamedTemporaryFile() as file:
            try:
                self._storage.put(name, file.name)
            except CheckpointError as error:
                reason = str(error).rstrip(".")
                raise SpecError(
                    f"a node of the cluster cannot write checkpoints: {reason}"
                ) from None

    def handle(self, command: FileCommand, send: Callable[[NodeMessage], None]) -> None:
        """Carry out a command of the driver."""
        match command:
            case PublishCheckpoint(name=name):
                self._start_transfer(self._publish(name, send))
            case DropCheckpoint(name=name):
                self._published.discard(name)
                self._files.drop(name)
            case ClearAttempt(attempt=attempt):
                self._files.release(attempt)
                self._files.clear(attempt, self._published.__contains__)
                self._files.log(attempt).unlink(missing_ok=True)
                self._output_sent.pop(attempt, None)

    def fetch(
        self, attempt: AttemptId, name: CheckpointKey, on_fetched: Callable[[str], None]
    ) -> None:
        """Download the checkpoint of an attempt unless it is here; call back with an error note."""
        if self._files.reserve(attempt, name):
            on_fetched("")
        elif name in self._fetching:
            self._fetching[name].append(on_fetched)
        else:
            self._fetching[name] = [on_fetched]
            self._start_transfer(self._fetch(name))

    def read_output(self, attempt: AttemptId) -> AttemptOutput:
        """Return the end of an attempt's output since the last call."""
        try:
            with open(self._files.log(attempt), "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self._output_sent.get(attempt, 0), size - _OUTPUT_BYTES))
                body = file.read()
                self._output_sent[attempt] = file.tell()
                return AttemptOutput(attempt, body)
        except OSError:
            return AttemptOutput(attempt, b"")

    def close(self) -> None:
        """Delete the folder."""
        for pool in (self._uploads, self._downloads):
            pool.shutdown(wait=False, cancel_futures=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start_transfer(self, transfer: Any) -> None:  # noqa: ANN401 - a coroutine
        task = asyncio.get_running_loop().create_task(transfer)
        self._transfers.add(task)
        task.add_done_callback(self._transfers.discard)

    async def _publish(self, name: CheckpointKey, send: Callable[[NodeMessage], None]) -> None:
        job = self._files.publish_job(name)
        note = await asyncio.get_running_loop().run_in_executor(self._uploads, job)
        if not note:
            self._published.add(name)
            self._files.add_cached(name)
        send(CheckpointPublished(name, note))

    async def _fetch(self, name: CheckpointKey) -> None:
        job = self._files.fetch_job(name)
        note = await asyncio.get_running_loop().run_in_executor(self._downloads, job)
        if not note:
            self._files.add_cached(name)
        for on_fetched in self._fetching.pop(name):
            on_fetched(note)


class NodeFilesClient:
    """The files of one node, seen from the driver."""

    def __init__(
        self,
        folder: str,
        send: Callable[[NodeMessage], None],
        post: Callable[[CheckpointPublished], None],
    ) -> None:
        self._folder = Path(folder)
        # `send` reaches the node; `post` lets the pool report an upload.
        self._send = send
        self._post = post
        self._is_lost = False
        self._uploading: set[CheckpointKey] = set()
        # Checkpoints that the node has a copy of, as far as the driver knows.
        self._copies: set[CheckpointKey] = set()
        # The files of attempts' output on the driver's machine.
        self._logs: dict[AttemptId, Path] = {}

    @property
    def checkpoints(self) -> str:
        """The folder its workers write checkpoints to, as a path on the node."""
        return str(self._folder / "checkpoints")

    @property
    def is_uploading(self) -> bool:
        """Whether an upload of the node is under way."""
        return bool(self._uploading)

    def log(self, attempt: AttemptId) -> str:
        """Return the file of an attempt's output, as a path on the node."""
        return str(self._folder / "logs" / f"attempt-{attempt}.log")

    def start_attempt(
        self, worker: int, attempt: AttemptId, source: CheckpointKey | None, log: Path
    ) -> None:
        """Give a worker there its attempt: fetch its checkpoint, and bring its output to `log`."""
        self._logs[attempt] = log
        if source is not None:
            self._copies.add(source)
        self._send(AssignAttempt(worker, attempt, source))

    def publish(self, name: CheckpointKey) -> None:
        """Put a checkpoint into the storage; the pool reports CheckpointPublished."""
        if self._is_lost:
            self._post(_make_lost(name))
            return
        self._uploading.add(name)
        self._copies.add(name)
        self._send(PublishCheckpoint(name))

    def drop(self, name: CheckpointKey) -> None:
        """Delete the node's copy of a checkpoint, if there is one."""
        if name in self._copies:
            self._copies.remove(name)
            self._send(DropCheckpoint(name))

    def clear(self, attempt: AttemptId) -> None:
        """Delete the unpublished checkpoints of an attempt that has ended."""
        self._logs.pop(attempt, None)
        if not self._is_lost:
            self._send(ClearAttempt(attempt))

    # From the node

    def confirm_published(self, published: CheckpointPublished) -> None:
        """Note the end of an upload."""
        self._uploading.discard(published.name)

    def append_output(self, output: AttemptOutput) -> None:
        """Append an attempt's output to its log on this machine; several nodes may do so."""
        if output.body and output.attempt in self._logs:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            with open_regular_file(Path(self._logs[output.attempt]), flags, "ab") as file:
                file.write(output.body)

    def mark_lost(self) -> None:
        """Report all uploads as failed: the node is gone."""
        self._is_lost = True
        self._copies.clear()
        for name in self._uploading:
            self._post(_make_lost(name))
        self._uploading.clear()


def is_same_storage(storage: Storage, probe: str) -> bool:
    """Say whether a node's probe is found in this storage; delete the probe."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            storage.get(probe, str(Path(folder) / "found"))
            storage.delete(probe)
        except CheckpointError:
            return False
    return True


def _make_lost(name: CheckpointKey) -> CheckpointPublished:
    note = f"checkpoint {checkpoint_name(*name)} went with its node before it was published."
    return CheckpointPublished(name, note)
