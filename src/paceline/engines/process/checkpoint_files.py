"""A study's files on this machine: its checkpoints, and the output of each attempt.

Knows folders and names. Workers write checkpoints themselves; here they are deleted when they are
dropped, and when the log does not name them. With a storage elsewhere the folder is a cache of it:
the checkpoints used last stay, up to a limit.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from paceline.core.errors import CheckpointError
from paceline.engines.process.output_files import OutputFiles
from paceline.worker.trial import checkpoint_name

if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from pathlib import Path

    from paceline.core.ports import Storage
    from paceline.core.values import AttemptId
    from paceline.engines.process.providers import CheckpointKey

_OWN_NAME = re.compile(r"(\d+)-(\d+)\.ckpt")
_REUSED_NAME = re.compile(r"adopted-(\d+)-(\d+)\.ckpt")
# Checkpoints, the files that became or will become one, and the test of a storage.
_OWN_FILE = re.compile(r"\.?(adopted-)?\d+-\d+\.ckpt.*|\.?check-[0-9a-f]{32}.*")


class CheckpointFiles:
    """The folders of a study's checkpoints and logs, and the storage behind them."""

    def __init__(
        self,
        files: Path,
        storage: Storage | None = None,
        cache_bytes: int | None = None,
        *,
        create: bool = True,
    ) -> None:
        self.checkpoints = files / "checkpoints"
        self.logs = files / "logs"
        self.outputs = OutputFiles(self.logs)
        for folder in (self.checkpoints, self.logs) if create else ():
            _make_folder(folder)
        # Where checkpoints are kept; None: in this folder alone.
        self.storage = storage
        self.cache_bytes = cache_bytes
        # Files that may be deleted because the storage has them too, the last used one last.
        self._cached: dict[CheckpointKey, int] = {}
        # Checkpoints that attempts are about to read.
        self._wanted: dict[AttemptId, CheckpointKey] = {}

    def path(self, name: CheckpointKey) -> Path:
        """Return the path of a checkpoint on this machine."""
        return self.checkpoints / checkpoint_name(*name)

    def log(self, attempt: AttemptId) -> Path:
        """Return the path of an attempt's output."""
        return self.outputs.path(attempt)

    def drop(self, name: CheckpointKey) -> None:
        """Delete a checkpoint on this machine."""
        self._cached.pop(name, None)
        self.path(name).unlink(missing_ok=True)

    # The storage. Jobs take time, and are run in the background.

    def publish_job(self, name: CheckpointKey) -> Callable[[], str]:
        """Return the job that puts a checkpoint into the storage; it returns the error."""
        storage, path = self.storage, str(self.path(name))
        assert storage is not None

        def job() -> str:
            try:
                storage.put(checkpoint_name(*name), path)
            except CheckpointError as error:
                return str(error)
            return ""

        return job

    def fetch_job(self, name: CheckpointKey) -> Callable[[], str]:
        """Return the job that downloads a checkpoint; it returns the error."""
        storage, path = self.storage, str(self.path(name))
        assert storage is not None

        def job() -> str:
            try:
                storage.get(checkpoint_name(*name), path)
            except CheckpointError as error:
                return str(error)
            return ""

        return job

    def delete_job(self, name: CheckpointKey) -> Callable[[], None]:
        """Return the job that deletes a checkpoint from the storage."""
        storage = self.storage
        assert storage is not None

        def job() -> None:
            # A checkpoint that stays is named by no log, and deleted by the next `sweep_storage`.
            with contextlib.suppress(CheckpointError):
                storage.delete(checkpoint_name(*name))

        return job

    def reserve(self, attempt: AttemptId, name: CheckpointKey) -> bool:
        """Keep a checkpoint here until an attempt has read it; False: it must be fetched first."""
        if self.storage is None:
            return True
        self._wanted[attempt] = name
        if name in self._cached:
            self._cached[name] = self._cached.pop(name)
        return self.path(name).exists()

    def release(self, attempt: AttemptId) -> None:
        """Forget the checkpoint reserved for an attempt."""
        self._wanted.pop(attempt, None)

    def add_cached(self, name: CheckpointKey) -> None:
        """Count a file that the storage has too, and delete others to make room for it."""
        with contextlib.suppress(FileNotFoundError):
            self._cached.pop(name, None)
            self._cached[name] = self.path(name).stat().st_size
        if self.cache_bytes is None:
            return
        total, wanted = sum(self._cached.values()), set(self._wanted.values())
        for oldest in [each for each in self._cached if each not in wanted]:
            if total <= self.cache_bytes:
                break
            total -= self._cached.pop(oldest)
            self.path(oldest).unlink(missing_ok=True)

    # Deleting leftovers

    def clear(self, attempt: AttemptId, is_known: Callable[[CheckpointKey], bool]) -> None:
        """Delete an ended attempt's partial files, and its checkpoints that are not known."""
        for path in self.checkpoints.glob(f"*{attempt}-*"):
            found = _OWN_NAME.search(path.name)
            if found is None or int(found[1]) != attempt or _REUSED_NAME.search(path.name):
                continue
            if path.name != found[0] or not is_known((attempt, int(found[2]))):
                path.unlink(missing_ok=True)

    def sweep(self, named: Container[CheckpointKey]) -> None:
        """Delete every file on this machine that the log does not name."""
        for path in self.checkpoints.iterdir():
            name = _parse_name(path.name)
            if is_own_file(path.name) and name not in named:
                path.unlink(missing_ok=True)
            elif name is None:
                continue  # not written by a study
            elif self.storage is not None:
                self.add_cached(name)

    def sweep_storage(self, named: Container[CheckpointKey]) -> None:
        """Delete every file in the storage that the log does not name."""
        if self.storage is None:
            return
        for stored in self.storage.list():
            if is_own_file(stored.name) and _parse_name(stored.name) not in named:
                self.storage.delete(stored.name)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"the folder {folder} for a study's files cannot be created: "
            f"{error.strerror or error}; give another one with files=…."
        ) from error


def is_own_file(file: str) -> bool:
    """Return whether a study wrote a file of this name: a checkpoint, or a part of one."""
    return _OWN_FILE.fullmatch(file) is not None


def _parse_name(file: str) -> CheckpointKey | None:
    """Return the checkpoint of a file name; None: the file is not a checkpoint."""
    found = _OWN_NAME.fullmatch(file)
    if found is not None:
        return int(found[1]), int(found[2])
    found = _REUSED_NAME.fullmatch(file)
    return None if found is None else (-int(found[1]), int(found[2]))
