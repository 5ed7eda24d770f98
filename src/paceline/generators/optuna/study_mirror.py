"""An Optuna study whose trials may get a new value before every question to the sampler.

Knows Optuna's public storage and study interface. In Optuna a trial gets its value once, when it
finishes; here it has a value from its first report on, and another one after further training. Does
not know the log or the space.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

from optuna import logging as optuna_logging
from optuna.pruners import NopPruner
from optuna.samplers import BaseSampler
from optuna.storages import InMemoryStorage
from optuna.study import Study, StudyDirection
from optuna.trial import TrialState, create_trial

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence
    from typing import Any

    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial, Trial

_NAME = "paceline"


class _MirrorStorage(InMemoryStorage):
    """Optuna's in-memory storage that shows each trial with its newest value.

    In the storage below every trial stays RUNNING, because Optuna refuses to write to a finished
    one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._shown: list[FrozenTrial] = []
        # What each of these was made of.
        self._sources: list[tuple[FrozenTrial, float | None]] = []
        # By number, what was trained where that is not what the sampler drew.
        self._corrections: dict[int, tuple[dict[str, Any], dict[str, BaseDistribution]]] = {}
        # The trial below, and the corrected one made of it.
        self._corrected: dict[int, tuple[FrozenTrial, FrozenTrial]] = {}

    def set_values(self, study_id: int, values: Sequence[float | None]) -> None:
        """Show every trial with its value: None is still running, NaN is failed."""
        below = self._list_below(study_id)
        known = min(len(self._shown), len(below))
        for at, (trial, value) in enumerate(zip(below, values, strict=True)):
            # The storage makes another object of a trial that it writes to.
            if at >= known:
                self._shown.append(_show(trial, value))
            elif self._sources[at][0] is not trial or self._sources[at][1] != value:
                self._shown[at] = _show(trial, value)
        self._sources = list(zip(below, values, strict=True))

    def correct(
        self, number: int, params: dict[str, Any], distributions: dict[str, BaseDistribution]
    ) -> None:
        """Replace the parameters of a trial by those it was trained with."""
        self._corrections[number] = params, distributions
        self._corrected.pop(number, None)

    def _list_below(self, study_id: int) -> list[FrozenTrial]:
        trials = super().get_all_trials(study_id, deepcopy=False)
        for number in self._corrections:
            trials[number] = self._apply_correction(trials[number])
        return trials

    def _apply_correction(self, trial: FrozenTrial) -> FrozenTrial:
        if trial.number not in self._corrections:
            return trial
        below, corrected = self._corrected.get(trial.number, (None, trial))
        if below is not trial:  # the storage makes another object of a trial that it writes to
            corrected = copy.copy(trial)
            corrected.params, corrected.distributions = self._corrections[trial.number]
            self._corrected[trial.number] = trial, corrected
        return corrected

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Return a trial as it may be written to, with the parameters it was trained with."""
        return self._apply_correction(super().get_trial(trial_id))

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        """Return the trials with their newest values, and newer trials as they are."""
        trials = super().get_all_trials(study_id, deepcopy=False)
        count = len(self._shown)
        trials[count:] = [self._apply_correction(trial) for trial in trials[count:]]
        trials[:count] = self._shown
        if states is not None:
            trials = [trial for trial in trials if trial.state in states]
        return copy.deepcopy(trials) if deepcopy else trials

    def get_best_trial(self, study_id: int) -> FrozenTrial:
        """Return the completed trial with the lowest value."""
        trials = self.get_all_trials(study_id, states=(TrialState.COMPLETE,))
        if not trials:
            raise ValueError("No trials are completed yet.")
        return min(trials, key=lambda trial: (trial.value, trial.number))


def _show(trial: FrozenTrial, value: float | None) -> FrozenTrial:
    """Return a trial with its value: None is still running, NaN is failed."""
    shown = copy.copy(trial)
    if value is not None and math.isnan(value):
        shown.state = TrialState.FAIL
    elif value is not None:
        shown.state, shown.value = TrialState.COMPLETE, value
    return shown


class StudyMirror(Study):
    """The study that a sampler sees: all values are set anew before each proposal."""

    def __init__(self) -> None:
        self._mirror = _MirrorStorage()
        verbosity = optuna_logging.get_verbosity()
        optuna_logging.set_verbosity(optuna_logging.WARNING)  # Optuna logs every new study
        self._mirror_id = self._mirror.create_new_study([StudyDirection.MINIMIZE], _NAME)
        optuna_logging.set_verbosity(verbosity)
        super().__init__(_NAME, self._mirror, pruner=NopPruner())
        # Whether the sampler has nothing left to try.
        self.is_exhausted = False

    def stop(self) -> None:
        """Note that the sampler has no more proposals; samplers call this."""
        self.is_exhausted = True

    def update(
        self, sampler: BaseSampler, values: Sequence[float | None], ended: Sequence[int]
    ) -> None:
        """Show a sampler all values, and tell it which trials have ended since the last update."""
        self.sampler = sampler
        self._mirror.set_values(self._mirror_id, values)
        if type(sampler).after_trial is BaseSampler.after_trial:
            return  # it does nothing when a trial has ended
        for number in ended:
            value = values[number]
            trial_id = self._mirror.get_trial_id_from_study_id_trial_number(self._mirror_id, number)
            trial = self._mirror.get_trial(trial_id)
            if value is None or math.isnan(value):
                sampler.after_trial(self, trial, TrialState.FAIL, None)
            else:
                sampler.after_trial(self, trial, TrialState.COMPLETE, [value])
        if ended:  # a sampler may have written attributes to them
            self._mirror.set_values(self._mirror_id, values)

    def ask_with(self, params: Mapping[str, Any]) -> Trial:
        """Ask for a trial with some parameters given."""
        if params:
            self.enqueue_trial(dict(params))
        return self.ask()

    def add_running(
        self, params: dict[str, Any], distributions: dict[str, BaseDistribution]
    ) -> None:
        """Add a running trial without asking the sampler for it."""
        self.add_trial(
            create_trial(state=TrialState.RUNNING, params=params, distributions=distributions)
        )

    def correct(
        self, number: int, params: dict[str, Any], distributions: dict[str, BaseDistribution]
    ) -> None:
        """Replace the parameters of a trial by those it was trained with."""
        self._mirror.correct(number, params, distributions)
