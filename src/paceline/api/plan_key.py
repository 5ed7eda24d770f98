"""The plan key of a training function: its name and a digest of its code.

Knows code objects: two functions have the same version if the same instructions work on the same
constants, whatever their lines, comments and docstrings. The digest covers functions and classes of
the same module that the function reaches, and plain values; of imports and of data it covers only
the name. Each version of Python gives another digest.
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
PLAN_RULE = (
    "give a name such as 'resnet20-cifar', a name and a version such as 'resnet20-cifar@3', or "
    "None to share nothing with other studies"
)
# A larger collection counts as data: the digest covers only its length.
_MOST = 1000


def parse_plan_key(text: str) -> PlanKey:
    """Return the plan key written as `name` or `name@version`."""
    name, at, version = text.partition("@")
    if not name.strip() or (at and not version.strip()):
        raise SpecError(f"plan={text!r} is invalid: {PLAN_RULE}.")
    return PlanKey(name, version)


def compute_plan_key(train: Callable[..., Any]) -> PlanKey | None:
    """Return the plan key of a training function; None if it has no Python code."""
    function = _find_function(train)
    if function is None:
        return None
    digest = blake2b(digest_size=6)
    for token in _CodeReader(function.__module__).read(train, own=True):
        digest.update(token.encode("utf-8", "backslashreplace") + b"\0")
    return PlanKey(f"{_name_module(function)}.{function.__qualname__}", digest.hexdigest())


def _name_module(function: FunctionType) -> str:
    """Return the name by which a function's module is imported."""
    module = function.__module__
    if module == "__main__":
        main = sys.modules[module]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        if spec is not None:
            module = spec.name
        elif file is not None:
            module = Path(file).stem
    elif not module.replace(".", "_").isidentifier():
        # A study file, executed under a name that cannot be imported.
        module = Path(function.__code__.co_filename).stem
    return module


def _find_function(train: object) -> FunctionType | None:
    """Return the function that a callable calls."""
    if isinstance(train, partial):
        return _find_function(train.func)
    if isinstance(train, MethodType):
        return _find_function(train.__func__)
    if isinstance(train, FunctionType):
        return train
    called = vars(type(train)).get("__call__")
    return called if isinstance(called, FunctionType) else None


class _CodeReader:
    """Reads a function and all it reaches as tokens, each object once."""

    def __init__(self, module: str) -> None:
        # The digest covers functions and classes of this module.
        self._module = module
        # By their ids; the objects are held, so that no other object gets the same id.
        self._seen: dict[int, tuple[int, object]] = {}

    def read(self, value: object, *, own: bool = False) -> Iterator[str]:
        """Yield the tokens of a value; of an object of another module, only its name."""
        if isinstance(value, _PLAIN):
            yield f"{type(value).__name__} {value!r}"
        elif id(value) in self._seen:
            yield f"seen {self._seen[id(value)][0]}"
        else:
            # The compiler decides whether two equal constants are one object.
            if not isinstance(value, tuple | frozenset | CodeType):
                self._seen[id(value)] = len(self._seen), value
            named = value if isinstance(value, FunctionType | type) else type(value)
            here = named.__module__ == self._module
            yield f"{type(value).__name__} {named.__qualname__} {'' if here else named.__module__}"
            if named is not value:
                yield from self._read_object(value)
            elif own or here:
                inside = self._read_class if isinstance(value, type) else self._read_function
                yield from inside(value)  # type: ignore[arg-type]

    def _read_object(self, value: object) -> Iterator[str]:
        match value:
            case ModuleType():
                yield value.__name__
            case CodeType():
                yield from self._read_code(value)
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
                yield from self.read(_find_function(value))

    def _read_class(self, made: type) -> Iterator[str]:
        for base in made.__bases__:
            yield from self.read(base)
        for name, each in sorted(vars(made).items()):
            # Skip the attributes that Python adds to every class, and the docstring.
            if not name.startswith("__") or callable(each):
                yield name
                yield from self.read(each)

    def _read_function(self, function: FunctionType) -> Iterator[str]:
        code, known = function.__code__, function.__globals__
        yield from self.read((function.__defaults__, function.__kwdefaults__))
        yield from self._read_code(code)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            yield name
            with suppress(ValueError):  # a cell may be empty
                yield from self.read(cell.cell_contents, own=True)
        for name in sorted(_list_globals(code) & known.keys()):
            yield name
            yield from self.read(known[name])

    def _read_code(self, code: CodeType) -> Iterator[str]:
        """Yield instructions and their operands, without lines, docstrings and table indices."""
        yield f"takes {code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}"
        yield f"flags {code.co_flags} except {code.co_exceptiontable.hex()}"
        for step in dis.get_instructions(code):
            yield step.opname
            if step.opcode in dis.hasconst:
                yield from self.read(step.argval)
            elif step.arg is not None:
                yield str(step.argval)


def _list_globals(code: CodeType) -> set[str]:
    """Return the global names that a code object and its nested code objects use."""
    found = {
        str(step.argval)
        for step in dis.get_instructions(code)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    for each in code.co_consts:
        if isinstance(each, CodeType):
            found |= _list_globals(each)
    return found
