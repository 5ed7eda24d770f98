"""Replay: the same events must cause the same decisions.

Knows a log and how to compare. Runs no model and no sampler: their answers are events of the log.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from paceline.core.decisions import AnyDecision
from paceline.core.events import LOGIC, AnyEvent, Extended, Opened
from paceline.core.extension import split_log
from paceline.machine.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from paceline.core.decisions import Step
    from paceline.core.values import StudySpec
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
    return _decide_again(Machine(parts), steps)


def replay_extended(log: Sequence[Step], build: Callable[[StudySpec], Parts]) -> Difference | None:
    """Decide the log of an extended study again, each piece with the spec of its time.

    The steps before a piece are folded with its spec, as its driver did, and not compared.
    """
    for spec, before, steps in split_log(log):
        machine = Machine(build(spec))
        for step in before:
            machine.fold(step)
        difference = _decide_again(machine, steps)
        if difference is not None:
            return difference
    return None


def _decide_again(machine: Machine, steps: Iterable[Step]) -> Difference | None:
    same_logic = True
    for step in steps:
        if isinstance(step.event, Opened | Extended):
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
