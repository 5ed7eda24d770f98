"""Public names that are imported when they are first used.

Knows how a package looks them up, so that `import paceline` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def import_lazily(
    package: str, modules: Mapping[str, str], namespaces: Mapping[str, str] | None = None
) -> Callable[[str], object]:
    """Return a package's `__getattr__`, given the module of each of its public names.

    `namespaces` are public names that stand for a whole module.
    """

    def __getattr__(name: str) -> object:
        if name in modules:
            return getattr(import_module(modules[name]), name)
        if namespaces and name in namespaces:
            return import_module(namespaces[name])
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return __getattr__
