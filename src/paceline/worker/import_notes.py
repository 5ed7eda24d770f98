"""Tells which module is being imported, while the training function is loaded.

Knows Python's import function, which it replaces for a while. Modules that other modules import are
not told, nor those of the standard library.
"""

from __future__ import annotations

import builtins
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def tell_imports(tell: Callable[[str], None]) -> Iterator[None]:
    """Call `tell` with the name of each package before it is imported, inside the block."""
    before = builtins.__import__
    depth = 0

    def import_and_tell(name: str, *args: Any, **named: Any) -> Any:  # noqa: ANN401
        nonlocal depth
        top = name.partition(".")[0]
        if depth == 0 and top not in sys.modules and top not in sys.stdlib_module_names:
            tell(top)
        depth += 1
        try:
            return before(name, *args, **named)
        finally:
            depth -= 1

    builtins.__import__ = import_and_tell
    try:
        yield
    finally:
        builtins.__import__ = before
