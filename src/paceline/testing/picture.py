"""A state as plain values, so that two can be compared and a difference can be read.

Knows every field of the state. Two states with equal pictures have taken equal histories.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.plan.tree import way

if TYPE_CHECKING:
    from paceline.machine.groups import Group
    from paceline.machine.records import Attempt, Leaf, Trial
    from paceline.machine.state import StudyState


def picture(state: StudyState) -> dict[str, Any]:
    """Return the whole state as dicts, lists and numbers."""
    plain = {
        name: value
        for name, value in vars(state).items()
        if name not in (*_PICTURED, *_PARTS, *_PASSING)
    }
    plain["best"] = None if state.best is None else state.best.id
    return {
        **plain,
        "trials": [_trial(trial) for trial in state.trials],
        "attempts": [_attempt(attempt) for attempt in state.attempts.values()],
        **{name: dict(vars(getattr(state, name))) for name in _PARTS},
        "ready": list(state.rides.ready),
        "groups": [_group(group) for group in state.groups or ()],
        "files": sorted(
            (name, file.bytes, file.digest, file.trial.id)
            for name, file in state.files.files.items()
        ),
        "adopted": (state.adopted.studies, [_trial(trial) for trial in state.adopted.trials]),
        "tree": [_node(node) for node in state.tree.nodes()] if state.number else [],
    }


# Fields that are drawn one by one.
_PICTURED = ("trials", "attempts", "rides", "tree", "files", "adopted", "groups")

# Fields that are objects of plain fields.
_PARTS = ("foresight", "paces", "slots", "questions", "meter")

# What an entry leaves behind for its own moment, and no later one reads.
_PASSING = ("delivered", "departed", "subject", "new")


def _group(group: Group) -> dict[str, Any]:
    plain = {name: value for name, value in vars(group).items() if name not in ("_whole", "new")}
    plain |= {name: dict(vars(getattr(group, name))) for name in ("foresight", "meter")}
    return {
        **plain,
        "trials": [trial.id for trial in group.trials],
        "best": None if group.best is None else group.best.id,
    }


def _trial(trial: Trial) -> dict[str, Any]:
    fields = {name: getattr(trial, name) for name in trial.__slots__}
    fields["attempt"] = None if trial.attempt is None else trial.attempt.id
    fields["leaf"] = [_node(node) for node in way(trial.leaf)]
    return fields


def _attempt(attempt: Attempt) -> dict[str, Any]:
    fields = {name: getattr(attempt, name) for name in attempt.__slots__}
    fields["trial"] = attempt.trial.id
    fields["members"] = [trial.id for trial in attempt.members]
    return fields


def _node(node: Leaf) -> dict[str, Any]:
    return {
        "birth": node.birth,
        "epochs": (node.start, node.end),
        "stretches": list(node.stretches),
        "losses": list(node.losses),
        "seconds": list(node.seconds),
        "extra": node.extra,
        "wanted": [trial.id for trial in node.wanted],
        "runners": [attempt.id for attempt in node.runners],
        "saves": node.saves,
    }
