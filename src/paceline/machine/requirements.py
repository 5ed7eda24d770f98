"""The width that each stage of a trial needs: a number of slots, or a share of one.

Knows the user's function of the setting, the widths its answers stand for, and where a stage ends
because the next epoch needs another width. The answers are written into the trial's Open, so that a
fold never calls the function. Does not know which slots a trial gets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.decisions import Open
from paceline.core.errors import SpecError
from paceline.plan.settings import config_key, list_stretches, value_at
from paceline.plan.tree import find_checkpoint, last_known_epoch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.core.decisions import StageWidth, Step
    from paceline.core.ports import Needs
    from paceline.core.values import Config, StudySpec
    from paceline.machine.trial_state import AttemptState, TrialState

_ALLOWED = "must be a whole number of slots, or a share of one between 0 and 1"


class NeedsFunction:
    """The user's function, called for every setting of a config."""

    def __init__(self, needs: Needs) -> None:
        self._needs = needs

    def list_widths(self, config: Config, spec: StudySpec) -> tuple[StageWidth, ...]:
        """Return the least width of each stage, with its last epoch."""
        found: list[StageWidth] = []
        start = 0
        for until, _ in list_stretches(config, spec.epochs):
            setting = {name: value_at(value, start) for name, value in config.items()}
            least = self._least(setting, spec.pack)
            if found and found[-1][1] == least:
                found.pop()
            found.append((until, least))
            start = until
        return tuple(found)

    def _least(self, setting: Config, pack: int) -> float:
        try:
            need = self._needs(setting)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise SpecError(f"needs failed for the setting {setting}: {text}.") from error
        plain = getattr(need, "item", None)  # a numpy scalar
        need = plain() if callable(plain) else need
        number = type(need) in (int, float) and need > 0
        if not number or (need >= 1 and not float(need).is_integer()):
            raise SpecError(f"needs returned {need!r} for the setting {setting}: {_ALLOWED}.")
        if need >= 1:
            return float(need)
        # The most trials that may share a slot and have room on it.
        return 1.0 / min(pack, int(1.0 / need + 1e-9))


class RecordedNeeds:
    """The widths written in a log, for a replay: it has no function, and needs none."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._widths = {
            config_key(decision.config): decision.needs
            for step in steps
            for decision in step.decisions
            if isinstance(decision, Open)
        }

    def list_widths(self, config: Config, spec: StudySpec) -> tuple[StageWidth, ...]:
        """Return the widths of a config in the log; empty if it was never opened."""
        return self._widths.get(config_key(config), ())


def extend_needs(needs: tuple[StageWidth, ...], epochs: int) -> tuple[StageWidth, ...]:
    """Return the widths of a trial's stages up to this last epoch: the last one holds on."""
    if not needs or needs[-1][0] >= epochs:
        return needs
    return (*needs[:-1], (epochs, needs[-1][1]))


def find_stage_end(trial: TrialState, start: int) -> int:
    """Return the last epoch of the stage that starts here."""
    if not trial.needs:
        return trial.spec.epochs
    return next((until for until, _ in trial.needs if until > start), trial.spec.epochs)


def is_ending_for_width(attempt: AttemptState) -> bool:
    """Say whether an attempt ends at its epoch because the next one needs another width."""
    trial = attempt.trial
    return bool(trial.needs) and trial.goal > attempt.epoch == find_stage_end(
        trial, attempt.stage_start
    )


def find_declared_width(trial: TrialState, start: int) -> float:
    """Return the width declared for the stage that starts here; 0 if none was."""
    return next((least for until, least in trial.needs if until > start), 0.0)


def find_least_width(
    trial: TrialState, unmeasured: float, ending: AttemptState | None = None
) -> float:
    """Return the least width for the trial's present or next stage; `ending` counts as ended.

    A declared width is not measured, but a trial that ran out of memory gets a whole slot anyway.
    Without a declaration, the measured memory decides.
    """
    if not trial.needs:
        return trial.least_width or unmeasured
    if ending is not None and ending.trial is trial:
        start = ending.epoch
    elif trial.attempt is not None:
        start = trial.attempt.stage_start
    else:
        start, _ = find_checkpoint(trial.leaf, last_known_epoch(trial.leaf)) or (0, 0)
    return max(
        trial.least_width, next((least for until, least in trial.needs if until > start), 0.0)
    )


def explain_unmet_needs(trial: TrialState, capacity: int) -> str | None:
    """Return why the trial can never finish with this many slots; None if it can."""
    start = 0
    for until, least in trial.needs:
        if until > trial.epoch and least > capacity > 0:
            verb = "is" if capacity == 1 else "are"
            return (
                f"it needs {least:g} slots from epoch {start + 1} on, and there {verb} "
                f"{capacity}: give the study more, or needs that ask for fewer"
            )
        start = until
    return None
