"""What studies of one plan know, told as facts for another study to adopt.

Knows how to read paths, reports and checkpoints off their states, and to tell each of them once.
Does not know which studies are asked, nor how a checkpoint gets from one to the other.
"""

from __future__ import annotations

from itertools import islice, takewhile
from typing import TYPE_CHECKING

from paceline.core.events import Adopted, AdoptedSave
from paceline.core.values import NO_LOSS
from paceline.plan.settings import stretches
from paceline.plan.tree import Tree, known_on, node_of, way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paceline.core.values import Metrics, StudySpec
    from paceline.machine.checkpoints import File, Name
    from paceline.machine.state import StudyState
    from paceline.machine.trial_state import Attempt, Leaf, Trial

    # Brings a checkpoint over, from its name there to its name here; False: it cannot be had.
    Bring = Callable[[Name, File, Name], bool]


class Gatherer:
    """Collects for one study what others know of its plan."""

    def __init__(self, spec: StudySpec) -> None:
        self._spec = spec
        # What was told so far.
        self._tree: Tree[Trial, Attempt] = Tree(spec.epochs)
        self._facts = 0

    def take(self, state: StudyState, bring: Bring) -> Iterator[Adopted]:
        """Yield a fact for each path of a study that adds to what was told before."""
        paths: dict[int, Trial] = {}
        for trial in (*state.trials, *state.adopted.trials):
            paths.setdefault(id(trial.leaf), trial)
        # The longest first: what lies wholly on another one's path is told with it.
        for trial in sorted(paths.values(), key=lambda trial: -known_on(trial.leaf)):
            fact = self._fact(trial, state, bring)
            if fact.metrics or fact.saves:
                self._facts += 1
                yield fact

    def _fact(self, trial: Trial, state: StudyState, bring: Bring) -> Adopted:
        spec = self._spec
        leaf = self._tree.insert(stretches(trial.config, spec.epochs))
        after = known_on(leaf)
        told = islice(_told(trial.leaf, state.spec), after, spec.epochs)
        # An epoch without this study's metric is of no use to it, nor is what follows.
        new = list(takewhile(lambda row: spec.metric in row[0], told))
        for epoch, (metrics, seconds) in enumerate(new, after + 1):
            node_of(leaf, epoch).learn(0.0, seconds, metrics)
        attempt = -1 - self._facts
        saves = tuple(self._saves(trial.leaf, leaf, attempt, state, bring))
        return Adopted(
            at=0.0,
            study=state.spec.name,
            config=trial.config,
            metrics=tuple(metrics for metrics, _ in new),
            seconds=tuple(seconds for _, seconds in new),
            after=after,
            saves=saves,
            attempt=attempt if saves else 0,
        )

    def _saves(
        self, there: Leaf, here: Leaf, attempt: int, state: StudyState, bring: Bring
    ) -> Iterator[AdoptedSave]:
        for node in reversed(way(there)):
            for epoch, by in sorted((node.saves or {}).items()):
                file = state.files.files.get((by, epoch))
                if file is None or not 0 < epoch <= known_on(here):
                    continue
                place = node_of(here, epoch)
                if place.saves is None:
                    place.saves = {}
                if epoch not in place.saves and bring((by, epoch), file, (attempt, epoch)):
                    place.saves[epoch] = attempt
                    yield AdoptedSave(epoch, file.bytes, file.digest)


def _told(leaf: Leaf, spec: StudySpec) -> Iterator[tuple[Metrics, float]]:
    """Yield what was reported along a path, and how long each epoch took."""
    for node in reversed(way(leaf)):
        for at, (loss, seconds) in enumerate(zip(node.losses, node.seconds, strict=True)):
            extra = node.extra[at] if node.extra is not None and at < len(node.extra) else None
            value = None if loss == NO_LOSS else spec.sign * loss
            yield extra or {spec.metric: value}, seconds
