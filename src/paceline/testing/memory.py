"""What a brain remembers, as plain values: so that writing where one may only read is seen.

Knows containers, attributes, slots and structs, and nothing about any brain. Two pictures of one
object differ if anything that can be reached from it has changed in between.
"""

from __future__ import annotations

from array import array
from collections import deque
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from paceline.core.rng import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

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
