"""What trials have in common: the nodes of the plan, who shares them, and what that saved.

Reads a log and counts. The JSON of its structs is a contract: `docs/json.md`. Decides nothing.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from paceline.analysis.story import written
from paceline.core.events import Reported
from paceline.core.values import Config
from paceline.machine.state import StudyState
from paceline.plan.settings import key, stretches
from paceline.plan.tree import node_of, way

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.core.decisions import Entry, Step
    from paceline.machine.trial_state import Leaf, Trial


# Changes of one node that are told.
_CHANGES = 3


class Change(Struct, frozen=True, kw_only=True):
    """Values that are others than in the epoch before."""

    # The first epoch under them, counted from 1.
    epoch: int
    values: Config


class NodeRow(Struct, frozen=True, kw_only=True):
    """An unbranched run of epochs, and whose it is."""

    # By the order in which a reader goes down the tree.
    node: int
    parent: int | None
    # The first and the last epoch, counted from 1.
    first: int
    last: int
    # What differs from the parent's last setting, and then from epoch to epoch.
    changes: list[Change]
    # Those whose path goes through here, whether they have come so far or not.
    trials: list[int]
    # Epochs that these have seen here, how many different ones, and how many have been trained.
    epochs_asked: int
    epochs_needed: int
    epochs_known: int


class Sharing(Struct, frozen=True, kw_only=True):
    """What a study's trials have in common, and what was saved by it."""

    study: str
    # False: every trial trains alone, whatever it has in common with others.
    share: bool
    # What is trained, as name@version, and how many configs were taken over from which studies.
    plan: str | None
    adopted: dict[str, int]
    trials: int
    # Epochs that trials have seen; how many different ones these are; how many were trained.
    epochs_asked: int
    epochs_needed: int
    epochs_trained: int
    # Of the different ones, those that other studies trained.
    epochs_adopted: int
    epochs_saved: int
    # The same for time in training, on the clock of one attempt and on slots.
    seconds_saved: float
    slot_seconds_saved: float
    # How many times as much is asked for as is needed, which no scheduler can beat: so far, and if
    # all trials were trained to their last epoch. None: nothing was asked for.
    merge_rate: float | None
    merge_rate_whole: float | None
    nodes: list[NodeRow]


def sharing_of(steps: Iterable[Step]) -> Sharing:
    """Return what the trials of a log have in common."""
    state, meter = StudyState(), Meter()
    for step in steps:
        for entry in step.entries:
            state.apply(entry)
            meter.take(entry, state)
    return meter.sharing(state)


class Meter:
    """What training took, and at which width: told every entry, after the state has taken it."""

    def __init__(self) -> None:
        self._epochs = 0
        self._seconds = 0.0
        self._slot_seconds = 0.0
        # The width of an epoch, by the name it has for ever.
        self._widths: dict[tuple[int, int], float] = {}

    def take(self, entry: Entry, state: StudyState) -> None:
        """Note what an epoch took; one that was trained again counts again."""
        if state.epochs_trained == self._epochs or not isinstance(entry, Reported):
            return
        self._epochs = state.epochs_trained
        attempt = state.attempts[entry.attempt]
        self._seconds += entry.seconds
        self._slot_seconds += entry.seconds * attempt.width
        birth = node_of(attempt.trial.leaf, entry.epoch).birth
        self._widths.setdefault((birth, entry.epoch), attempt.width)

    def sharing(self, state: StudyState) -> Sharing:
        """Return what the trials have in common, now that the log is read."""
        nodes = _rows(state)
        asked, seconds, slot_seconds = self._asked(state.trials)
        needed = sum(row.epochs_needed for row in nodes)
        whole = sum(row.last - row.first + 1 for row in nodes)
        return Sharing(
            study=state.spec.name,
            share=state.spec.share,
            plan=None if state.spec.plan is None else str(state.spec.plan),
            adopted=dict(state.adopted.studies),
            trials=len(state.trials),
            epochs_asked=asked,
            epochs_needed=needed,
            epochs_trained=state.epochs_trained,
            epochs_adopted=self._foreign(state.trials) if state.adopted.trials else 0,
            epochs_saved=asked - state.epochs_trained,
            seconds_saved=seconds - self._seconds,
            slot_seconds_saved=slot_seconds - self._slot_seconds,
            merge_rate=asked / needed if needed else None,
            merge_rate_whole=len(state.trials) * state.spec.epochs / whole if whole else None,
            nodes=nodes,
        )

    def _foreign(self, trials: Iterable[Trial]) -> int:
        """Return how many different epochs trials have seen that nobody trained here."""
        seen = {(t.origin(epoch), epoch) for t in trials for epoch in range(1, t.epoch + 1)}
        return len(seen - self._widths.keys())

    def _asked(self, trials: Iterable[Trial]) -> tuple[int, float, float]:
        """Return the epochs that trials have seen, and what each would have taken alone."""
        epochs, seconds, slot_seconds = 0, 0.0, 0.0
        for trial in trials:
            for epoch, took in enumerate(trial.seconds, 1):
                width = self._widths.get((trial.origin(epoch), epoch), 1.0)
                epochs += 1
                seconds += took
                slot_seconds += took * width
        return epochs, seconds, slot_seconds


def settings_said(changes: list[Change]) -> str:
    """Return what is different on a node, in words."""
    if not changes:
        return "as before"
    told = [written(changes[0].values)]
    told += [f"{written(each.values)} from epoch {each.epoch}" for each in changes[1:_CHANGES]]
    more = len(changes) - _CHANGES
    return ", then ".join([*told, *([f"{more} changes more"] if more > 0 else [])])


def trials_said(trials: list[int]) -> str:
    """Return the numbers, runs of them in short.

    >>> trials_said([0, 1, 2, 5]), trials_said([3])
    ('trials 0-2, 5', 'trial 3')
    """
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(trials), key=lambda each: each[1] - each[0])
    ]
    told = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"trial {told}" if len(trials) == 1 else f"trials {told}"


def _rows(state: StudyState) -> list[NodeRow]:
    """Return the nodes depth first, those of the earliest trials first."""
    through: dict[Leaf, list[Trial]] = {}
    for trial in state.trials:
        for node in reversed(way(trial.leaf)):
            through.setdefault(node, []).append(trial)
    below: dict[Leaf | None, list[Leaf]] = {}
    for node in through:
        below.setdefault(node.parent, []).append(node)
    rows: list[NodeRow] = []
    stack: list[tuple[Leaf, int | None]] = [(root, None) for root in reversed(below.get(None, []))]
    while stack:
        node, parent = stack.pop()
        stack += ((child, len(rows)) for child in reversed(below.get(node, [])))
        rows.append(_row(node, through[node], len(rows), parent))
    return rows


def _row(node: Leaf, trials: list[Trial], number: int, parent: int | None) -> NodeRow:
    seen = [max(0, min(trial.epoch, node.end) - node.start) for trial in trials]
    return NodeRow(
        node=number,
        parent=parent,
        first=node.start + 1,
        last=node.end,
        changes=_changes(node, trials[0]),
        trials=[trial.id for trial in trials],
        epochs_asked=sum(seen),
        epochs_needed=max(seen),
        epochs_known=len(node.losses),
    )


def _changes(node: Leaf, trial: Trial) -> list[Change]:
    before: Config = {}
    if node.parent is not None:
        before = msgspec.json.decode(node.parent.stretches[-1][1])
    start = node.start
    found = []
    # Where nothing is shared, nodes do not know their settings.
    for until, encoded in node.stretches or stretches(trial.config, node.end):
        # Compared as the tree compares them: 1 is not 1.0 there.
        setting: Config = msgspec.json.decode(encoded)
        values = {
            name: value
            for name, value in setting.items()
            if name not in before or key(before[name]) != key(value)
        }
        if values:
            found.append(Change(epoch=start + 1, values=values))
        start, before = until, setting
    return found
