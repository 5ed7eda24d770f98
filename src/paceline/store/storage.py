"""Storage of checkpoints by name: a folder, local or shared; object storage is opened here too.

Knows how to make a name appear complete or not at all. Does not know what a checkpoint contains or
which trial needs it: names and digests are in the study's log.

An engine is given a `Storage`: a worker writes its checkpoint to a local file, the engine calls
`put(name, file)` and logs Saved when that returns; a worker on another node calls
`get(name, file)` and checks the digest as it reads. A Drop is a `delete`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from paceline.core.errors import CheckpointError, PacelineWarning, SpecError
from paceline.core.ports import Stored
from paceline.worker.atomic_file import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.core.ports import Storage

# How long the first answer of a storage may take without a warning.
SLOW_S = 5.0


def open_storage(url: str) -> Storage:
    """Return the storage at a URL: a path, `s3://bucket/prefix`, or another URL of fsspec."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return FolderStorage(Path(url))
    if scheme == "file":
        return FolderStorage(Path(rest))
    try:
        from paceline.store.object_storage import (
            ObjectStorage,  # fsspec is optional
        )
    except ImportError:
        raise SpecError(
            f"{url} needs fsspec, which is not installed: pip install 'paceline[s3]' for S3."
        ) from None
    return ObjectStorage(url)


def check_storage(storage: Storage) -> None:
    """Raise CheckpointError if the storage cannot be written, before any training starts.

    Warn of one that is slow: its library may try for minutes before it gives up.
    """
    name = f"check-{uuid4().hex}"
    with _warn_if_slow(storage.url):
        with tempfile.NamedTemporaryFile() as file:
            storage.put(name, file.name)
        storage.delete(name)


@contextmanager
def _warn_if_slow(url: str) -> Iterator[None]:
    text = f"{url} has not answered for {SLOW_S:g} s: the study starts when it does."
    timer = threading.Timer(SLOW_S, lambda: warnings.warn(text, PacelineWarning, stacklevel=2))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class FolderStorage:
    """A folder, created when the first checkpoint is written."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def url(self) -> str:
        return str(self._path)

    def put(self, name: str, path: str) -> None:
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            _copy(Path(path), self._path / name)
        except OSError as error:
            raise CheckpointError(_cannot(name, "written to", self.url, error)) from error

    def get(self, name: str, path: str) -> None:
        try:
            _copy(self._path / name, Path(path))
        except OSError as error:
            raise CheckpointError(_cannot(name, "read from", self.url, error)) from error

    def delete(self, name: str) -> None:
        try:
            (self._path / name).unlink(missing_ok=True)
        except OSError as error:
            raise CheckpointError(_cannot(name, "deleted from", self.url, error)) from error

    def list(self) -> list[Stored]:
        try:
            with os.scandir(self._path) as entries:
                found = [Stored(each.name, each.stat().st_size) for each in entries]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"{self.url} cannot be listed: {_reason(error)}.") from error
        return sorted(found, key=lambda stored: stored.name)


def _copy(source: Path, target: Path) -> None:
    with open(source, "rb") as one, write_atomically(target) as part, open(part, "wb") as other:
        shutil.copyfileobj(one, other, 2**20)
        other.flush()
        os.fsync(other.fileno())


def _cannot(name: str, done: str, url: str, error: OSError) -> str:
    return f"checkpoint {name} cannot be {done} {url}: {_reason(error)}."


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
