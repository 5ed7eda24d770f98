"""Prefixes reused from other studies, as a fold of the Adopted events.

Knows how such an event becomes reports and checkpoints along a path of the tree. Does not read
other studies: `analysis.known_prefixes` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.values import Status, to_loss
from paceline.machine.checkpoints import CheckpointRecord
from paceline.machine.trial_state import TrialState
from paceline.plan.settings import list_stretches
from paceline.plan.tree import find_node, last_known_epoch

if TYPE_CHECKING:
    from paceline.core.events import Adopted
    from paceline.core.values import StudySpec
    from paceline.machine.checkpoints import CheckpointIndex
    from paceline.machine.trial_state import AttemptState
    from paceline.plan.tree import Tree


class ReusedPrefixes:
    """The trials of other studies whose epochs are reused."""

    def __init__(self) -> None:
        # The number of configs from each study.
        self.studies: dict[str, int] = {}
        # They represent trials of other studies: they have ended, their ids are negative, and
        # policies do not see them.
        self.trials: list[TrialState] = []

    def take(
        self,
        event: Adopted,
        tree: Tree[TrialState, AttemptState],
        checkpoints: CheckpointIndex,
        spec: StudySpec,
    ) -> None:
        """Add the event's reports and checkpoints along its config's path.

        The machine then credits trials that wait for these epochs, one judged epoch at a time.
        """
        leaf = tree.insert(list_stretches(event.config, spec.epochs))
        other = TrialState(-1 - len(self.trials), event.config, leaf, spec)
        other.end(Status.STOPPED)
        self.trials.append(other)
        self.studies[event.study] = self.studies.get(event.study, 0) + 1
        reports = zip(event.metrics, event.seconds, strict=True)
        for epoch, (metrics, seconds) in enumerate(reports, event.after + 1):
            loss = to_loss(metrics.get(spec.metric), spec.sign)
            other.best_loss = min(other.best_loss, loss)
            # Known epochs stay as they are; one after a gap or beyond the last epoch is not used.
            if epoch == last_known_epoch(leaf) + 1 and epoch <= spec.epochs:
                find_node(leaf, epoch).add_report(loss, seconds, metrics)
        for save in event.saves if event.attempt < 0 else ():
            if 0 < save.epoch <= last_known_epoch(leaf):
                record = CheckpointRecord(save.bytes, save.digest, other)
                checkpoints.add((event.attempt, save.epoch), record, collect=spec.saves.collect)
