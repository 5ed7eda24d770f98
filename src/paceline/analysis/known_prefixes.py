"""Prefixes that other studies of the same plan have trained, as facts for a new study to reuse.

Reads paths, reports and checkpoints off the states of those studies, each path once. Knows neither
which studies are read nor how a checkpoint is copied.
"""

from __future__ import annotations

from itertools import islice, takewhile
from typing import TYPE_CHECKING

from paceline.core.events import Adopted, AdoptedSave
from paceline.core.values import NO_LOSS
from paceline.plan.settings import list_stretches
from paceline.plan.tree import Tree, find_node, last_known_epoch, path_to_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paceline.core.values import Metrics, StudySpec
    from paceline.machine.checkpoints import CheckpointName, CheckpointRecord
    from paceline.machine.state import StudyState
    from paceline.machine.trial_state import AttemptState, Leaf, TrialState

    # Copies a checkpoint from its name there to its name here; False if it is not available.
    Bring = Callable[[CheckpointName, CheckpointRecord, CheckpointName], bool]


class PrefixReader:
    """Reads what other studies know of one study's plan."""

    def __init__(self, spec: StudySpec) -> None:
        self._spec = spec
        # The paths returned so far.
        self._tree: Tree[TrialState, AttemptState] = Tree(spec.epochs)
        self._facts = 0

    def take(self, state: StudyState, bring: Bring) -> Iterator[Adopted]:
        """Yield a fact for each path of a study that adds to the paths before."""
        paths: dict[int, TrialState] = {}
        for trial in (*state.trials, *state.reused.trials):
            paths.setdefault(id(trial.leaf), trial)
        # The longest first: it covers all shorter paths on its way.
        for trial in sorted(paths.values(), key=lambda trial: -last_known_epoch(trial.leaf)):
            fact = self._make_fact(trial, state, bring)
            if fact.metrics or fact.saves:
                self._facts += 1
                yield fact

    def _make_fact(self, trial: TrialState, state: StudyState, bring: Bring) -> Adopted:
        spec = self._spec
        leaf = self._tree.insert(list_stretches(trial.config, spec.epochs))
        after = last_known_epoch(leaf)
        rows = islice(_read_path(trial.leaf, state.spec), after, spec.epochs)
        # An epoch without this study's metric is useless here, and so are all after it.
        new = list(takewhile(lambda row: spec.metric in row[0], rows))
        for epoch, (metrics, seconds) in enumerate(new, after + 1):
            find_node(leaf, epoch).add_report(0.0, seconds, metrics)
        attempt = -1 - self._facts
        saves = tuple(self._bring_checkpoints(trial.leaf, leaf, attempt, state, bring))
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

    def _bring_checkpoints(
        self, there: Leaf, here: Leaf, attempt: int, state: StudyState, bring: Bring
    ) -> Iterator[AdoptedSave]:
        for node in reversed(path_to_root(there)):
            for epoch, by in sorted((node.checkpoints or {}).items()):
                file = state.checkpoints.records.get((by, epoch))
                if file is None or not 0 < epoch <= last_known_epoch(here):
                    continue
                place = find_node(here, epoch)
                if place.checkpoints is None:
                    place.checkpoints = {}
                if epoch not in place.checkpoints and bring((by, epoch), file, (attempt, epoch)):
                    place.checkpoints[epoch] = attempt
                    yield AdoptedSave(epoch, file.bytes, file.digest)


def _read_path(leaf: Leaf, spec: StudySpec) -> Iterator[tuple[Metrics, float]]:
    """Yield the metrics and the duration of each epoch on a path."""
    for node in reversed(path_to_root(leaf)):
        for at, (loss, seconds) in enumerate(zip(node.losses, node.seconds, strict=True)):
            extra = node.extra[at] if node.extra is not None and at < len(node.extra) else None
            value = None if loss == NO_LOSS else spec.sign * loss
            yield extra or {spec.metric: value}, seconds
