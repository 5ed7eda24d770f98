"""Replay: the same facts must cause the same decisions.

Knows a log and how to compare. Runs no model and no sampler: their answers are facts of the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.core.decisions import AnyDecision
from paceline.core.events import AnyEvent
from paceline.machine.machine import Brains, Machine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.core.decisions import Step


class Difference(Struct, frozen=True):
    """The first place where a replay decided otherwise than the log."""

    # The number of the entry that differs.
    number: int
    event: AnyEvent
    # None: nothing was decided any more.
    logged: AnyDecision | None
    replayed: AnyDecision | None


def replay(steps: Iterable[Step], brains: Brains) -> Difference | None:
    """Decide a log's events again; None if every decision is the same."""
    machine = Machine(brains)
    for step in steps:
        again = machine.handle(step.event)
        if again.decisions != step.decisions:
            return _first(step, again)
    return None


def _first(step: Step, again: Step) -> Difference:
    longest = max(len(step.decisions), len(again.decisions))
    for index in range(longest):
        logged = step.decisions[index] if index < len(step.decisions) else None
        replayed = again.decisions[index] if index < len(again.decisions) else None
        if logged != replayed:
            return Difference(step.number + 1 + index, step.event, logged, replayed)
    raise AssertionError  # pragma: no cover - called only where they differ
