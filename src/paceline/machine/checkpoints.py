"""The index of checkpoints in storage: names, sizes, and the trials they belong to.

If checkpoints are not collected the index has no records: a checkpoint is then known to its node of
the tree, and by its digest if it has one. The cluster node of a checkpoint is known if slots are on
several. Deletes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from paceline.machine.trial_state import TrialState
from paceline.plan.tree import find_node, path_to_root

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.core.values import AttemptId


CheckpointName: TypeAlias = "tuple[AttemptId, int]"


class CheckpointRecord(Struct, frozen=True):
    """A checkpoint: its size, its digest, a trial on its path, the width of its attempt."""

    bytes: int
    digest: str
    trial: TrialState
    width: float = 1.0


class CheckpointIndex:
    """All checkpoints of a study."""

    def __init__(self) -> None:
        self.records: dict[CheckpointName, CheckpointRecord] = {}
        self.bytes = 0
        # Digests of checkpoints without a record; simulated checkpoints have none.
        self._digests: dict[CheckpointName, str] = {}
        # The cluster node on which an attempt has saved.
        self.nodes: dict[AttemptId, str] = {}
        # Trials whose checkpoints may have become superfluous.
        self.to_recheck: dict[int, TrialState] = {}
        self._names: dict[int, list[CheckpointName]] = {}

    def add(self, name: CheckpointName, record: CheckpointRecord, *, collect: bool) -> None:
        """Add a saved checkpoint to its node, and to the records if checkpoints are collected."""
        leaf, epoch = record.trial.leaf, name[1]
        node = leaf if epoch > leaf.start else find_node(leaf, max(epoch, 1))
        if collect:
            self.drop(name)
            self.records[name] = record
            self.bytes += record.bytes
            self._names.setdefault(record.trial.id, []).append(name)
        elif record.digest:
            self._digests[name] = record.digest
        if node.checkpoints is None:
            node.checkpoints = {}
        node.checkpoints[epoch] = name[0]
        if collect:
            self.recheck(record.trial)

    def find_digest(self, name: CheckpointName) -> str | None:
        """Return the digest of a checkpoint; empty if it was saved without, None if unknown."""
        record = self.records.get(name)
        return self._digests.get(name) if record is None else record.digest

    def drop(self, name: CheckpointName, trial: TrialState | None = None) -> None:
        """Remove a checkpoint; one without a record is found on the trial's path."""
        record = self.records.pop(name, None)
        self._digests.pop(name, None)
        if record is not None:
            self.bytes -= record.bytes
            self._names[record.trial.id].remove(name)
            trial = record.trial
        if trial is not None:
            node = find_node(trial.leaf, max(name[1], 1))
            if node.checkpoints is not None and node.checkpoints.get(name[1]) == name[0]:
                del node.checkpoints[name[1]]

    def drop_all(self, names: Iterable[CheckpointName]) -> None:
        """Remove these checkpoints."""
        for name in names:
            self.drop(name)

    def recheck(self, trial: TrialState) -> None:
        """Check the checkpoints on a trial's path again at the next collection."""
        self.to_recheck[trial.id] = trial
        for node in path_to_root(trial.leaf):
            for epoch, attempt in (node.checkpoints or {}).items():
                record = self.records.get((attempt, epoch))
                if record is not None:
                    self.to_recheck[record.trial.id] = record.trial

    def recheck_all(self) -> None:
        """Check all checkpoints again at the next collection."""
        self.to_recheck.update((record.trial.id, record.trial) for record in self.records.values())

    def list_names(self, trial: TrialState) -> list[CheckpointName]:
        """Return the checkpoints saved by attempts of a trial."""
        return self._names.get(trial.id, [])
