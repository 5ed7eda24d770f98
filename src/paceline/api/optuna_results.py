"""The results of an Optuna study, for the generator of a new study to learn from.

Reads the study through Optuna's public interface, whatever storage it is in. Changes nothing of it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from optuna.trial import TrialState

from paceline.core.errors import SpecError
from paceline.core.events import Recalled
from paceline.core.space import Space
from paceline.generators.optuna.distributions import to_domain
from paceline.plan.settings import canonicalize

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

    from paceline.core.domains import Domain
    from paceline.core.values import Config, StudySpec


def read_optuna_study(study: Study, spec: StudySpec) -> list[Recalled]:
    """Return the results of an Optuna study's complete and pruned trials, in their order."""
    name = study.study_name
    if len(study.directions) > 1:
        raise SpecError(
            f"Optuna study {name!r} has {len(study.directions)} objectives: warm_start needs a "
            "study with one."
        )
    mode = "min" if study.direction.name == "MINIMIZE" else "max"
    if mode != spec.mode:
        raise SpecError(
            f"Optuna study {name!r} has the direction {study.direction.name.lower()}, and this "
            f"study has mode={spec.mode!r}: give mode={mode!r}, or leave warm_start out."
        )
    states = (TrialState.COMPLETE, TrialState.PRUNED)
    trials = study.get_trials(deepcopy=False, states=states)
    space = None if spec.define_by_run else Space(spec.generator.params["space"])
    results = [
        recalled
        for trial in trials
        if (recalled := _read_trial(trial, name, space, spec.epochs)) is not None
    ]
    if not results:
        raise SpecError(
            f"Optuna study {name!r} has nothing to learn from: none of its {len(study.trials)} "
            "trials has a value for a config of this study's space."
        )
    return results


def _read_trial(
    trial: FrozenTrial, study: str, space: Space | None, epochs: int
) -> Recalled | None:
    """Return one trial's result; None if it has no value or is not in the space."""
    values = _list_values(trial, epochs)
    config: Config = canonicalize(trial.params)
    domains: dict[str, Domain] = {}
    for name, distribution in trial.distributions.items():
        domain = to_domain(distribution)
        if domain is not None:
            domains[name] = domain
    if not values or not config:
        return None
    if space is not None:
        try:
            space.read(config)
        except SpecError:
            return None
        domains = {}
    return Recalled(
        at=0.0,
        study=study,
        config=config,
        values=values,
        finished=trial.state is TrialState.COMPLETE,
        domains=domains,
    )


def _list_values(trial: FrozenTrial, epochs: int) -> tuple[float | None, ...]:
    """Return what a trial reported, in the order of its steps, and the value that it returned."""
    steps: list[Any] = [trial.intermediate_values[at] for at in sorted(trial.intermediate_values)]
    if trial.state is TrialState.COMPLETE and (not steps or steps[-1] != trial.value):
        steps = [*steps[: epochs - 1], trial.value]
    return tuple(value if math.isfinite(value) else None for value in steps[:epochs])
