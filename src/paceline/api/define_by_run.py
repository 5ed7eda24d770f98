"""Studies without a space, whose training function asks for its hyperparameters while it runs.

Knows which options such a study has, and which need a space. What the function asks for, the worker
knows (`worker.suggest`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.api.registry import find_class, list_parts
from paceline.core.errors import SpecError, warn_user
from paceline.core.values import Part
from paceline.machine.machine import NO_PARAMS
from paceline.worker.function import FunctionKind, classify

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from paceline.api.results import Result

# Stops what is worse than the median, as Optuna does by default. It neither pauses trials, whose
# functions mostly keep no state, nor needs to know their last epoch.
OPEN_ENDED_POLICY = Part("median", {"grace": 0, "least": 5})


def can_define_by_run(train: Callable[..., Any]) -> bool:
    """Say whether a function can ask for its hyperparameters: it is given the trial."""
    return classify(train) is FunctionKind.TRIAL


def refuse_without_space(share: bool | None, *, has_needs: bool) -> None:
    """Raise SpecError for options that need a space."""
    if share:
        raise SpecError(
            "share=True needs a space: what trials have in common must be known before they "
            "start. Give space={…}, or leave share out."
        )
    if has_needs:
        raise SpecError(
            "needs=… needs a space: the slots of a trial depend on hyperparameters that must be "
            "known before it starts. Give space={…}, or leave needs out."
        )


def check_generator(generator: Part) -> None:
    """Raise SpecError for a generator that needs a space."""
    if not getattr(find_class("generator", generator.name), "define_by_run", False):
        able = [
            name
            for name in list_parts("generator")
            if getattr(find_class("generator", name), "define_by_run", False)
        ]
        raise SpecError(
            f"generator {generator.name!r} needs a space: give space={{…}}, or choose one of "
            f"{', '.join(able)}, which learn what the function asks for by trial.suggest_float(…)."
        )


def warn_of_no_params(result: Result) -> None:
    """Warn if no trial of such a study has asked for a hyperparameter, so that it ended early."""
    trials = result.trials
    complete = any(trial.status in ("finished", "stopped") for trial in trials)
    if complete and not any(trial.domains for trial in trials):
        warn_user(f"study {result.name!r} has ended early: {NO_PARAMS}.")
