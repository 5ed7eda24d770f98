"""A state as plain values, so that two can be compared and a difference can be read.

Knows every field of the state. Two states with equal pictures have taken equal histories.
"""

from __future__ import annotations

from array import array
from collections import deque
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from paceline.core.rng import Stream
from paceline.plan.tree import way

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.machine.groups import Group
    from paceline.machine.state import StudyState
    from paceline.machine.trial_state import Attempt, Leaf, Trial


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


# Shown by their text: they cannot change, or have nothing inside that one could see.
_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, range, type),
    *(FunctionType, BuiltinFunctionType, MethodType, ModuleType),
)


def memory_of(root: object) -> list[tuple[str, list[object]]]:
    """Return everything that can be reached from an object, one line for each thing found.

    A thing inside another is named by the number of its line, so that circles end.
    """
    found = [root]
    lines = {id(root): 0}

    def named(part: object) -> object:
        if isinstance(part, _PLAIN):
            return f"{type(part).__name__} {part!r}"
        line = lines.setdefault(id(part), len(found))
        if line == len(found):
            found.append(part)
        return line

    own = ("what its class holds", [named(part) for part in _shared(type(root))])
    # The list grows while it is read, and keeps what it holds alive: no identity is used twice.
    return [
        own,
        *((type(thing).__qualname__, [named(part) for part in _parts(thing)]) for thing in found),
    ]


def _parts(thing: Any) -> Iterator[object]:  # noqa: ANN401
    attributes = list(_attributes(thing))
    yield from attributes
    if isinstance(thing, dict):
        for key, value in thing.items():
            yield key
            yield value
    elif isinstance(thing, list | tuple | set | frozenset | deque):
        yield from thing
    elif isinstance(thing, Stream):
        yield thing.getstate()
    elif isinstance(thing, bytearray | array):
        yield bytes(thing)
    elif not attributes and not hasattr(thing, "__dict__"):
        # Things written in C: arrays tell their bytes, numpy's generators their state.
        inside = getattr(thing, "bit_generator", thing)
        bytes_of = getattr(inside, "tobytes", None)
        yield bytes_of() if callable(bytes_of) else getattr(inside, "state", repr(thing))


def _attributes(thing: object) -> Iterator[object]:
    yield from getattr(thing, "__dict__", {}).items()
    names = [*getattr(thing, "__struct_fields__", ())]
    for kind in type(thing).__mro__:
        slots = vars(kind).get("__slots__", ())
        names += (slots,) if isinstance(slots, str) else slots
    for name in names:
        if hasattr(thing, name):
            yield name, getattr(thing, name)


def _shared(kind: type) -> Iterator[object]:
    """Yield what a class itself holds: a list there is memory of all its objects at once."""
    for each in kind.__mro__[:-1]:
        for name, value in vars(each).items():
            if not name.startswith("__") and not hasattr(type(value), "__get__"):
                yield name, value
