"""Snapshots: a study's state, or the memory of any object, as plain values to compare.

Knows every field of the state. Two states with equal snapshots have folded equal logs.
"""

from __future__ import annotations

from array import array
from collections import deque
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from paceline.core.rng import Stream
from paceline.plan.tree import path_to_root

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.machine.groups import Group
    from paceline.machine.state import StudyState
    from paceline.machine.trial_state import AttemptState, Leaf, TrialState


def dump_state(state: StudyState) -> dict[str, Any]:
    """Return the whole state as dicts, lists and numbers."""
    plain = {
        name: value
        for name, value in _list_fields(state)
        if name not in (*_DUMPED, *_PARTS, *_TRANSIENT)
    }
    plain["best"] = None if state.best is None else state.best.id
    return {
        **plain,
        "trials": [_trial(trial) for trial in state.trials],
        "attempts": [_attempt(attempt) for attempt in state.attempts.values()],
        **{name: dict(vars(getattr(state, name))) for name in _PARTS},
        "ready": list(state.assignment.ready),
        "groups": [_group(group) for group in state.together or ()],
        "files": sorted(
            (name, file.bytes, file.digest, file.trial.id)
            for name, file in state.checkpoints.records.items()
        ),
        "adopted": (state.reused.studies, [_trial(trial) for trial in state.reused.trials]),
        "tree": [_node(node) for node in state.tree.nodes()] if state.number else [],
    }


# Fields that are dumped one by one.
_DUMPED = ("trials", "attempts", "assignment", "tree", "checkpoints", "reused", "together")

# Fields that are objects of plain fields.
_PARTS = (
    "calibration",
    "epoch_times",
    "slots",
    "pending",
    "slot_time",
    "relaunches",
    "_sharers",
)

# Fields that hold only during one entry.
_TRANSIENT = ("delivered", "departed", "subject", "new")


def _list_fields(item: object) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of an object's attributes, in a dict or in slots."""
    yield from getattr(item, "__dict__", {}).items()
    names = [*getattr(item, "__struct_fields__", ())]
    for kind in type(item).__mro__:
        slots = vars(kind).get("__slots__", ())
        names += (slots,) if isinstance(slots, str) else slots
    for name in names:
        if name != "__weakref__" and hasattr(item, name):
            yield name, getattr(item, name)


def _group(group: Group) -> dict[str, Any]:
    plain = {
        name: value
        for name, value in _list_fields(group)
        if name not in ("_whole", "_attempts", "_checkpoints", "new")
    }
    plain |= {name: dict(vars(getattr(group, name))) for name in ("calibration", "slot_time")}
    return {
        **plain,
        "trials": [trial.id for trial in group.trials],
        "best": None if group.best is None else group.best.id,
    }


def _trial(trial: TrialState) -> dict[str, Any]:
    fields = {name: getattr(trial, name) for name in trial.__slots__}
    fields["attempt"] = None if trial.attempt is None else trial.attempt.id
    fields["leaf"] = [_node(node) for node in path_to_root(trial.leaf)]
    return fields


def _attempt(attempt: AttemptState) -> dict[str, Any]:
    fields = {name: getattr(attempt, name) for name in attempt.__slots__}
    fields["trial"] = attempt.trial.id
    fields["members"] = [trial.id for trial in attempt.members]
    return fields


def _node(node: Leaf) -> dict[str, Any]:
    return {
        "origin": node.origin,
        "epochs": (node.start, node.end),
        "stretches": list(node.stretches),
        "losses": list(node.losses),
        "seconds": list(node.seconds),
        "extra": node.extra,
        "wanted_by": [trial.id for trial in node.wanted_by],
        "attempts": [attempt.id for attempt in node.attempts],
        "checkpoints": node.checkpoints,
    }


# Dumped as text: immutable, or without visible contents.
_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, range, type),
    *(FunctionType, BuiltinFunctionType, MethodType, ModuleType),
)


def dump_memory(root: object) -> list[tuple[str, list[object]]]:
    """Return everything reachable from an object, one line for each object found.

    An object inside another is named by the number of its line, so that cycles end.
    """
    found = [root]
    lines = {id(root): 0}

    def name_part(part: object) -> object:
        if isinstance(part, _PLAIN):
            return f"{type(part).__name__} {part!r}"
        line = lines.setdefault(id(part), len(found))
        if line == len(found):
            found.append(part)
        return line

    own = ("class attributes", [name_part(part) for part in _class_attributes(type(root))])
    # The list grows while it is read, and keeps its objects alive, so that no id is reused.
    return [
        own,
        *((type(item).__qualname__, [name_part(part) for part in _parts(item)]) for item in found),
    ]


def _parts(item: Any) -> Iterator[object]:  # noqa: ANN401
    attributes = list(_list_fields(item))
    yield from attributes
    if isinstance(item, dict):
        for key, value in item.items():
            yield key
            yield value
    elif isinstance(item, list | tuple | set | frozenset | deque):
        yield from item
    elif isinstance(item, Stream):
        yield item.getstate()
    elif isinstance(item, bytearray | array):
        yield bytes(item)
    elif not attributes and not hasattr(item, "__dict__"):
        # Objects written in C: arrays have bytes, numpy's generators a state.
        inside = getattr(item, "bit_generator", item)
        bytes_of = getattr(inside, "tobytes", None)
        yield bytes_of() if callable(bytes_of) else getattr(inside, "state", repr(item))


def _class_attributes(kind: type) -> Iterator[object]:
    """Yield a class's own attributes: a list there is shared by all its objects."""
    for each in kind.__mro__[:-1]:
        for name, value in vars(each).items():
            if not name.startswith("__") and not hasattr(type(value), "__get__"):
                yield name, value
