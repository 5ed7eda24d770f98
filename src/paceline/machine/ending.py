"""How a study ends, and how one of several that are driven as one does, while the others go on.

Knows what the last decisions are and why nothing was left to run. Does not know what is watched:
whoever finds that a study is over says so here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from paceline.core import decisions as d
from paceline.machine.groups import Group

if TYPE_CHECKING:
    from paceline.core.decisions import AnyDecision
    from paceline.machine.state import StudyState


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
    for trial in view.trials:
        if trial.alive:
            why = f"its study {view.spec.name!r} has ended: {cause.value}"
            machine.decide(d.Stop(trial=trial.id, why=why))
    ends = [group.end for group in machine.state.groups or ()]
    causes = {each.cause for each in ends if each is not None}
    if None not in ends:
        # What ended all of them; where they ended differently, nothing is left to run.
        last = causes.pop() if len(causes) == 1 else d.EndCause.QUIET
        machine.end(d.End(cause=last, why=f"all {len(ends)} studies have ended"))


def why_quiet(view: StudyState | Group, state: StudyState) -> tuple[d.EndCause, str]:
    """Return what ends a study in which nothing is left to run, and the sentence."""
    trouble, opened = state.questions.trouble.get(number_of(view)), len(view.trials)
    if not trouble:
        return d.EndCause.QUIET, f"nothing is left to run: {opened} trials were opened"
    # What was trained is worth having; where nothing was, there is nothing but the trouble.
    cause = d.EndCause.QUIET if view.reports else d.EndCause.FAILED
    return cause, f"no more trials after {opened}: {trouble}"
