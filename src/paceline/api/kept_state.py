"""Whether a training function keeps state: read from its code, before it runs.

Knows code objects and the names by which state is kept. It reads the function and the functions,
classes and modules of the user that it refers to, and of Paceline's integrations their own code.
A function whose code cannot be read counts as one that keeps nothing: such trials are never paused,
which is right for every function.
"""

from __future__ import annotations

import sysconfig
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# What a function calls to keep state, or to get it back.
_CALLS = frozenset({"keep", "get_checkpoint", "restored_files"})
# What Ray's `report` takes it by.
_ARGUMENT = "checkpoint"
_INTEGRATIONS = "paceline.integrations"
_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_PACKAGES = ("site-packages", "dist-packages")


def keeps_state(train: object) -> bool:
    """Return whether the code of a training function keeps state or reads it back."""
    seen: dict[int, object] = {}
    todo = [train]
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        # Held, so that no other object gets the same id.
        seen[id(value)] = value
        for found in _list_inside(value, is_root=value is train):
            if isinstance(found, CodeType):
                if _mentions_state(found):
                    return True
            else:
                todo.append(found)
    return False


def _mentions_state(code: CodeType) -> bool:
    if not _CALLS.isdisjoint(code.co_names):
        return True
    # The names of keyword arguments are a constant.
    return any(isinstance(each, tuple) and _ARGUMENT in each for each in code.co_consts)


def _list_inside(value: object, *, is_root: bool) -> Iterator[object]:
    """Yield the code objects of a value, and the values it refers to."""
    match value:
        case partial():
            yield value.func
            yield from (*value.args, *value.keywords.values())
        case MethodType():
            yield value.__func__
            yield type(value.__self__)
        case staticmethod() | classmethod():
            yield value.__func__
        case property():
            yield from (value.fget, value.fset)
        case FunctionType():
            yield from _list_function(value)
        case type():
            if _is_read(value.__module__, _find_file(value)):
                yield from value.__bases__
                yield from vars(value).values()
        case _ if is_root:
            # An object that can be called.
            yield type(value)
            yield from getattr(value, "__dict__", {}).values()


def _list_function(function: FunctionType) -> Iterator[object]:
    if not _is_read(function.__module__, function.__code__.co_filename):
        return
    codes = list(_list_codes(function.__code__))
    yield from codes
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # a cell may be empty
            yield cell.cell_contents
    yield getattr(function, "__wrapped__", None)
    if (function.__module__ or "").startswith(_INTEGRATIONS):
        return
    known = function.__globals__
    for name in {name for code in codes for name in code.co_names}:
        yield known.get(name)
    modules = [each for each in _list_values(codes, known) if isinstance(each, ModuleType)]
    for module in modules:
        if _is_read(module.__name__, getattr(module, "__file__", None)):
            inside = vars(module)
            yield from (inside.get(name) for code in codes for name in code.co_names)


def _list_values(codes: list[CodeType], known: dict[str, object]) -> list[object]:
    return [known[name] for code in codes for name in code.co_names if name in known]


def _list_codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _list_codes(each)


def _find_file(made: type) -> str | None:
    for value in vars(made).values():
        if isinstance(value, FunctionType):
            return value.__code__.co_filename
    return None


def _is_read(module: str | None, file: str | None) -> bool:
    """Return whether code is the user's, or of an integration."""
    if module is not None and module.partition(".")[0] == "paceline":
        return module.startswith(_INTEGRATIONS)
    if module == "builtins" or file is None:
        return False
    if any(folder in Path(file).parts for folder in _PACKAGES):
        return False
    return not file.startswith(tuple(f"{folder}/" for folder in _LIBRARIES if folder))
