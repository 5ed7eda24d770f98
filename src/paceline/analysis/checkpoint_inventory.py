"""The checkpoints a log names: whose they are, why each is kept, what it would cost to do without.

Reads a log and counts. The JSON of its structs is a contract: `docs/json.md`. Looks at no disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.core.decisions import Launch
from paceline.core.events import Adopted, Saved
from paceline.machine.checkpoint_gc import (
    Need,
    branches_at,
    may_begin_alike,
    may_come,
    needs,
    slot_seconds,
)
from paceline.machine.state import StudyState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.core.decisions import Step
    from paceline.machine.checkpoints import Name


class CheckpointRow(Struct, frozen=True, kw_only=True):
    """A checkpoint, and what it is good for."""

    # Its name: the attempt that saved it, below zero where that was another study's, and the
    # epochs of training in it.
    attempt: int
    epoch: int
    # Who needs it; where nobody does, on whose path it lies.
    trials: list[int]
    bytes: int
    # Time on the study's clock since it was saved, or last started from.
    idle_s: float
    # What it takes to train it again from the one before it.
    slot_seconds: float
    needed: bool
    why: str


def inventory_of(steps: Iterable[Step]) -> tuple[StudyState, list[CheckpointRow]]:
    """Return what a log leads to, and the checkpoints there are then, by trial and epoch."""
    state = StudyState()
    used: dict[Name, float] = {}
    for step in steps:
        for entry in step.entries:
            state.apply(entry)
            if isinstance(entry, Saved):
                used[entry.attempt, entry.epoch] = state.now
            elif isinstance(entry, Adopted):
                used.update(((entry.attempt, save.epoch), state.now) for save in entry.saves)
            elif isinstance(entry, Launch) and entry.source is not None:
                used[entry.source, entry.start] = state.now
    over = state.end is not None
    found: dict[Name, dict[Need, list[int]]] = {}
    for name, need, trial in needs(state, state.trials, over=over):
        found.setdefault(name, {}).setdefault(need, []).append(trial.id)
    more, repeatable = not over and may_begin_alike(state), not over and may_come(state)
    for name, file in state.files.files.items():
        if more and branches_at(file.trial, name[1]):
            found.setdefault(name, {})[Need.BRANCH] = [file.trial.id]
        if repeatable and name[0] < 0:
            found.setdefault(name, {})[Need.REPEAT] = [file.trial.id]
    rows = [
        CheckpointRow(
            attempt=name[0],
            epoch=name[1],
            trials=_trials(found.get(name, {}), file.trial.id),
            bytes=file.bytes,
            idle_s=state.now - used[name],
            slot_seconds=slot_seconds(state, name),
            needed=name in found,
            why="; ".join(_why(need, ids) for need, ids in found.get(name, {}).items())
            or "nobody needs it",
        )
        for name, file in state.files.files.items()
    ]
    rows.sort(key=lambda row: (row.trials, row.epoch, row.attempt))
    return state, rows


def _trials(found: dict[Need, list[int]], own: int) -> list[int]:
    # Trials of other studies have numbers below zero, which mean nothing to anybody else.
    ids = {number for numbers in found.values() for number in numbers} or {own}
    return sorted(number for number in ids if number >= 0)


def _why(need: Need, trials: list[int]) -> str:
    named = ", ".join(map(str, sorted(trials)))
    several = len(trials) > 1
    if need is Need.GO_ON:
        return f"trials {named} go on from it" if several else f"trial {named} goes on from it"
    if need is Need.RESULT:
        return f"the result of trials {named}" if several else f"the result of trial {named}"
    return str(need)
