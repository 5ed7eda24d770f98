"""A node's own folder, where it does not see the study's: its checkpoints, their way, the output.

Knows the shelf there and the storage that all nodes reach. What workers write lies here and is put
into the storage from here; what they start from is brought here, and stays as a copy while there
is room. Begins empty and ends with its host: all that counts is in the storage.
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
from paceline.engines.process.checkpoint_files import Shelf
from paceline.engines.process.ray.config import imported
from paceline.engines.process.ray.node_protocol import Clear, Drop, Kept, Printed, Publish, Settle
from paceline.worker.trial import name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.ports import Storage
    from paceline.core.values import AttemptId
    from paceline.engines.process.checkpoint_files import Name
    from paceline.engines.process.ray.node_protocol import AnyWord, AtHome


# So many checkpoints are on their way at a time, in each direction.
_LINES = 4
# What is brought of an attempt's output.
_LOG_BYTES = 2**20


class Ways(NamedTuple):
    """Where a node finds things."""

    # The study's files, a file there and what it says, and where relative paths begin.
    files: str
    mark: str
    word: str
    cwd: str | None
    # Where checkpoints are kept elsewhere: its address, and what Ray has of it, since a node that
    # sees the study's files need not be able to open it. What copies on a node may take.
    url: str
    storage: Any
    cache_bytes: int | None
    # Where a node keeps files of its own though it sees the study's.
    disk: str | None

    @property
    def seen(self) -> bool:
        """Whether this node sees the study's files: a folder of that name may be another."""
        try:
            return os.path.isdir(self.files) and Path(self.mark).read_text() == self.word
        except OSError:
            return False


def home_of(ways: Ways, node: str) -> Home | None:
    """Return this node's own folder; None: it uses the study's, which it sees."""
    seen = ways.seen
    if not ways.url:
        if seen:
            return None
        raise SpecError(
            f"a node of the cluster does not see {ways.files}, where checkpoints are kept: give "
            "files=… in a folder that all nodes share, or checkpoints=… in a storage that all reach"
        )
    if seen and ways.disk is None:
        return None
    try:
        storage: Storage = imported().get(ways.storage)
    except Exception as error:  # whatever its library, or the want of it, raises
        last = str(error).strip().splitlines()[-1]
        raise SpecError(f"a node of the cluster cannot open {ways.url}: {last}") from error
    disk = ways.disk or tempfile.gettempdir()
    folder = Path(disk) / f"paceline-{ways.url.rpartition('/')[2]}-{node}"
    shutil.rmtree(folder, ignore_errors=True)  # of a host that was killed
    try:
        return Home(folder, storage, ways.cache_bytes)
    except OSError as error:
        raise SpecError(f"a node of the cluster cannot write to {disk}: {error.strerror}") from None


class Home:
    """Keeps the files of one study on one node."""

    def __init__(self, folder: Path, storage: Storage, cache_bytes: int | None) -> None:
        self.folder = folder
        self._shelf = Shelf(folder, storage, cache_bytes)
        self._storage = storage
        self._up = ThreadPoolExecutor(_LINES, "paceline-uploads")
        self._down = ThreadPoolExecutor(_LINES, "paceline-downloads")
        self._under_way: set[asyncio.Task[None]] = set()
        # What is on its way here, and whom to tell; how much of an attempt's output was brought.
        self._coming: dict[Name, list[Callable[[str], None]]] = {}
        self._brought: dict[AttemptId, int] = {}

    def sign(self, name: str) -> None:
        """Put a small object into the storage: whoever finds it there means the same storage."""
        with tempfile.NamedTemporaryFile() as file:
            try:
                self._storage.put(name, file.name)
            except CheckpointError as error:
                word = f"a node of the cluster cannot keep checkpoints: {error}".rstrip(".")
                raise SpecError(word) from None

    def obey(self, word: AtHome, tell: Callable[[AnyWord], None]) -> None:
        """Do what the driver says."""
        match word:
            case Publish(name=name):
                self._begin(self._publish(name, tell))
            case Drop(name=name):
                self._shelf.drop(name)
            case Clear(attempt=attempt):
                self._shelf.clear(attempt, told_all=False)
                self._shelf.log(attempt).unlink(missing_ok=True)
                self._brought.pop(attempt, None)

    def want(self, attempt: AttemptId, name: Name, fetched: Callable[[str], None]) -> None:
        """Have here what an attempt starts from, and say when, or what went wrong."""
        if self._shelf.wanted(attempt, name):
            fetched("")
        elif name in self._coming:
            self._coming[name].append(fetched)
        else:
            self._coming[name] = [fetched]
            self._begin(self._fetch(name))

    def printed(self, attempt: AttemptId) -> Printed:
        """Return the end of what an attempt has printed since that was last asked."""
        try:
            with open(self._shelf.log(attempt), "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self._brought.get(attempt, 0), size - _LOG_BYTES))
                body = file.read()
                self._brought[attempt] = file.tell()
                return Printed(attempt, body)
        except OSError:
            return Printed(attempt, b"")

    def close(self) -> None:
        """Delete everything: what counts is in the storage."""
        for line in (self._up, self._down):
            line.shutdown(wait=False, cancel_futures=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _begin(self, work: Any) -> None:  # noqa: ANN401 - a coroutine
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _publish(self, name: Name, tell: Callable[[AnyWord], None]) -> None:
        work = self._shelf.publish(name)
        note = await asyncio.get_running_loop().run_in_executor(self._up, work)
        if not note:
            self._shelf.saved(name, "")
            self._shelf.cached(name)
        tell(Kept(name, note))

    async def _fetch(self, name: Name) -> None:
        work = self._shelf.fetch(name)
        note = await asyncio.get_running_loop().run_in_executor(self._down, work)
        if not note:
            self._shelf.cached(name)
        for fetched in self._coming.pop(name):
            fetched(note)


class Afar:
    """The files of one node; `say` reaches it."""

    def __init__(self, folder: str, say: Callable[[AnyWord], None]) -> None:
        self._folder = Path(folder)
        self._say = say
        self._lost = False
        # Whom to tell what came of an upload, and where an attempt's output goes on this machine.
        self._done: dict[Name, Callable[[str], None]] = {}
        self._logs: dict[AttemptId, Path] = {}
        self._copies: set[Name] = set()

    @property
    def checkpoints(self) -> str:
        """Where its workers write checkpoints, as they see it."""
        return str(self._folder / "checkpoints")

    @property
    def busy(self) -> bool:
        """Whether something is on its way from there."""
        return bool(self._done)

    def log(self, attempt: AttemptId) -> str:
        """Return where an attempt's output goes, as it sees it."""
        return str(self._folder / "logs" / f"attempt-{attempt}.log")

    def begin(self, worker: int, attempt: AttemptId, source: Name | None, log: Path) -> None:
        """A worker there is this attempt: bring it what it starts from, and here what it prints."""
        self._logs[attempt] = log
        if source is not None:
            self._copies.add(source)
        self._say(Settle(worker, attempt, source))

    def publish(self, name: Name, done: Callable[[str], None]) -> None:
        """Have a checkpoint put into the storage, and say what went wrong, if anything."""
        if self._lost:
            done(_lost(name))
            return
        self._done[name] = done
        self._copies.add(name)
        self._say(Publish(name))

    def drop(self, name: Name) -> None:
        """Delete a checkpoint, where a copy may lie there."""
        if name in self._copies:
            self._copies.remove(name)
            self._say(Drop(name))

    def clear(self, attempt: AttemptId) -> None:
        """Delete what an attempt that is gone has left, whole or in part, and never told."""
        self._logs.pop(attempt, None)
        if not self._lost:
            self._say(Clear(attempt))

    # What the node says

    def kept(self, word: Kept) -> None:
        """An upload is done, or failed."""
        self._done.pop(word.name)(word.note)

    def printed(self, word: Printed) -> None:
        """More of what an attempt has printed is here; other nodes may have brought some, too."""
        if word.body and word.attempt in self._logs:
            with open(self._logs[word.attempt], "ab") as file:
                file.write(word.body)

    def lose(self) -> None:
        """The node is gone, and with it what was not published."""
        self._lost = True
        self._copies.clear()
        for name in list(self._done):
            self._done.pop(name)(_lost(name))


def same_storage(storage: Storage, name: str) -> bool:
    """Say whether what a node has put into its storage is found in ours; delete it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            storage.get(name, str(Path(folder) / "found"))
            storage.delete(name)
        except CheckpointError:
            return False
    return True


def _lost(name: Name) -> str:
    return f"checkpoint {name_of(*name)} went with its node before it was published."
