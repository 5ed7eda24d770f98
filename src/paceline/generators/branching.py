"""Draws that begin like a trial there is: what they have in common is trained already.

Rule: with probability `share` a config is one of the trials so far up to an epoch at which parts of
the space's schedules begin, and drawn afresh from there on; else all of it is drawn afresh. The
epoch is drawn by lot from those that a trial has come to, and the trial from the best quarter by
loss after that epoch, where trials that share it count once.

The sharing-aware tuner that Hippo (Shin et al., VLDB 2022) leaves to future work; population based
training is the case of branching from the best. Parts that can be drawn afresh are the pieces of
`piecewise` and of lists whose first epoch is fixed. Where a space has none nothing can branch, and
all draws are those of `random`.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING, Any

from paceline.core.errors import SpecError
from paceline.core.rng import stream
from paceline.core.space import Space
from paceline.generators.initial import First
from paceline.generators.prefix_order import PIECES, beginning

if TYPE_CHECKING:
    from paceline.core.decisions import Entry
    from paceline.core.values import Config, TrialId, Value
    from paceline.core.views import StudyView

# The part of the trials at an epoch that is good enough to branch from.
_BEST = 4


class Branching:
    """The n-th config depends on the study's seed, on n, and on what trials have come to."""

    pure = True

    def __init__(
        self,
        *,
        space: dict[str, Any],
        share: float = 0.5,
        first: list[dict[str, Any]] | None = None,
    ) -> None:
        if not 0 <= share <= 1:
            raise SpecError(f"branching: share={share:g} cannot be meant: give one from 0 to 1.")
        self._template = space
        self._space = Space(space)
        self._first = First(self._space, first)
        self._share = share
        # For each epoch at which parts begin, in order: loss, and a trial of those who share it.
        self._nodes: dict[int, list[tuple[float, TrialId]]] = {
            epoch: []
            for epoch in sorted({beginning(each, space) for each in self._space.dimensions})
            if epoch > 0
        }
        self._known: set[tuple[int, int]] = set()

    def see(self, entry: Entry, study: StudyView) -> None:
        for trial in study.delivered:
            nodes = self._nodes.get(trial.epoch)
            node = (trial.epoch, trial.origin(trial.epoch))
            if nodes is not None and node not in self._known:
                self._known.add(node)
                insort(nodes, (trial.loss, trial.id))

    def propose(self, number: int, study: StudyView) -> Config | None:
        rng = stream(study.spec.seed, "config", number)
        if number < len(self._first):
            return self._first.config(number, lambda dimension: dimension.at(rng.random()))
        fresh = self._space.config([each.at(rng.random()) for each in self._space.dimensions])
        lot = stream(study.spec.seed, "branch", number)
        reached = [epoch for epoch, nodes in self._nodes.items() if nodes]
        if lot.random() >= self._share or not reached:
            return fresh
        epoch = reached[int(lot.random() * len(reached))]
        nodes = self._nodes[epoch]
        _, trial = nodes[int(lot.random() * -(-len(nodes) // _BEST))]
        config = study.trials[trial].config
        return {
            name: _joined(template, config[name], fresh[name], epoch)
            for name, template in self._template.items()
        }


def _joined(template: Value, old: Value, fresh: Value, epoch: int) -> Value:
    """Return the old value as it is before that epoch, with the fresh one's parts from there on."""
    if isinstance(template, dict) and PIECES in template:
        if not all(type(start) is int for start, _ in template[PIECES]):
            return old
        return {
            PIECES: [
                [start, _in_force(old, start) if start < epoch else late]
                for start, late in fresh[PIECES]
            ]
        }
    if _is_domain(template):
        return old
    if isinstance(template, dict):
        return {
            name: _joined(inner, old[name], fresh[name], epoch) for name, inner in template.items()
        }
    if isinstance(template, list | tuple):
        return [_joined(*each, epoch) for each in zip(template, old, fresh, strict=True)]
    return old


def _in_force(value: Value, epoch: int) -> Value:
    if isinstance(value, dict) and PIECES in value:
        return next(late for start, late in reversed(value[PIECES]) if start <= epoch)
    return value


def _is_domain(value: Value) -> bool:
    return any(dimension.path == ("value",) for dimension in Space({"value": value}).dimensions)
