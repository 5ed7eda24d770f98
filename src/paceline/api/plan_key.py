"""What a training function is called and which version of it this is: the key of its plan.

Knows code objects: two functions have one version where the same instructions work on the same
constants, whatever their lines, comments and docstrings. It looks into functions and classes of the
same module that the function reaches, and at plain values; of what is imported from elsewhere, and
of data, it knows the name alone. Versions of one function differ between versions of Python.
"""

from __future__ import annotations

import dis
import sys
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from paceline.core.errors import SpecError
from paceline.core.values import PlanKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
# What holds more is taken for data, and its length alone counts.
_MOST = 1000


def given_key(text: str) -> PlanKey:
    """Return the key that a user wrote: `name`, or `name@version`."""
    name, at, version = text.partition("@")
    if not name.strip() or (at and not version.strip()):
        raise SpecError(
            f"plan={text!r} cannot be meant: give a name such as 'resnet20-cifar', with a version "
            "such as 'resnet20-cifar@3', or None to share nothing with other studies."
        )
    return PlanKey(name, version)


def key_of(train: Callable[[Any], Any]) -> PlanKey | None:
    """Return the key of a training function; None where there is no code to look at."""
    function = _function(train)
    if function is None:
        return None
    digest = blake2b(digest_size=6)
    for word in _Reader(function.__module__).read(train, own=True):
        digest.update(word.encode("utf-8", "backslashreplace") + b"\0")
    return PlanKey(f"{_home(function)}.{function.__qualname__}", digest.hexdigest())


def _home(function: FunctionType) -> str:
    """Return what a function's module is called by whoever imports it."""
    module = function.__module__
    if module == "__main__":
        main = sys.modules[module]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        if spec is not None:
            module = spec.name
        elif file is not None:
            module = Path(file).stem
    elif not module.replace(".", "_").isidentifier():
        # A study file, executed under a name that nothing can be imported by.
        module = Path(function.__code__.co_filename).stem
    return module


def _function(train: object) -> FunctionType | None:
    """Return the function that a callable is made of."""
    if isinstance(train, partial):
        return _function(train.func)
    if isinstance(train, MethodType):
        return _function(train.__func__)
    if isinstance(train, FunctionType):
        return train
    called = vars(type(train)).get("__call__")
    return called if isinstance(called, FunctionType) else None


class _Reader:
    """Reads a function and all it reaches as words, each thing once."""

    def __init__(self, module: str) -> None:
        # Whose functions and classes are looked into.
        self._module = module
        # Kept by their ids, and alive, so that no other thing gets the same id.
        self._seen: dict[int, tuple[int, object]] = {}

    def read(self, value: object, *, own: bool = False) -> Iterator[str]:
        """Yield what a value is; of what is not the user's own, what it is called."""
        if isinstance(value, _PLAIN):
            yield f"{type(value).__name__} {value!r}"
        elif id(value) in self._seen:
            yield f"seen {self._seen[id(value)][0]}"
        else:
            # Two equal constants are one object or not as the compiler likes it.
            if not isinstance(value, tuple | frozenset | CodeType):
                self._seen[id(value)] = len(self._seen), value
            named = value if isinstance(value, FunctionType | type) else type(value)
            here = named.__module__ == self._module
            yield f"{type(value).__name__} {named.__qualname__} {'' if here else named.__module__}"
            if named is not value:
                yield from self._look(value)
            elif own or here:
                inside = self._class if isinstance(value, type) else self._function
                yield from inside(value)  # type: ignore[arg-type]

    def _look(self, value: object) -> Iterator[str]:
        match value:
            case ModuleType():
                yield value.__name__
            case CodeType():
                yield from self._code(value)
            case tuple() | list() | set() | frozenset() | dict() if len(value) > _MOST:
                yield str(len(value))
            case tuple() | list():
                for each in (len(value), *value):
                    yield from self.read(each)
            case set() | frozenset():
                yield from sorted(repr(each) for each in value if isinstance(each, _PLAIN))
            case dict():
                for name, each in value.items():
                    yield from self.read(name)
                    yield from self.read(each)
            case partial():
                yield from self.read(value.func, own=True)
                yield from self.read((value.args, value.keywords))
            case property():
                for each in (value.fget, value.fset, value.fdel):
                    yield from self.read(each)
            case MethodType() | staticmethod() | classmethod():
                yield from self.read(value.__func__)
            case _:
                yield from self.read(_function(value))

    def _class(self, made: type) -> Iterator[str]:
        for base in made.__bases__:
            yield from self.read(base)
        for name, each in sorted(vars(made).items()):
            # What Python adds to every class says nothing, and its docstring is none of ours.
            if not name.startswith("__") or callable(each):
                yield name
                yield from self.read(each)

    def _function(self, function: FunctionType) -> Iterator[str]:
        code, known = function.__code__, function.__globals__
        yield from self.read((function.__defaults__, function.__kwdefaults__))
        yield from self._code(code)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            yield name
            with suppress(ValueError):  # a cell may be empty
                yield from self.read(cell.cell_contents, own=True)
        for name in sorted(_globals(code) & known.keys()):
            yield name
            yield from self.read(known[name])

    def _code(self, code: CodeType) -> Iterator[str]:
        """Yield instructions and what they work on: no lines, no docstrings, no order of tables."""
        yield f"takes {code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}"
        yield f"flags {code.co_flags} except {code.co_exceptiontable.hex()}"
        for step in dis.get_instructions(code):
            yield step.opname
            if step.opcode in dis.hasconst:
                yield from self.read(step.argval)
            elif step.arg is not None:
                yield str(step.argval)


def _globals(code: CodeType) -> set[str]:
    """Return the names that a piece of code, and all that is nested in it, looks up outside."""
    found = {
        str(step.argval)
        for step in dis.get_instructions(code)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    for each in code.co_consts:
        if isinstance(each, CodeType):
            found |= _globals(each)
    return found
