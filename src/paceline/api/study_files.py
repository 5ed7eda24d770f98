"""The files of a stored study: the output of its attempts, and the removal of all of it.

Knows which files are a study's own. Deletes only those, whatever else is in the same folder.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from paceline.api.locations import find_folder, open_checkpoints
from paceline.api.stored import fold_log, read_log, read_spec
from paceline.core.errors import CheckpointError, SpecError, StudyRunning
from paceline.core.events import Opened
from paceline.core.text import format_count
from paceline.machine.state import StudyState
from paceline.store import hide_password

if TYPE_CHECKING:
    from pathlib import Path

    from paceline.core.ports import Storage, Store

_OWN_FILE = re.compile(r"(adopted-)?\d+-\d+\.ckpt.*|attempt-\d+\.log")


class StudyPlaces(NamedTuple):
    """Where a stored study's files are."""

    trials: int
    # None: it has no folder of its own, or its files are on another machine.
    folder: Path | None
    # The storage of its checkpoints, if they are not in the folder.
    storage: Storage | None
    files: list[Path]


def find_places(store: Store, url: str, study: str) -> StudyPlaces:
    """Return where a study's files are; raise StudyRunning if a driver runs it."""
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
    if not opened.run.is_trained:
        return StudyPlaces(trials, None, None, [])
    folder = find_folder(opened, url)
    storage = None if opened.run.checkpoints is None else open_checkpoints(opened, url)
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
        if _OWN_FILE.fullmatch(path.name)
    )


class Output(NamedTuple):
    """The output of one attempt."""

    attempt: int
    path: Path
    # Whether its process may still write.
    is_open: bool


def list_outputs(store: Store, url: str, study: str, trial: int) -> list[Output]:
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
    folder = find_folder(opened, url)
    if not opened.run.is_trained or folder is None:
        raise SpecError(f"study {study!r} was not trained here: its trials have no output.")
    return [
        Output(number, folder / "logs" / f"attempt-{number}.log", number in state.attempts)
        for number in attempts
    ]
