"""What trials share: the nodes of the prefix tree, the trials on each, and what sharing saved.

Reads a log and counts. The JSON of these structs is a contract: `docs/json.md`. Decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from paceline.core.events import Reported
from paceline.core.text import format_config
from paceline.core.values import Config
from paceline.machine.state import StudyState
from paceline.plan.settings import config_key, list_stretches
from paceline.plan.tree import find_node, path_to_root

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.core.decisions import Entry, Step
    from paceline.machine.trial_state import Leaf, TrialState


# Changes of one node that a description lists.
_CHANGES = 3


class Change(Struct, frozen=True, kw_only=True):
    """Values that differ from the epoch before."""

    # The first epoch under them, counted from 1.
    epoch: int
    values: Config


class NodeRow(Struct, frozen=True, kw_only=True):
    """A node: an unbranched run of epochs, and the trials that pass through it."""

    # Counted depth first.
    node: int
    parent: int | None
    # The first and the last epoch, counted from 1.
    first: int
    last: int
    # What differs from the parent's last setting, and then from epoch to epoch.
    changes: list[Change]
    # The trials whose path passes through, whether they have reached it or not.
    trials: list[int]
    # Epochs reported to these trials here, the distinct ones, and those that have been trained.
    epochs_asked: int
    epochs_needed: int
    epochs_known: int


class Sharing(Struct, frozen=True, kw_only=True):
    """What a study's trials share, and what that saved."""

    study: str
    # If False, every trial trains all its epochs itself.
    share: bool
    # What is trained, as name@version, and how many configs were reused from which studies.
    plan: str | None
    adopted: dict[str, int]
    trials: int
    # Epochs reported to trials, the distinct ones, and those that were trained.
    epochs_asked: int
    epochs_needed: int
    epochs_trained: int
    # Of the distinct ones, those that other studies trained.
    epochs_adopted: int
    epochs_saved: int
    # The training time saved, on the clock and in slot time.
    seconds_saved: float
    slot_seconds_saved: float
    # Epochs asked by distinct epochs, the most that sharing can save: so far, and if all trials
    # were trained to their last epoch. None while nothing was asked.
    merge_rate: float | None
    merge_rate_whole: float | None
    nodes: list[NodeRow]


def measure_sharing(steps: Iterable[Step]) -> Sharing:
    """Return what the trials of a log share."""
    state, counter = StudyState(), SharingCounter()
    for step in steps:
        for entry in step.entries:
            state.apply(entry)
            counter.take(entry, state)
    return counter.report(state)


class SharingCounter:
    """Adds up training time and slot time, entry by entry."""

    def __init__(self) -> None:
        self._epochs = 0
        self._seconds = 0.0
        self._slot_seconds = 0.0
        # The width at which an epoch was trained, by its stable name.
        self._widths: dict[tuple[int, int], float] = {}

    def take(self, entry: Entry, state: StudyState) -> None:
        """Count an entry that the state has applied; an epoch trained again counts again."""
        if state.epochs_trained == self._epochs or not isinstance(entry, Reported):
            return
        self._epochs = state.epochs_trained
        attempt = state.attempts[entry.attempt]
        self._seconds += entry.seconds
        self._slot_seconds += entry.seconds * attempt.width
        origin = find_node(attempt.trial.leaf, entry.epoch).origin
        self._widths.setdefault((origin, entry.epoch), attempt.width)

    def report(self, state: StudyState) -> Sharing:
        """Return what the trials share, at the end of the log."""
        nodes = _make_rows(state)
        asked, seconds, slot_seconds = self._add_up(state.trials)
        needed = sum(row.epochs_needed for row in nodes)
        whole = sum(row.last - row.first + 1 for row in nodes)
        return Sharing(
            study=state.spec.name,
            share=state.spec.share,
            plan=None if state.spec.plan is None else str(state.spec.plan),
            adopted=dict(state.reused.studies),
            trials=len(state.trials),
            epochs_asked=asked,
            epochs_needed=needed,
            epochs_trained=state.epochs_trained,
            epochs_adopted=self._count_reused(state.trials) if state.reused.trials else 0,
            epochs_saved=asked - state.epochs_trained,
            seconds_saved=seconds - self._seconds,
            slot_seconds_saved=slot_seconds - self._slot_seconds,
            merge_rate=asked / needed if needed else None,
            merge_rate_whole=len(state.trials) * state.spec.epochs / whole if whole else None,
            nodes=nodes,
        )

    def _count_reused(self, trials: Iterable[TrialState]) -> int:
        """Return the number of distinct epochs that trials saw but this study did not train."""
        seen = {(t.origin(epoch), epoch) for t in trials for epoch in range(1, t.epoch + 1)}
        return len(seen - self._widths.keys())

    def _add_up(self, trials: Iterable[TrialState]) -> tuple[int, float, float]:
        """Return the epochs reported to trials, and their time without sharing."""
        epochs, seconds, slot_seconds = 0, 0.0, 0.0
        for trial in trials:
            for epoch, took in enumerate(trial.seconds, 1):
                width = self._widths.get((trial.origin(epoch), epoch), 1.0)
                epochs += 1
                seconds += took
                slot_seconds += took * width
        return epochs, seconds, slot_seconds


def describe_changes(changes: list[Change]) -> str:
    """Return the changes of a node as text."""
    if not changes:
        return "as before"
    texts = [format_config(changes[0].values)]
    texts += [
        f"{format_config(each.values)} from epoch {each.epoch}" for each in changes[1:_CHANGES]
    ]
    more = len(changes) - _CHANGES
    return ", then ".join([*texts, *([f"{more} more changes"] if more > 0 else [])])


def _make_rows(state: StudyState) -> list[NodeRow]:
    """Return the nodes depth first, those of the earliest trials first."""
    through: dict[Leaf, list[TrialState]] = {}
    for trial in state.trials:
        for node in reversed(path_to_root(trial.leaf)):
            through.setdefault(node, []).append(trial)
    below: dict[Leaf | None, list[Leaf]] = {}
    for node in through:
        below.setdefault(node.parent, []).append(node)
    rows: list[NodeRow] = []
    stack: list[tuple[Leaf, int | None]] = [(root, None) for root in reversed(below.get(None, []))]
    while stack:
        node, parent = stack.pop()
        stack += ((child, len(rows)) for child in reversed(below.get(node, [])))
        rows.append(_make_row(node, through[node], len(rows), parent))
    return rows


def _make_row(node: Leaf, trials: list[TrialState], number: int, parent: int | None) -> NodeRow:
    seen = [max(0, min(trial.epoch, node.end) - node.start) for trial in trials]
    return NodeRow(
        node=number,
        parent=parent,
        first=node.start + 1,
        last=node.end,
        changes=_find_changes(node, trials[0]),
        trials=[trial.id for trial in trials],
        epochs_asked=sum(seen),
        epochs_needed=max(seen),
        epochs_known=len(node.losses),
    )


def _find_changes(node: Leaf, trial: TrialState) -> list[Change]:
    before: Config = {}
    if node.parent is not None:
        before = msgspec.json.decode(node.parent.stretches[-1][1])
    start = node.start
    found = []
    # Without sharing, nodes have no settings of their own.
    for until, encoded in node.stretches or list_stretches(trial.config, node.end):
        # Compared as the tree does, which tells 1 from 1.0.
        setting: Config = msgspec.json.decode(encoded)
        values = {
            name: value
            for name, value in setting.items()
            if name not in before or config_key(before[name]) != config_key(value)
        }
        if values:
            found.append(Change(epoch=start + 1, values=values))
        start, before = until, setting
    return found
