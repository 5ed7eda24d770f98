"""The checkpoints of a log: their trials, why each is kept, and the cost of training it again.

Reads a log and counts. The JSON of the struct is a contract: `docs/json.md`. Reads no disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.core.decisions import Launch
from paceline.core.events import Adopted, Saved
from paceline.machine.checkpoint_gc import (
    KeepReason,
    is_branch,
    list_needed,
    may_get_trials,
    may_share_prefixes,
    price_in_slot_seconds,
)
from paceline.machine.state import StudyState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.core.decisions import Step
    from paceline.machine.checkpoints import CheckpointName


class CheckpointRow(Struct, frozen=True, kw_only=True):
    """A checkpoint, and why it is kept."""

    # Its name: the attempt that saved it, negative if that was in another study, and the epochs of
    # training in it.
    attempt: int
    epoch: int
    # The trials that need it; if none does, the trial whose path has it.
    trials: list[int]
    bytes: int
    # Time on the study's clock since it was saved, or an attempt last started from it.
    idle_s: float
    # The cost of training it again from the checkpoint before it.
    slot_seconds: float
    needed: bool
    why: str


def list_checkpoints(steps: Iterable[Step]) -> tuple[StudyState, list[CheckpointRow]]:
    """Return the state at the end of a log, and its checkpoints by trial and epoch."""
    state = StudyState()
    used: dict[CheckpointName, float] = {}
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
    found: dict[CheckpointName, dict[KeepReason, list[int]]] = {}
    for name, need, trial in list_needed(state, state.trials, over=over):
        found.setdefault(name, {}).setdefault(need, []).append(trial.id)
    more, repeatable = not over and may_share_prefixes(state), not over and may_get_trials(state)
    for name, file in state.checkpoints.records.items():
        if more and is_branch(state, file.trial, name[1]):
            found.setdefault(name, {})[KeepReason.BRANCH] = [file.trial.id]
        if repeatable and name[0] < 0:
            found.setdefault(name, {})[KeepReason.REPEAT] = [file.trial.id]
    rows = [
        CheckpointRow(
            attempt=name[0],
            epoch=name[1],
            trials=_trials(found.get(name, {}), file.trial.id),
            bytes=file.bytes,
            idle_s=state.now - used[name],
            slot_seconds=price_in_slot_seconds(state, name),
            needed=name in found,
            why="; ".join(_why(need, ids) for need, ids in found.get(name, {}).items())
            or "not needed",
        )
        for name, file in state.checkpoints.records.items()
    ]
    rows.sort(key=lambda row: (row.trials, row.epoch, row.attempt))
    return state, rows


def _trials(found: dict[KeepReason, list[int]], own: int) -> list[int]:
    # Trials of other studies have negative numbers, which mean nothing here.
    ids = {number for numbers in found.values() for number in numbers} or {own}
    return sorted(number for number in ids if number >= 0)


def _why(need: KeepReason, trials: list[int]) -> str:
    named = ", ".join(map(str, sorted(trials)))
    several = len(trials) > 1
    if need is KeepReason.GO_ON:
        return f"trials {named} go on from it" if several else f"trial {named} goes on from it"
    if need is KeepReason.RESULT:
        return f"the result of trials {named}" if several else f"the result of trial {named}"
    return str(need)
