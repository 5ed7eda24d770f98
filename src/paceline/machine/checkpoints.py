"""Checkpoints that lie in storage: what they are called, what they take, whose they are.

Where checkpoints are not collected it holds no files: one is then known to its node of the plan
alone. Which machine an attempt saved on is known where slots are on several.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from paceline.plan.tree import node_of, way

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.core.values import AttemptId
    from paceline.machine.trial_state import Trial


Name: TypeAlias = "tuple[AttemptId, int]"


class File(NamedTuple):
    """A checkpoint: its size, its digest, whose path it lies on, how wide the attempt was."""

    bytes: int
    digest: str
    trial: Trial
    width: float = 1.0


class Files:
    """All checkpoints there are."""

    def __init__(self) -> None:
        self.files: dict[Name, File] = {}
        self.bytes = 0
        # The cluster's node on which an attempt has saved.
        self.homes: dict[AttemptId, str] = {}
        # Trials some of whose checkpoints may have become superfluous.
        self.suspects: dict[int, Trial] = {}
        self._of: dict[int, list[Name]] = {}

    def add(self, name: Name, file: File, *, collect: bool) -> None:
        """A checkpoint was saved: its node knows it; it is accounted for where it may go again."""
        node = node_of(file.trial.leaf, max(name[1], 1))
        if collect:
            self.drop(name)
            self.files[name] = file
            self.bytes += file.bytes
            self._of.setdefault(file.trial.id, []).append(name)
        if node.saves is None:
            node.saves = {}
        node.saves[name[1]] = name[0]
        if collect:
            self.suspect(file.trial)

    def drop(self, name: Name, trial: Trial | None = None) -> None:
        """A checkpoint is gone; one that is not accounted for is found on the trial's way."""
        file = self.files.pop(name, None)
        if file is not None:
            self.bytes -= file.bytes
            self._of[file.trial.id].remove(name)
            trial = file.trial
        if trial is not None:
            node = node_of(trial.leaf, max(name[1], 1))
            if node.saves is not None and node.saves.get(name[1]) == name[0]:
                del node.saves[name[1]]

    def drop_all(self, names: Iterable[Name]) -> None:
        """These checkpoints are gone."""
        for name in names:
            self.drop(name)

    def suspect(self, trial: Trial) -> None:
        """Something has changed for which checkpoints on a trial's way may have been kept."""
        self.suspects[trial.id] = trial
        for node in way(trial.leaf):
            for epoch, attempt in (node.saves or {}).items():
                file = self.files.get((attempt, epoch))
                if file is not None:
                    self.suspects[file.trial.id] = file.trial

    def suspect_all(self) -> None:
        """Something has changed for which any of them may have been kept."""
        self.suspects.update((file.trial.id, file.trial) for file in self.files.values())

    def of(self, trial: Trial) -> list[Name]:
        """Return the checkpoints that were saved on a trial's behalf."""
        return self._of.get(trial.id, [])
