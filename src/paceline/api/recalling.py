"""What another study found, told to a generator that begins: a warm start.

Knows stores and spaces. The other study may have trained something else: nothing of it is credited
to any trial, and only what can be compared is told, configs of this space with this metric.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.api.studies import folded
from paceline.core.errors import SpecError, unknown
from paceline.core.events import Recalled
from paceline.core.space import Space
from paceline.core.values import Status

if TYPE_CHECKING:
    from paceline.core.ports import Store
    from paceline.core.values import Config, StudySpec


def recalled(store: Store, spec: StudySpec, study: str) -> list[Recalled]:
    """Return what the trials of another study came to, in the order they were opened."""
    others = [name for name in store.studies() if name != spec.name]
    if study not in others:
        raise unknown("study to start from", study, others)
    state, space = folded(store.read(study)), Space(spec.generator.params["space"])
    facts = [
        Recalled(
            at=0.0,
            study=study,
            config=trial.config,
            values=tuple(trial.metric(spec.metric)),
            finished=trial.ended is Status.FINISHED,
        )
        for trial in state.trials
        if spec.metric in trial.metrics and trial.epoch and _within(space, trial.config)
    ]
    if not facts:
        raise SpecError(
            f"warm_start={study!r} gives nothing to learn from: none of its {len(state.trials)} "
            f"trials reported {spec.metric!r} under a config of this study's space."
        )
    return facts


def _within(space: Space, config: Config) -> bool:
    try:
        space.read(config)
    except SpecError:
        return False
    return True
