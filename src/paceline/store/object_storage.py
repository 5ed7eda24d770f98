"""Checkpoints in object storage: S3 and all others that fsspec supports.

The only importer of fsspec. Knows how to upload and download bytes. Credentials and endpoints come
from where the library for that kind of storage looks for them: for S3 the environment
(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, AWS_PROFILE) and `~/.aws`.
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
from paceline.worker.atomic_file import PART, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator

# The first status of HTTP that means a failure of the server.
_SERVER_FAILED = 500


class ObjectStorage:
    """A prefix of an object storage, such as `s3://bucket/runs/mnist`."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        try:
            # A new instance: a shared one has the credentials of the time when it was made.
            self._files, self._root = fsspec.url_to_fs(
                self._url, use_listings_cache=False, skip_instance_cache=True
            )
        except ImportError as error:
            scheme = url.partition("://")[0]
            raise SpecError(
                f"{url} needs fsspec's support for {scheme!r} ({error}): pip install "
                "'paceline[s3]' for S3."
            ) from None
        except ValueError as error:
            raise SpecError(
                f"{url} is not a storage URL ({error}): give a path, or a URL like s3://bucket/prefix."
            ) from None

    def __reduce__(self) -> tuple[Any, ...]:
        # Connections are not pickled: another process opens its own.
        return ObjectStorage, (self._url,)

    @property
    def url(self) -> str:
        return self._url

    def put(self, name: str, path: str) -> None:
        part = self._key(f".{name}.{uuid4().hex}{PART}")
        with self._explain_errors(f"checkpoint {name} cannot be written to"):
            try:
                self._files.put_file(path, part)
                if self._files.size(part) != os.path.getsize(path):
                    raise OSError("the upload is incomplete")
                # The name appears last, by a copy inside the storage, which is atomic.
                self._files.mv(part, self._key(name))
            except BaseException:
                # A part that cannot be deleted either is found by `list`, and swept.
                with contextlib.suppress(Exception):
                    self._files.rm_file(part)
                raise

    def get(self, name: str, path: str) -> None:
        with (
            self._explain_errors(f"checkpoint {name} cannot be read from"),
            write_atomically(Path(path)) as part,
        ):
            self._files.get_file(self._key(name), str(part))

    def delete(self, name: str) -> None:
        with (
            self._explain_errors(f"checkpoint {name} cannot be deleted from"),
            contextlib.suppress(FileNotFoundError),
        ):
            self._files.rm_file(self._key(name))

    def list(self) -> list[Stored]:
        with self._explain_errors("cannot list"):
            try:
                found = self._files.find(self._root, maxdepth=1, detail=True)
            except FileNotFoundError:
                # Some kinds of storage have no folders: an empty prefix does not exist.
                return []
        rows = [Stored(key.rpartition("/")[2], info["size"]) for key, info in found.items()]
        return sorted(rows, key=lambda stored: stored.name)

    def _key(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextlib.contextmanager
    def _explain_errors(self, what: str) -> Iterator[None]:
        # The errors of the kinds of storage have no common base class.
        try:
            yield
        except Exception as error:
            message = (" ".join(str(error).split()) or type(error).__name__).rstrip(".")
            raise CheckpointError(f"{what} {self._url}: {message}{_advise(error)}.") from error


def _advise(error: Exception) -> str:
    """Return what to do about an error of a storage; empty where the error itself says it."""
    if isinstance(error, PermissionError):
        return "; check the credentials and what they may do there"
    if isinstance(error, FileNotFoundError):
        return ""
    # What the libraries raise for a server that fails, is slow or cuts the connection is of many
    # classes; the status of an answer is in the cause.
    response = getattr(error.__cause__, "response", None) or getattr(error, "response", None)
    meta = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
    status = meta.get("HTTPStatusCode", 0)
    if status >= _SERVER_FAILED:
        return f"; the storage answered with status {status}, look at its state"
    return "" if status else "; check the address and the network"
