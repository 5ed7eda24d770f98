"""Replay: the same events must cause the same decisions.

Knows a log and how to compare. Runs no model and no sampler: their answers are events of the log.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from paceline.core.decisions import AnyDecision
from paceline.core.events import LOGIC, AnyEvent, Opened
from paceline.machine.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.core.decisions import Step
    from paceline.machine.decider import Parts


class Difference(Struct, frozen=True):
    """The first decision of a replay that differs from the log."""

    # The number of the entry that differs.
    number: int
    event: AnyEvent
    # None: no further decision.
    logged: AnyDecision | None
    replayed: AnyDecision | None


def replay(steps: Iterable[Step], parts: Parts) -> Difference | None:
    """Decide a log's events again; return None if every decision is the same.

    Reasons and labels are compared only if the log was decided by this version of the logic: a
    reworded reason is not another decision.
    """
    machine = Machine(parts)
    same_logic = True
    for step in steps:
        if isinstance(step.event, Opened):
            same_logic = step.event.logic == LOGIC
        decisions = machine.handle(step.event).decisions
        if decisions == step.decisions:
            continue
        for index, (logged, replayed) in enumerate(zip_longest(step.decisions, decisions)):
            if logged != replayed and (same_logic or _strip(logged) != _strip(replayed)):
                return Difference(step.number + 1 + index, step.event, logged, replayed)
    return None


def _strip(decision: AnyDecision | None) -> AnyDecision | None:
    """Return a decision without its reason and label."""
    if decision is None:
        return None
    return replace(decision, why="", **({"label": ""} if hasattr(decision, "label") else {}))
