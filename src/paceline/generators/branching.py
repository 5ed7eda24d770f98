"""Branching: draws configs that share a trained prefix with an existing trial.

Rule: with probability `share` a config copies an existing trial up to an epoch at which a piece of
a schedule starts, and is drawn anew from there on; otherwise all of it is drawn anew. The epoch is
drawn at random from those that a trial has reached, and the trial from the best quarter by loss at
that epoch, where trials that share it count once.

The sharing-aware tuner that Hippo (Shin et al., VLDB 2022) leaves to future work. Pieces of
`piecewise` whose start epochs are fixed can be drawn anew. Without them nothing can branch, and
the configs are those of `random`.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING, Any

from paceline.core.base_part import BasePart
from paceline.core.errors import SpecError
from paceline.core.rng import stream
from paceline.core.space import Space
from paceline.generators.initial import InitialConfigs
from paceline.generators.prefix_order import PIECES, find_start_epoch

if TYPE_CHECKING:
    from paceline.core.decisions import Entry
    from paceline.core.values import Config, TrialId, Value
    from paceline.core.views import StudyView

# One trial in this many at an epoch is good enough to branch from.
_BEST = 4


class Branching(BasePart):
    """The n-th config depends on the study's seed, on n, and on the results of the trials."""

    from_study = ("space",)
    pure = True

    def __init__(
        self,
        *,
        space: dict[str, Any] | None = None,
        share: float = 0.5,
        first: list[dict[str, Any]] | None = None,
    ) -> None:
        if not 0 <= share <= 1:
            raise SpecError(f"branching: share={share:g} is invalid: must be from 0 to 1.")
        self._template = space or {}
        self._space = Space(self._template)
        self._first = InitialConfigs(self._space, first)
        self._share = share
        # By epoch at which pieces start: (loss, trial), sorted, one trial for all that share it.
        self._nodes: dict[int, list[tuple[float, TrialId]]] = {
            epoch: []
            for epoch in sorted(
                {find_start_epoch(each, self._template) for each in self._space.dimensions}
            )
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
            return self._first.make_config(number, lambda dimension: dimension.at(rng.random()))
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
            name: _branch_at(template, config[name], fresh[name], epoch)
            for name, template in self._template.items()
        }


def _branch_at(template: Value, old: Value, fresh: Value, epoch: int) -> Value:
    """Return the old value before an epoch, joined with the fresh value's pieces from it on."""
    if isinstance(template, dict) and PIECES in template:
        if not all(type(start) is int for start, _ in template[PIECES]):
            return old
        return {
            PIECES: [
                [start, _get_value_at(old, start) if start < epoch else late]
                for start, late in fresh[PIECES]
            ]
        }
    if _is_domain(template):
        return old
    if isinstance(template, dict):
        return {
            name: _branch_at(inner, old[name], fresh[name], epoch)
            for name, inner in template.items()
        }
    if isinstance(template, list | tuple):
        return [_branch_at(*each, epoch) for each in zip(template, old, fresh, strict=True)]
    return old


def _get_value_at(value: Value, epoch: int) -> Value:
    if isinstance(value, dict) and PIECES in value:
        return next(late for start, late in reversed(value[PIECES]) if start <= epoch)
    return value


def _is_domain(value: Value) -> bool:
    return any(dimension.path == ("value",) for dimension in Space({"value": value}).dimensions)
