"""What each stage of a trial needs: at least so many slots, or at least such a share of one.

Knows the user's function of the setting, which widths its answers mean, and where a stage ends
because the next epoch needs another width. The answers stand in the trial's Open, so that a fold
never calls the function. Does not know who gets which slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.decisions import Open
from paceline.core.errors import SpecError
from paceline.plan.settings import key, stretches, value_at
from paceline.plan.tree import known_on, saved_on

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.core.decisions import Need, Step
    from paceline.core.ports import Needs
    from paceline.core.values import Config, StudySpec
    from paceline.machine.trial_state import Attempt, Trial

_ALLOWED = "give whole slots, 1 or more, or a share of one, above 0"


class Asked:
    """A function of the setting, asked about every setting of a config."""

    def __init__(self, needs: Needs) -> None:
        self._needs = needs

    def along(self, config: Config, spec: StudySpec) -> tuple[Need, ...]:
        """Return the least width of every stage, each with the last epoch that it holds for."""
        found: list[Need] = []
        start = 0
        for until, _ in stretches(config, spec.epochs):
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
            said = f"{type(error).__name__}: {error}"
            raise SpecError(f"needs failed for the setting {setting}: {said}.") from error
        plain = getattr(need, "item", None)  # a numpy scalar
        need = plain() if callable(plain) else need
        number = type(need) in (int, float) and need > 0
        if not number or (need >= 1 and not float(need).is_integer()):
            raise SpecError(f"needs gave {need!r} for the setting {setting}: {_ALLOWED}.")
        if need >= 1:
            return float(need)
        # As many as may share a slot, and as have room on it beside their like.
        return 1.0 / min(pack, int(1.0 / need + 1e-9))


class Told:
    """What a log says of its own configs: a replay has no function, and needs none."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._told = {
            key(decision.config): decision.needs
            for step in steps
            for decision in step.decisions
            if isinstance(decision, Open)
        }

    def along(self, config: Config, spec: StudySpec) -> tuple[Need, ...]:
        """Return what the log has; nothing for a config it never opened."""
        return self._told.get(key(config), ())


def stage_end(trial: Trial, start: int) -> int:
    """Return the last epoch that a stage from here can train at the width it needs."""
    return next((until for until, _ in trial.needs if until > start), trial.spec.epochs)


def ends_for_width(attempt: Attempt) -> bool:
    """Say whether an attempt ends where it is because the next epoch needs another width."""
    trial = attempt.trial
    return bool(trial.needs) and trial.goal > attempt.epoch == stage_end(trial, attempt.start)


def least_of(trial: Trial, unmeasured: float) -> float:
    """Return the least width for the trial's stage: the one it is in, or else its next.

    What is declared is not measured, but one that ran out of memory gets its slot all the same.
    Undeclared it is what its memory takes.
    """
    if not trial.needs:
        return trial.least or unmeasured
    if trial.attempt is not None:
        start = trial.attempt.start
    else:
        start, _ = saved_on(trial.leaf, known_on(trial.leaf)) or (0, 0)
    return max(trial.least, next((least for until, least in trial.needs if until > start), 0.0))


def beyond(trial: Trial, capacity: int) -> str | None:
    """Return why the trial can never come to its end on the slots there are; None if it can."""
    start = 0
    for until, least in trial.needs:
        if until > trial.epoch and least > capacity > 0:
            return (
                f"it needs {least:g} slots from epoch {start + 1} on, and there are "
                f"{capacity}: give the study more, or needs that ask for fewer"
            )
        start = until
    return None
