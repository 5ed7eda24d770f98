"""Saves for trials that may branch: where an attempt saves although no trial needs it yet.

Knows the odds of a branch, the time to train its epochs again and the time of a save, and weighs
them. Does not know orders or slots.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from paceline.core.errors import SpecError
from paceline.core.rng import stream
from paceline.core.space import Space
from paceline.plan.branch_odds import BranchOdds
from paceline.plan.settings import canonicalize, is_constant, list_stretches
from paceline.plan.tree import Tree, find_node, path_to_root

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.core.decisions import Open
    from paceline.core.values import Config, StudySpec
    from paceline.machine.timing import CriticalPath
    from paceline.machine.trial_state import AttemptState, Leaf, TrialState
    from paceline.plan.settings import Stretch

# A rarer branch is not worth a file, however long its epochs take.
_LEAST_ODDS = 0.05
# The odds that a trial which is paused before its branch goes on to it.
_PAUSED_ODDS = 0.5
# The most configs, and stretches of their settings, that show how much the trials of a space share.
_MOST_SAMPLES, _MOST_STRETCHES = 200, 5000


class BranchSaves:
    """Weighs the saves that no trial needs yet."""

    def __init__(self, critical_path: CriticalPath) -> None:
        self._critical_path = critical_path
        self._odds = BranchOdds(0)
        self._epochs = 0
        # Whether trials share prefixes; if not, nothing here is used.
        self.shares = False
        # The studies whose spaces are still to be sampled: readers of a log never do.
        self._unsampled: tuple[StudySpec, ...] = ()
        # The number of trials that all generators together propose; None: unknown.
        self._trials: int | None = None
        self._opened = 0
        # Saves that were made, and that could not be made.
        self._made = self._missed = 0

    def begin(self, spec: StudySpec) -> None:
        """Begin a study."""
        if not spec.share:
            return
        self.shares, self._epochs = True, spec.epochs
        self._odds = BranchOdds(spec.epochs)
        self._unsampled = spec.studies
        if not spec.standing:
            self._trials = _count_trials(spec)

    def _sample(self) -> None:
        """Learn from the spaces and queues of the studies how much their trials will share."""
        studies, self._unsampled = self._unsampled, ()
        tree: Tree[TrialState, AttemptState] = Tree(self._epochs)
        for study in studies:
            stretches = 0
            for config in islice(_list_samples(study), _MOST_SAMPLES // len(studies)):
                path = list_stretches(config, self._epochs)
                self._insert(path, tree)
                stretches += len(path)
                if stretches > _MOST_STRETCHES // len(studies):
                    break

    def insert(self, opened: Open, tree: Tree[TrialState, AttemptState]) -> Leaf:
        """Insert a new trial's path into the tree, and learn where it branches; return its leaf."""
        if not self.shares:
            return tree.insert_alone()
        path = list_stretches(opened.config, self._epochs)
        self._odds.record_goal(None, opened.until)
        if opened.source is not None:
            # The policy chooses where to fork a trial, and has the other one saved there.
            leaf = tree.insert(path)
        else:
            self._opened += 1
            leaf = self._insert(path, tree)
        for node in path_to_root(leaf):
            node.live += 1
        return leaf

    def remove(self, trial: TrialState) -> None:
        """Forget a trial that has ended."""
        if self.shares:
            for node in path_to_root(trial.leaf):
                node.live -= 1

    def _insert(self, path: list[Stretch], tree: Tree[TrialState, AttemptState]) -> Leaf:
        before = tree.size
        leaf = tree.insert(path)
        self._odds.record(leaf.start if tree.size > before else self._epochs, path)
        return leaf

    def record_goal(self, before: int, after: int) -> None:
        """Record that a trial's goal was raised."""
        if self.shares:
            self._odds.record_goal(before, after)

    def record_save(self, *, missed: bool) -> None:
        """Record that a save was made, or could not be made."""
        self._made += not missed
        self._missed += missed

    def list_candidates(self, start: int, until: int) -> list[int]:
        """Return the epochs between these two after which a trial may branch."""
        if self._missed and not self._made:
            return []  # a function that keeps nothing cannot save
        if self._unsampled:
            self._sample()
        return self._odds.list_candidates(start, until)

    def is_worth(self, trial: TrialState, since: int, epoch: int, *, closed: bool) -> bool:
        """Say whether a checkpoint here likely saves more time than it takes to write.

        Without it, a trial that branches here has to be trained again from epoch `since` on.
        `closed`: no more trials come.
        """
        if epoch in (find_node(trial.leaf, epoch).checkpoints or ()):
            return False
        odds, paths = self._estimate_odds(trial, epoch, closed=closed), self._critical_path
        if odds < _LEAST_ODDS:
            return False
        return odds * paths.train_s(trial, since, epoch) > paths.save_s

    def is_likely(self, trial: TrialState, epoch: int, *, closed: bool) -> bool:
        """Say whether trials branch after this epoch of a trial's path, or are likely to."""
        if find_node(trial.leaf, epoch).end == epoch:
            return True
        return self._estimate_odds(trial, epoch, closed=closed) >= _LEAST_ODDS

    def _estimate_odds(self, trial: TrialState, epoch: int, *, closed: bool) -> float:
        if self._unsampled:
            self._sample()
        odds = self._odds.estimate(epoch, self._count_coming(closed=closed))
        return max(odds, _PAUSED_ODDS) if _awaits_goal(trial, epoch) else odds

    def _count_coming(self, *, closed: bool) -> int | None:
        if closed:
            return 0
        return None if self._trials is None else max(self._trials - self._opened, 0)


def _awaits_goal(trial: TrialState, epoch: int) -> bool:
    """Say whether another live trial branches here, and has not been trained beyond."""
    node, own = find_node(trial.leaf, epoch), find_node(trial.leaf, epoch + 1)
    children = (node.children or {}).values() if node.end == epoch else ()
    return any(child.live and not child.losses for child in children if child is not own)


def _count_trials(spec: StudySpec) -> int | None:
    """Return the number of trials that the generators propose; None if one has no known end."""
    total = 0
    for study in spec.studies:
        configs = study.generator.params.get("configs")
        limits = [study.budget.trials, len(configs) if isinstance(configs, list) else None]
        known = [limit for limit in limits if limit is not None]
        if not known:
            return None
        total += min(known)
    return total


def _list_samples(spec: StudySpec) -> Iterator[Config]:
    """Yield configs as the study's generator might propose them, if their settings change."""
    params = spec.generator.params
    configs, space = params.get("configs"), params.get("space")
    # A generator of another package may read its parameters in its own way.
    with suppress(SpecError):
        if isinstance(configs, list):
            yield from map(canonicalize, configs)
        elif isinstance(space, dict) and not is_constant(space):
            made = Space(space)
            rng = stream(spec.seed, "branches")
            while True:
                yield canonicalize(made.fill(lambda dimension: dimension.at(rng.random())))
