"""Checkpoints in object storage: S3 and whatever else fsspec reaches. The only importer of fsspec.

Knows how bytes get to an address and back. Credentials and endpoints come from where the library
for that kind of storage looks for them: for S3 the environment (AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, AWS_PROFILE) and `~/.aws`.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import fsspec

from paceline.core.errors import CheckpointError, SpecError
from paceline.core.ports import Stored
from paceline.worker.atomic_file import PART, appearing

if TYPE_CHECKING:
    from collections.abc import Iterator


class Bucket:
    """A prefix of an object storage, such as `s3://bucket/runs/mnist`."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        try:
            # Its own instance: one that is shared knows the credentials of when it was made.
            self._files, self._root = fsspec.url_to_fs(
                self._url, use_listings_cache=False, skip_instance_cache=True
            )
        except ImportError as error:
            scheme = url.partition("://")[0]
            raise SpecError(
                f"{url} needs what fsspec has for {scheme!r} ({error}): pip install "
                "'paceline[s3]' for S3."
            ) from None
        except ValueError as error:
            raise SpecError(
                f"{url} names no storage ({error}): give a path, or an address like s3://…"
            ) from None

    def __reduce__(self) -> tuple[Any, ...]:
        # Connections do not travel: another process makes its own.
        return Bucket, (self._url,)

    @property
    def url(self) -> str:
        return self._url

    def put(self, name: str, path: str) -> None:
        part = self._key(f".{name}.{uuid4().hex}{PART}")
        with self._complaining(f"checkpoint {name} cannot be written to"):
            try:
                self._files.put_file(path, part)
                if self._files.size(part) != os.path.getsize(path):
                    raise OSError("not all of it arrived")
                # The name comes last: a copy inside the storage, which is whole or is not.
                self._files.mv(part, self._key(name))
            except BaseException:
                # What cannot be deleted either is found by `list`, and swept.
                with contextlib.suppress(Exception):
                    self._files.rm_file(part)
                raise

    def get(self, name: str, path: str) -> None:
        with (
            self._complaining(f"checkpoint {name} cannot be read from"),
            appearing(Path(path)) as part,
        ):
            self._files.get_file(self._key(name), str(part))

    def delete(self, name: str) -> None:
        with (
            self._complaining(f"checkpoint {name} cannot be deleted from"),
            contextlib.suppress(FileNotFoundError),
        ):
            self._files.rm_file(self._key(name))

    def list(self) -> list[Stored]:
        with self._complaining("it is not possible to list"):
            try:
                found = self._files.find(self._root, maxdepth=1, detail=True)
            except FileNotFoundError:
                # Some have no folders: where nothing lies there is nothing.
                return []
        rows = [Stored(key.rpartition("/")[2], info["size"]) for key, info in found.items()]
        return sorted(rows, key=lambda stored: stored.name)

    def _key(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextlib.contextmanager
    def _complaining(self, what: str) -> Iterator[None]:
        # Each kind of storage has errors of its own, of no common class.
        try:
            yield
        except Exception as error:
            said = " ".join(str(error).split()) or type(error).__name__
            raise CheckpointError(f"{what} {self._url}: {said.rstrip('.')}.") from error
