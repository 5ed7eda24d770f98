"""What was taken over from other studies, as a fold of the facts that say so.

Knows how an Adopted fact becomes reports and checkpoints along a path of the tree. Does not know
where the facts come from: that is `gathering`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.values import Status, loss_of
from paceline.machine.checkpoints import File
from paceline.machine.trial_state import Trial
from paceline.plan.settings import stretches
from paceline.plan.tree import known_on, node_of

if TYPE_CHECKING:
    from paceline.core.events import Adopted
    from paceline.core.values import StudySpec
    from paceline.machine.checkpoints import Files
    from paceline.machine.trial_state import Attempt
    from paceline.plan.tree import Tree


class Adoptions:
    """All that was taken over."""

    def __init__(self) -> None:
        # How many configs each study gave.
        self.studies: dict[str, int] = {}
        # Their configs and paths. They stand for trials of other studies: they have ended, their
        # numbers are below zero, and no policy hears of them.
        self.trials: list[Trial] = []

    def take(
        self, event: Adopted, tree: Tree[Trial, Attempt], files: Files, spec: StudySpec
    ) -> None:
        """File the fact's reports and checkpoints along its config's path.

        Whoever waits for these epochs is credited with them, one judged epoch at a time.
        """
        leaf = tree.insert(stretches(event.config, spec.epochs))
        other = Trial(-1 - len(self.trials), event.config, leaf, spec)
        other.ended = Status.STOPPED
        self.trials.append(other)
        self.studies[event.study] = self.studies.get(event.study, 0) + 1
        told = zip(event.metrics, event.seconds, strict=True)
        for epoch, (metrics, seconds) in enumerate(told, event.after + 1):
            loss = loss_of(metrics.get(spec.metric), spec.sign)
            other.best_loss = min(other.best_loss, loss)
            # What is known stays; what would leave a gap, or lies beyond the last epoch, is no use.
            if epoch == known_on(leaf) + 1 and epoch <= spec.epochs:
                node_of(leaf, epoch).learn(loss, seconds, metrics)
        for save in event.saves if event.attempt < 0 else ():
            if 0 < save.epoch <= known_on(leaf):
                name, file = (event.attempt, save.epoch), File(save.bytes, save.digest, other)
                files.add(name, file, collect=spec.saves.collect)
