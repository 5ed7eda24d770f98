"""How far a running study is: the share that is done, of what, and the time that is left.

Knows the limits of a study. Draws nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from paceline.core.text import format_count, format_duration
from paceline.core.values import OPEN_ENDED, Status

if TYPE_CHECKING:
    from paceline.machine.state import StudyState

# Below this share the time that is left cannot be estimated.
_LEAST_SHARE = 0.05


class StudyProgress(NamedTuple):
    """The share of a study that is done, from 0 to 1, and what it is a share of."""

    share: float
    # "the deadline", "40 trials"; empty: nothing limits the study.
    whole: str


def measure_progress(state: StudyState, now: float | None = None) -> StudyProgress:
    """Return how far a study is towards the limit that is nearest to ending it.

    `now` is the time on the study's clock if it is later than the last event.
    """
    now = state.now if now is None else now
    found = [StudyProgress(0.0, "")]
    budget = state.spec.budget
    if state.deadline_s is not None:
        found.append(StudyProgress(now / max(state.deadline_s, 1e-9), "the deadline"))
    if budget.slot_seconds is not None:
        found.append(StudyProgress(state.slot_seconds / budget.slot_seconds, "the slot time"))
    trials = count_planned_trials(state)
    if trials:
        whole = format_count(trials, "trial")
        found.append(StudyProgress(_count_done(state) / trials, whole))
        if state.spec.epochs < OPEN_ENDED:
            epochs = trials * state.spec.epochs
            share = state.epochs_trained / epochs
            found.append(StudyProgress(share, format_count(epochs, "epoch")))
    share, whole = max(found, key=lambda each: each.share)
    # At the start all shares are 0: name the limit all the same.
    whole = whole or next((each.whole for each in found if each.whole), "")
    return StudyProgress(min(share, 1.0), whole)


def _count_done(state: StudyState) -> int:
    """Return how many trials need no further training, as far as is known."""
    done = [Status.FINISHED, Status.STOPPED, Status.FAILED]
    budget = state.spec.budget
    # With time left, paused trials go on; else most of them stay where they are.
    if state.deadline_s is None and budget.slot_seconds is None and budget.target is None:
        done.append(Status.PAUSED)
    return sum(trial.status in done for trial in state.trials)


def count_planned_trials(state: StudyState) -> int:
    """Return how many trials the study may open; 0 if that is not limited."""
    spec = state.spec
    groups = [group.trials for group in spec.groups]
    if groups and all(groups):
        return sum(count or 0 for count in groups)
    return spec.budget.trials or len(spec.generator.params.get("configs", ()))


def describe_time_left(state: StudyState, now: float) -> str:
    """Return the time that is left in words; empty if it cannot be told."""
    if state.end is not None:
        return ""
    if state.return_s is not None:
        return f"{_round(max(state.return_s - now, 0.0))} left"
    share = measure_progress(state, now).share
    # A paused trial may go on, so the number of ended trials says little.
    if share < _LEAST_SHARE or any(t.status is Status.PAUSED for t in state.trials):
        return ""
    return f"about {_round(now * (1.0 - share) / share)} left"


def _round(seconds: float) -> str:
    return format_duration(float(round(seconds)) if seconds >= 10 else round(seconds, 1))
