"""Public names that are imported when they are first used.

Knows how a package looks them up, so that `import paceline` costs next to nothing; and how long the
import of a function took that is called next.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# A call that follows the import of its function within this time belongs to the same line of code.
_SAME_CALL_S = 1.0
# When the newest import of a timed name began and ended.
_import_times = (0.0, -math.inf)


def import_lazily(
    package: str,
    modules: Mapping[str, str],
    namespaces: Mapping[str, str] | None = None,
    clock: Callable[[], float] | None = None,
    timed: Sequence[str] = (),
) -> Callable[[str], object]:
    """Return a package's `__getattr__`, given the module of each of its public names.

    `namespaces` are public names that stand for a whole module. The import of `timed` names is
    timed, for `find_start_of_call`.
    """

    def __getattr__(name: str) -> object:
        global _import_times
        if clock is not None and name in timed:
            began = clock()
            found = getattr(import_module(modules[name]), name)
            _import_times = (began, clock())
            return found
        if name in modules:
            return getattr(import_module(modules[name]), name)
        if namespaces and name in namespaces:
            return import_module(namespaces[name])
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return __getattr__


def find_start_of_call(now: float) -> float:
    """Return when a call began, on the clock of `import_lazily`: its import counts, if it was it.

    `pl.tune(…)` imports `tune` first; that takes a moment when it is done for the first time.
    """
    began, ended = _import_times
    return now - (ended - began) if now - ended < _SAME_CALL_S else now
