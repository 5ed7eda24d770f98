"""Failed trials of a study: the commonest error, and whether the study has failed as a whole.

Reads the trials of a study. Decides nothing: the decider ends studies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.values import Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.core.values import TrialId
    from paceline.machine.failures import Failure
    from paceline.machine.groups import GroupState
    from paceline.machine.trial_state import TrialState


def find_commonest(trials: Iterable[TrialState]) -> tuple[Failure, list[TrialId]] | None:
    """Return the failure that most of these trials have, the first of its kind, and those trials.

    None: none of them has failed.
    """
    kinds: dict[tuple[str, str], list[Failure]] = {}
    for trial in trials:
        if trial.failure is not None:
            kinds.setdefault(trial.failure.kind, []).append(trial.failure)
    if not kinds:
        return None
    most = max(kinds.values(), key=len)
    return most[0], [failure.trial for failure in most]


def list_failed(group: GroupState) -> list[TrialState]:
    """Return the trials that were given up."""
    return [trial for trial in group.trials if trial.ended is Status.FAILED]


def explain_failed_study(group: GroupState) -> str | None:
    """Return why a study that ends now has failed; None: it has not.

    It has if all its trials failed, or if some failed and none has reported a number.
    """
    failed, opened = list_failed(group), len(group.trials)
    if not failed or (len(failed) < opened and group.best is not None):
        return None
    if len(failed) < opened:
        text = f"no trial reported a number, and {len(failed)} of {opened} trials failed"
    else:
        text = "its only trial failed" if opened == 1 else f"all {opened} trials failed"
    return text + describe_commonest(failed)


def describe_commonest(failed: list[TrialState]) -> str:
    """Return the commonest error of failed trials as the end of a sentence."""
    found = find_commonest(failed)
    if found is None:
        return ""
    failure, trials = found
    share = f", {len(trials)} of them" if 1 <= len(trials) < len(failed) else ""
    return f"{share}: {failure.headline}"
