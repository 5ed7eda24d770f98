"""Shared stages: how many trials need the epochs up to the next look of a trial.

What several trials train together costs each of them a part. Knows which trials share the epochs
before their next looks; not what these epochs bring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.core.values import TrialId


class SharedStages:
    """The trials that wait for the same epochs, by the number that these epochs have."""

    def __init__(self) -> None:
        self._members: dict[tuple[int, int], set[TrialId]] = {}
        self._stage: dict[TrialId, tuple[int, int]] = {}

    def move(self, trial: TrialId, origin: int, until: int) -> Iterable[TrialId]:
        """Note what a trial trains next; return the trials that share it now, itself included."""
        self.drop(trial)
        stage = (origin, until)
        self._stage[trial] = stage
        members = self._members.setdefault(stage, set())
        members.add(trial)
        return members

    def drop(self, trial: TrialId) -> Iterable[TrialId]:
        """Forget a trial; return those that shared its next epochs."""
        stage = self._stage.pop(trial, None)
        if stage is None:
            return ()
        members = self._members[stage]
        members.discard(trial)
        if not members:
            del self._members[stage]
        return members
