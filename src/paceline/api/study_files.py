"""The files of a stored study: the output of its attempts, and the removal of all of it.

Knows which files are a study's own. Deletes only those, whatever else is in the same folder.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from paceline.api.locations import find_folder, open_checkpoints
from paceline.api.permissions import NOTHING
from paceline.api.stored import fold_log, read_log, read_spec
from paceline.core.errors import CheckpointError, SpecError, StudyRunning
from paceline.core.events import Opened
from paceline.core.text import format_count
from paceline.engines.process.checkpoint_files import is_own_file
from paceline.engines.process.output_files import OutputFiles, is_output
from paceline.machine.state import StudyState
from paceline.store import hide_password

if TYPE_CHECKING:
    from pathlib import Path

    from paceline.api.permissions import Allowed
    from paceline.core.ports import Storage, Store


class StudyPlaces(NamedTuple):
    """Where a stored study's files are."""

    trials: int
    # None: it has no folder of its own, or its files are on another machine.
    folder: Path | None
    # The storage of its checkpoints, if they are not in the folder.
    storage: Storage | None
    files: list[Path]


def find_places(
    store: Store, url: str, study: str, allowed: Allowed = NOTHING, *, keep_files: bool = False
) -> StudyPlaces:
    """Return where a study's files are; raise StudyRunning if a driver runs it.

    Raises SpecError if its log names a place outside the store's folder that is not allowed.
    """
    holder = store.holder(study)
    if holder is not None:
        raise StudyRunning(
            f"study {study!r} in {hide_password(url)} is running ({holder}): stop it first with "
            f"`paceline stop {study}`.",
            holder,
        )
    first = next(store.read(study), None)
    read_spec([] if first is None else [first])
    assert first is not None
    assert isinstance(first.event, Opened)
    opened = first.event
    trials = len(fold_log(read_log(store, study)).trials)
    if keep_files or not opened.run.is_trained:
        return StudyPlaces(trials, None, None, [])
    folder = find_folder(opened, url, allowed)
    storage = None if opened.run.checkpoints is None else open_checkpoints(opened, url, allowed)
    return StudyPlaces(trials, folder, storage, [] if folder is None else _list_own(folder))


def delete_study(store: Store, study: str, places: StudyPlaces) -> list[str]:
    """Delete a study's log and files; return what could not be deleted, with the reasons."""
    store.delete(study)
    left = []
    for path in places.files:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            left.append(f"{path} ({error.strerror or error})")
    if places.storage is not None:
        try:
            for stored in places.storage.list():
                if is_own_file(stored.name):
                    places.storage.delete(stored.name)
        except CheckpointError as error:
            left.append(f"{places.storage.url} ({error})")
    if places.folder is not None:
        for folder in (*(places.folder / name for name in ("checkpoints", "logs")), places.folder):
            with suppress(OSError):  # not empty: something else is in it
                folder.rmdir()
    return left


def _list_own(folder: Path) -> list[Path]:
    return sorted(
        path
        for name in ("checkpoints", "logs")
        for path in (folder / name).glob("*")
        if is_own_file(path.name) or is_output(path.name)
    )


class Output(NamedTuple):
    """The output of one attempt."""

    attempt: int
    # The file of its own, which it may have had.
    path: Path
    # Whether its process may still write.
    is_open: bool

    def read(self, after: int) -> bytes | None:
        """Return the output beyond its first bytes; None: it is not on this machine."""
        if not self.path.parent.is_dir():
            return None
        # An attempt that printed nothing has no file.
        return OutputFiles(self.path.parent).read(self.attempt, after) or b""


def list_outputs(
    store: Store, url: str, study: str, trial: int, allowed: Allowed = NOTHING
) -> list[Output]:
    """Return the output of each attempt that trained for a trial, oldest first."""
    state, attempts = StudyState(), dict[int, None]()
    opened = None
    for step in read_log(store, study):
        opened = opened or step.event
        for entry in step.entries:
            state.apply(entry)
            attempt = state.trials[trial].attempt if trial < len(state.trials) else None
            if attempt is not None:
                attempts[attempt.id] = None
    assert isinstance(opened, Opened)
    if trial >= len(state.trials):
        count = format_count(len(state.trials), "trial")
        raise SpecError(f"trial {trial} does not exist: study {study!r} has {count}.")
    folder = find_folder(opened, url, allowed)
    if not opened.run.is_trained or folder is None:
        raise SpecError(f"study {study!r} was not trained here: its trials have no output.")
    files = OutputFiles(folder / "logs")
    return [Output(number, files.path(number), number in state.attempts) for number in attempts]
