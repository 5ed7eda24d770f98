"""How a study ends, and how one of several that are driven as one does, while the others go on.

Knows what the last decisions are and why nothing was left to run. Does not know what is watched:
whoever finds that a study is over says so here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from paceline.core import decisions as d
from paceline.core.decisions import EndCause
from paceline.machine.groups import Group

if TYPE_CHECKING:
    from paceline.core.decisions import AnyDecision
    from paceline.machine.state import StudyState
    from paceline.machine.trial_state import Trial


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


class Ender(Protocol):
    """What it takes to end a study."""

    @property
    def state(self) -> StudyState: ...
    def decide(self, decision: AnyDecision) -> None: ...
    def end(self, decision: d.End) -> None: ...


def number_of(view: StudyState | Group) -> int:
    """Return the number of a group; 0 for a study that stands alone."""
    return view.number if isinstance(view, Group) else 0


def end(machine: Ender, view: StudyState | Group, cause: d.EndCause, why: str) -> None:
    """End a study; of several, that one alone, and all with the last."""
    if not isinstance(view, Group):
        machine.end(d.End(cause=cause, why=why))
        return
    machine.decide(d.Leave(group=view.number, cause=cause, why=why))
    ends = [group.end for group in machine.state.groups or ()]
    if None not in ends:
        # What ended all of them; where they ended differently, nothing is left to run.
        causes = {each.cause for each in ends if each is not None}
        last = causes.pop() if len(causes) == 1 else d.EndCause.QUIET
        machine.end(d.End(cause=last, why=f"all {len(ends)} studies have ended"))
        return
    for trial in view.trials:
        if trial.alive:
            why = f"its study {view.spec.name!r} has ended: {cause.value}"
            machine.decide(d.Stop(trial=trial.id, why=why))


def why_quiet(view: StudyState | Group, state: StudyState) -> tuple[d.EndCause, str]:
    """Return what ends a study in which nothing is left to run, and the sentence."""
    trouble, opened = state.questions.trouble.get(number_of(view)), len(view.trials)
    if not trouble:
        return d.EndCause.QUIET, f"nothing is left to run: {opened} trials were opened"
    # What was trained is worth having; where nothing was, there is nothing but the trouble.
    cause = d.EndCause.QUIET if view.reports else d.EndCause.FAILED
    return cause, f"no more trials after {opened}: {trouble}"
