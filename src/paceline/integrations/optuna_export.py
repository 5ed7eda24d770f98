"""Studies of Paceline in Optuna's storages, for its dashboard, plots and importances.

Writes trials through Optuna's public interface. What Optuna has no place for, such as checkpoints
and the log, stays behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import check_distribution_compatibility
from optuna.trial import TrialState, create_trial

from paceline.api.load import load
from paceline.api.results import Result
from paceline.core.errors import SpecError
from paceline.core.space import CHOICES, Space
from paceline.generators.optuna.distributions import describe_dimension, to_distribution, to_plain

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

    from paceline.api.results import TrialResult
    from paceline.core.domains import Domain
    from paceline.core.values import StudySpec, Value

_STATES = {"finished": TrialState.COMPLETE, "failed": TrialState.FAIL}


def export(
    study: Result | str,
    storage: str | BaseStorage | None = None,
    study_name: str | None = None,
    *,
    store: str | None = None,
) -> optuna.Study:
    """Write a study to Optuna's storage, and return it as an Optuna study.

    `study` is a result, or the name of a study in `store`. `storage` is written as with Optuna:
    `sqlite:///optuna.db`; None keeps the copy in memory. A trial's value is the last that it
    reported, or returned; a trial that was stopped or paused is pruned.
    """
    result = study if isinstance(study, Result) else _load(study, store)
    spec = result.log[0].event.spec  # type: ignore[union-attr]
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # Optuna logs every new study
    try:
        copy = optuna.create_study(
            storage=storage,
            study_name=study_name or result.name,
            direction="minimize" if spec.mode == "min" else "maximize",
        )
    except optuna.exceptions.DuplicatedStudyError:
        raise SpecError(
            f"the storage has a study named {study_name or result.name!r} already: give another "
            "study_name=…, or delete that one."
        ) from None
    finally:
        optuna.logging.set_verbosity(verbosity)
    params = _Params(_find_space(spec, result.name))
    copy.add_trials(_convert(trial, params) for trial in result.trials)
    return copy


def _load(name: str, store: str | None) -> Result:
    if store is None:
        raise SpecError(f"export({name!r}, …) needs the study's store: give store=….")
    return load(name, store)


def _find_space(spec: StudySpec, name: str) -> Space | None:
    alone = next((each for each in spec.studies if each.name == name), spec)
    space = alone.generator.params.get("space")
    return Space(space) if space else None


def _convert(trial: TrialResult, params: _Params) -> FrozenTrial:
    values = {at: value for at, value in enumerate(trial.values) if value is not None}
    state = _STATES.get(trial.status, TrialState.PRUNED if values else TrialState.FAIL)
    if trial.status == "finished" and len(trial.values) == 1:
        values = {}  # what the function returned, not a report on the way
    last = trial.values[-1] if trial.values else None
    if state is TrialState.COMPLETE and last is None:
        state = TrialState.FAIL
    used, distributions, rest = params.describe(trial)
    return create_trial(
        state=state,
        value=None if state is TrialState.FAIL else last,
        params=used,
        distributions=distributions,
        user_attrs={**rest, **trial.user_attrs},
        intermediate_values=values,
    )


class _Params:
    """Hyperparameters as Optuna's parameters. A name has one kind of distribution in a study."""

    def __init__(self, space: Space | None) -> None:
        self._space = space
        self._known: dict[str, BaseDistribution] = {}

    def describe(
        self, trial: TrialResult
    ) -> tuple[dict[str, Any], dict[str, BaseDistribution], dict[str, Any]]:
        """Return parameters, their distributions, and what is in neither as an attribute."""
        found = self._list_values(trial)
        if found is None:
            return {}, {}, {"config": trial.config}
        params: dict[str, Any] = {}
        distributions: dict[str, BaseDistribution] = {}
        for name, domain, value in found:
            distribution = to_distribution(domain)
            unique = self._find_name(name, distribution)
            params[unique], distributions[unique] = to_plain(value), distribution
        return params, distributions, {}

    def _list_values(self, trial: TrialResult) -> list[tuple[str, Domain, Value]] | None:
        """Return name, domain and value of each hyperparameter; None if they are not known."""
        if self._space is None:
            domains = trial.domains
            if not domains:
                return None
            return [(name, domains[name], value) for name, value in trial.config.items()]
        dimensions = {each.name: each for each in self._space.dimensions}
        try:
            values = self._space.read(trial.config)
        except SpecError:
            return None  # a forked trial has schedules that the space does not have
        return [
            (
                name,
                describe_dimension(dimensions[name]),
                dimensions[name].arguments[value] if dimensions[name].kind in CHOICES else value,
            )
            for name, value in values.items()
        ]

    def _find_name(self, name: str, distribution: BaseDistribution) -> str:
        """Return the parameter's name, with a number if the name has another distribution."""
        count, unique = 1, name
        while unique in self._known:
            try:
                check_distribution_compatibility(self._known[unique], distribution)
            except ValueError:
                count += 1
                unique = f"{name} ({count})"
            else:
                break
        self._known[unique] = distribution
        return unique
