"""Optuna's study, in which what a trial has come to may be told again and again.

Knows Optuna's ask and its memory. To Optuna a trial has a value when it is finished; here it has
one as soon as it has reported, and another when it has trained on. Knows no log and no space.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

from optuna import logging as optuna_logging
from optuna.pruners import NopPruner
from optuna.storages import InMemoryStorage
from optuna.study import Study, StudyDirection
from optuna.trial import TrialState, create_trial

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence
    from typing import Any

    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, Trial

_NAME = "paceline"


class _Memory(InMemoryStorage):
    """Optuna's own memory, seen through what was told last.

    Below, every trial runs for ever, so that it may still be written to.
    """

    def __init__(self) -> None:
        super().__init__()
        self._told: list[FrozenTrial] = []

    def tell(self, study: int, values: Sequence[float | None]) -> None:
        """Say what each of all trials has come to."""
        self._told = [copy.copy(trial) for trial in super().get_all_trials(study, deepcopy=False)]
        for trial, value in zip(self._told, values, strict=True):
            if value is None:
                continue
            if math.isnan(value):
                trial.state = TrialState.FAIL
            else:
                trial.state, trial.value = TrialState.COMPLETE, value

    def correct(
        self,
        number: int,
        study: int,
        params: dict[str, Any],
        distributions: dict[str, BaseDistribution],
    ) -> None:
        """Say what was in truth trained under this number."""
        trial = copy.copy(self.below(study, number))
        trial.params, trial.distributions = params, distributions
        self._set_trial(trial._trial_id, trial)

    def below(self, study: int, number: int) -> FrozenTrial:
        """Return a trial as it may be written to."""
        return self.get_trial(self.get_trial_id_from_study_id_trial_number(study, number))

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        """Return the trials as they were told last, and new ones as they are."""
        trials = super().get_all_trials(study_id, deepcopy=False)
        trials[: len(self._told)] = self._told
        if states is not None:
            trials = [trial for trial in trials if trial.state in states]
        return copy.deepcopy(trials) if deepcopy else trials

    def get_best_trial(self, study_id: int) -> FrozenTrial:
        """Return the trial with the lowest value told."""
        trials = self.get_all_trials(study_id, states=(TrialState.COMPLETE,))
        if not trials:
            raise ValueError("No trials are completed yet.")
        return min(trials, key=lambda trial: (trial.value, trial.number))


class Retold(Study):
    """A study that is asked, and told anew before each question."""

    def __init__(self) -> None:
        self._memory = _Memory()
        verbosity = optuna_logging.get_verbosity()
        optuna_logging.set_verbosity(optuna_logging.WARNING)  # it tells everybody of a new study
        self._memory.create_new_study([StudyDirection.MINIMIZE], _NAME)
        optuna_logging.set_verbosity(verbosity)
        super().__init__(_NAME, self._memory, pruner=NopPruner())
        # The sampler has said that there is nothing more to try.
        self.over = False

    def stop(self) -> None:
        """Be called by a sampler that has no more."""
        self.over = True

    def retell(
        self, sampler: BaseSampler, values: Sequence[float | None], gone: Sequence[int]
    ) -> None:
        """Let a sampler know what all trials have come to, and which have ended since last time."""
        self.sampler = sampler
        self._memory.tell(self._study_id, values)
        for number in gone:
            value = values[number]
            trial = self._memory.below(self._study_id, number)
            if value is None or math.isnan(value):
                sampler.after_trial(self, trial, TrialState.FAIL, None)
            else:
                sampler.after_trial(self, trial, TrialState.COMPLETE, [value])
        if gone:  # a sampler may have written to them
            self._memory.tell(self._study_id, values)

    def begin(self, given: Mapping[str, Any]) -> Trial:
        """Ask for a trial, some of whose parameters are given."""
        if given:
            self.enqueue_trial(dict(given))
        return self.ask()

    def add(self, params: dict[str, Any], distributions: dict[str, BaseDistribution]) -> None:
        """Take a trial that runs, and that the sampler need not be asked for."""
        trial = create_trial(state=TrialState.RUNNING, params=params, distributions=distributions)
        self._memory.create_new_trial(self._study_id, trial)

    def correct(
        self, number: int, params: dict[str, Any], distributions: dict[str, BaseDistribution]
    ) -> None:
        """Say what was in truth trained under this number."""
        self._memory.correct(number, self._study_id, params, distributions)
