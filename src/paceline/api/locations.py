"""Locations of a study's files and checkpoints, from its options or from its log.

Knows what the log holds of them, so that a later driver finds them. Opens storages; writes nothing
to them.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from msgspec.structs import replace

from paceline.api.permissions import (
    NOTHING,
    check_address,
    check_path,
)
from paceline.core.errors import SpecError
from paceline.core.run_info import RunInfo
from paceline.engines.process.checkpoint_files import CheckpointFiles
from paceline.store import find_study_folder, make_folder_name
from paceline.store.storage import FolderStorage, open_storage

if TYPE_CHECKING:
    from typing import NoReturn

    from paceline.api.options import StudyOptions
    from paceline.api.permissions import Allowed
    from paceline.core.events import Opened
    from paceline.core.ports import Storage, Stored


class StudyLocations:
    """One study's folder on this machine, and its checkpoint storage elsewhere, if any."""

    def __init__(self, study: str, options: StudyOptions, opened: Opened | None) -> None:
        known = RunInfo() if opened is None else opened.run
        _refuse_other_places(study, options, known)
        self.files = _choose_folder(study, options, known)
        self._given = (options.files or known.files) is not None
        # The address of the checkpoint storage; None: checkpoints are in the folder.
        self.address = _choose_address(study, options, known, begun=opened is not None)
        self.storage = None if self.address is None else open_storage(self.address)
        self.cache_bytes: int = options.cache_bytes

    def describe(self, run: RunInfo) -> RunInfo:
        """Return how the study is run, with these locations, for the log."""
        files = str(self.files.resolve()) if self._given else None
        return replace(run, files=files, checkpoints=self.address)


def open_checkpoints(opened: Opened, url: str, allowed: Allowed = NOTHING) -> Storage | None:
    """Open the checkpoint storage of a study of this store; None: it was simulated.

    Raises SpecError if the log names a place outside the store's folder that is not allowed.
    """
    run = opened.run
    if run.checkpoints is not None:
        check_address(opened.spec.name, run.checkpoints, url, allowed)
        return open_storage(run.checkpoints)
    if not run.is_trained:
        return None
    folder = find_folder(opened, url, allowed)
    return None if folder is None else FolderStorage(folder / "checkpoints")


def find_folder(opened: Opened, url: str, allowed: Allowed = NOTHING) -> Path | None:
    """Return the folder of a stored study's files; None: the store is in memory.

    Raises SpecError if it is outside the store's folder and not allowed, also by a link.
    """
    study, given = opened.spec.name, opened.run.files
    folder = find_study_folder(url, study) if given is None else Path(given)
    if folder is None:
        return None
    for path in (folder, folder / "checkpoints", folder / "logs"):
        check_path(study, "files", path, url, allowed)
    return folder


def find_checkpoint_files(opened: Opened, url: str, allowed: Allowed = NOTHING) -> CheckpointFiles:
    """Return the files of a stored study, to be read; nothing is made in its folder.

    Where its log names a place that is not allowed, reading a checkpoint raises SpecError.
    """
    address = opened.run.checkpoints
    try:
        folder = find_folder(opened, url, allowed)
        if address is not None:
            check_address(opened.spec.name, address, url, allowed)
    except SpecError as error:
        where = address or f"{opened.run.files or find_study_folder(url, opened.spec.name)}"
        # Below a file that has no files below it: nothing there exists.
        return CheckpointFiles(Path(os.devnull), RefusedStorage(where, str(error)), create=False)
    storage = None if address is None else open_storage(address)
    if storage is not None and (folder is None or not (folder / "checkpoints").is_dir()):
        # Checkpoints are fetched here to be read.
        return CheckpointFiles(make_temporary_folder(), storage)
    return CheckpointFiles(folder or Path(), storage, create=False)


class RefusedStorage:
    """A storage that a log names and the caller has not allowed: every use is an error."""

    def __init__(self, url: str, why: str) -> None:
        self.url = url
        self._why = why

    def put(self, name: str, path: str) -> None:
        """Raise SpecError."""
        self._refuse()

    def get(self, name: str, path: str) -> None:
        """Raise SpecError."""
        self._refuse()

    def delete(self, name: str) -> None:
        """Raise SpecError."""
        self._refuse()

    def list(self) -> list[Stored]:
        """Raise SpecError."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise SpecError(self._why)


def _refuse_other_places(study: str, options: StudyOptions, run: RunInfo) -> None:
    """Raise SpecError if a log names a place that this call neither gives nor has in its store."""
    url = options.store or "memory:"
    for option, known in (("files", run.files), ("checkpoints", run.checkpoints)):
        given = getattr(options, option)
        if known is None or given is not None:
            continue  # one that was given is compared with the log's
        try:
            check_address(study, known, url)
        except SpecError:
            place = known if option == "files" else known.rpartition("/")[0]
            raise SpecError(
                f"the log of study {study!r} has its {option} in {place}, outside the folder of "
                f"its store: give {option}={place!r}, as in the call that started it."
            ) from None


def _choose_folder(study: str, options: StudyOptions, run: RunInfo) -> Path:
    given = options.files or run.files
    if given is not None:
        return Path(given)
    url = options.store
    beside = None if url is None else find_study_folder(url, study)
    home = Path.home() / ".paceline"
    if beside is not None and beside.is_relative_to(home):
        # Private, also in a home that other users can enter.
        with suppress(OSError):
            home.mkdir(mode=0o700, exist_ok=True)
    return beside or make_temporary_folder()


# Temporary folders with output that an error message refers to.
_KEPT_OUTPUTS: set[Path] = set()


def make_temporary_folder() -> Path:
    """Return a new folder that is deleted when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="paceline-"))
    atexit.register(_remove_folder, folder, os.getpid())
    return folder


def keep_output(folder: Path) -> None:
    """Keep the output of trials in a temporary folder when this process ends."""
    _KEPT_OUTPUTS.add(folder)


def _remove_folder(folder: Path, owner: int) -> None:
    # A forked process that ends must leave its parent's files alone.
    if os.getpid() == owner:
        is_kept = folder in _KEPT_OUTPUTS
        shutil.rmtree(folder / "checkpoints" if is_kept else folder, ignore_errors=True)
        if is_kept and not any(path.is_file() for path in folder.rglob("*")):
            shutil.rmtree(folder, ignore_errors=True)  # the trials printed nothing


def _choose_address(study: str, options: StudyOptions, run: RunInfo, *, begun: bool) -> str | None:
    given = options.checkpoints
    base = None if given is None else _check_address(str(given))
    if not begun:
        # Studies of the same name in other stores may use the same address.
        return None if base is None else f"{base}/{make_folder_name(study)}-{uuid4().hex[:8]}"
    known = run.checkpoints
    before = None if known is None else known.rpartition("/")[0]
    if base is not None and base != before:
        where = "in its folder" if known is None else f"in {before}"
        raise SpecError(
            f"study {study!r} has its checkpoints {where}, not in {base}: give `checkpoints` as "
            "before, or give the study another name."
        )
    return known


def _check_address(given: str) -> str:
    if not given.strip("/"):
        raise SpecError(f"checkpoints={given!r} is invalid: must be a path, or s3://bucket/prefix.")
    return given.rstrip("/") if "://" in given else str(Path(given).absolute())
