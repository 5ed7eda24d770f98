"""Ray's spelling: `train(config)` with `report(metrics, checkpoint=…)` and `get_checkpoint()`.

Knows how directories become checkpoints and back. The trial behind it is the same; since the
function keeps its own count of epochs, prefixes are not shared and each report closes an epoch.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.errors import TrialError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.worker.trial import Trial

# The trial of this process, while a function in Ray's spelling runs.
_current: list[Trial] = []


class Checkpoint:
    """A directory that holds a model's state."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)

    @classmethod
    def from_directory(cls, path: str | Path) -> Checkpoint:
        """Return the checkpoint that lies in this directory."""
        return cls(path)

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        """Give the directory."""
        yield self.path

    def to_directory(self, path: str | Path | None = None) -> str:
        """Copy the checkpoint to a directory and return it."""
        target = str(path) if path is not None else tempfile.mkdtemp()
        shutil.copytree(self.path, target, dirs_exist_ok=True)
        return target


def report(metrics: dict[str, Any], *, checkpoint: Checkpoint | None = None) -> None:
    """Close an epoch with what was measured, and with the state it ended in."""
    files = None if checkpoint is None else files_in(checkpoint.path)
    current("report").close_epoch(metrics, files)


def get_checkpoint() -> Checkpoint | None:
    """Return what to go on from; None at the start."""
    files = current("get_checkpoint").restored_files()
    if files is None:
        return None
    folder = tempfile.mkdtemp(prefix="checkpoint-")
    put_files(files, folder)
    return Checkpoint(folder)


def files_in(folder: str | Path) -> dict[str, bytes]:
    """Return a folder's files, by their paths in it."""
    root = Path(folder)
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def put_files(files: dict[str, bytes], folder: str | Path) -> None:
    """Write files into a folder, as `files_in` gave them."""
    for name, body in files.items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)


@contextmanager
def running(trial: Trial) -> Iterator[None]:
    """Let `report` and `get_checkpoint` mean this trial."""
    _current.append(trial)
    try:
        yield
    finally:
        _current.pop()


def current(name: str) -> Trial:
    """Return the trial of this process, for a function called `name`."""
    if not _current:
        raise TrialError(
            f"paceline.{name} was called outside a training function: it belongs into a function "
            "`train(config)` that a study runs."
        )
    return _current[-1]
