"""Ray Tune's API: `report(metrics, checkpoint=…)` and `get_checkpoint()`, in every function.

Turns directories into checkpoints and back. The trial behind it is the same. In a function that
counts its epochs itself, each report closes an epoch.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.errors import CheckpointError, TrialError
from paceline.worker.metrics import parse_report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.worker.trial import Trial

# The trial of this process, while its training function runs.
_current: list[Trial] = []
# Folders that `get_checkpoint` has made; they go when the training function has returned.
_folders: list[str] = []


class Checkpoint:
    """A directory that holds a model's state."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)

    @classmethod
    def from_directory(cls, path: str | Path) -> Checkpoint:
        """Return the checkpoint in this directory."""
        return cls(path)

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        """Yield the directory."""
        yield self.path

    def to_directory(self, path: str | Path | None = None) -> str:
        """Copy the checkpoint to a directory and return it."""
        target = str(path) if path is not None else tempfile.mkdtemp()
        shutil.copytree(self.path, target, dirs_exist_ok=True)
        return target


def report(metrics: dict[str, Any], *, checkpoint: Checkpoint | None = None) -> None:
    """Close an epoch with its metrics, and with a checkpoint of its end."""
    trial = current_trial("report")
    files = None if checkpoint is None else files_in(checkpoint.path)
    trial.report_files(parse_report(metrics, {}, trial.metric), files)


def get_checkpoint() -> Checkpoint | None:
    """Return the checkpoint to continue from; None at the start."""
    files = current_trial("get_checkpoint").restored_files()
    if files is None:
        return None
    folder = tempfile.mkdtemp(prefix="checkpoint-")
    _folders.append(folder)
    put_files(files, folder)
    return Checkpoint(folder)


def files_in(folder: str | Path) -> dict[str, bytes]:
    """Return the files of a folder, by their relative paths."""
    root = Path(folder)
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def put_files(files: dict[str, bytes], folder: str | Path) -> None:
    """Write files into a folder, by their relative paths. Raises CheckpointError outside it."""
    root = Path(folder).resolve()
    for name, body in files.items():
        path = (root / name).resolve()
        if not path.is_relative_to(root) or path == root:
            raise CheckpointError(
                f"the checkpoint names a file {name!r} outside its folder: nothing more is written."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)


@contextmanager
def use_trial(trial: Trial) -> Iterator[None]:
    """Let `report` and `get_checkpoint` use this trial."""
    _current.append(trial)
    try:
        yield
    finally:
        _current.pop()
        while _folders and not _current:
            shutil.rmtree(_folders.pop(), ignore_errors=True)


def current_trial(name: str) -> Trial:
    """Return the trial of this process; raise TrialError for the function `name` without one."""
    if not _current:
        raise TrialError(
            f"paceline.{name} was called outside a training function: call it inside the "
            "function that a study runs."
        )
    return _current[-1]
