"""Checkpoints that lie on a disk: what they are called, what they take, whose they are.

Where checkpoints are not collected it holds nothing and costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from paceline.plan.tree import node_of

if TYPE_CHECKING:
    from paceline.core.values import AttemptId
    from paceline.machine.records import Trial

Name: TypeAlias = "tuple[AttemptId, int]"


class File(NamedTuple):
    """A checkpoint: its size, its digest, and the trial whose path it lies on."""

    bytes: int
    digest: str
    trial: Trial


class Files:
    """All checkpoints there are."""

    def __init__(self) -> None:
        self.files: dict[Name, File] = {}
        self.bytes = 0
        # Trials some of whose checkpoints may have become superfluous.
        self.suspects: dict[int, Trial] = {}
        self._of: dict[int, list[Name]] = {}

    def add(self, name: Name, file: File) -> None:
        """A checkpoint was saved."""
        self.drop(name)
        self.files[name] = file
        self.bytes += file.bytes
        self._of.setdefault(file.trial.id, []).append(name)
        self.suspects[file.trial.id] = file.trial

    def drop(self, name: Name) -> None:
        """A checkpoint is gone."""
        file = self.files.pop(name, None)
        if file is not None:
            self.bytes -= file.bytes
            self._of[file.trial.id].remove(name)
            node = node_of(file.trial.leaf, max(name[1], 1))
            if node.saves is not None and node.saves.get(name[1]) == name[0]:
                del node.saves[name[1]]

    def suspect_all(self) -> None:
        """Something has changed for which any of them may have been kept."""
        self.suspects.update((file.trial.id, file.trial) for file in self.files.values())

    def of(self, trial: Trial) -> list[Name]:
        """Return the checkpoints that were saved on a trial's behalf."""
        return self._of.get(trial.id, [])
