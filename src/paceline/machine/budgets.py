"""When a study has what it was for: its target is reached, or its time or slot time is used up.

Knows the sentences that say so. Decides nothing: whoever asks ends the study.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.decisions import EndCause

if TYPE_CHECKING:
    from paceline.machine.groups import Group
    from paceline.machine.records import Trial
    from paceline.machine.state import StudyState


def reached(trial: Trial, view: StudyState | Group) -> str | None:
    """Return how the trial's last reports reach the study's target; None where they do not."""
    spec = view.spec
    target = spec.budget.target
    if target is None or trial.epoch < target.over:
        return None
    recent = (trial.loss,) if target.over == 1 else trial.losses[-target.over :]
    loss = sum(recent) / target.over
    if loss > spec.sign * target.value:
        return None
    mean = f", mean of the last {target.over} reports," if target.over > 1 else ""
    # Whoever is there before having learned anything was never looking for this.
    doubt = "; even the first report is past it: check its sign, and mode" * (
        view.reports == target.over
    )
    return (
        f"trial {trial.id} reached {spec.metric} {spec.sign * loss:.6g}{mean} at epoch "
        f"{trial.epoch}: the target is {target.value:.6g}{doubt}"
    )


def spent(state: StudyState) -> tuple[EndCause, str] | None:
    """Return which time is used up, and the sentence; None while there is some left."""
    deadline = state.deadline_s
    if deadline is not None and state.now >= deadline:
        return EndCause.DEADLINE, f"the deadline of {deadline:g} s has come"
    limit = state.spec.budget.slot_seconds
    # Sums of many floats: what is used up but for a billionth is used up.
    if limit is not None and state.slot_seconds >= limit * (1 - 1e-9):
        return EndCause.SLOT_SECONDS, f"{limit:g} slot-seconds are used up"
    return None
