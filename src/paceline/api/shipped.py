"""Traces by name: those that come with the package, and files.

Knows where the package keeps its own. A file of the same name comes first.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.engines.sim.traces import read_trace

if TYPE_CHECKING:
    from paceline.engines.sim.traces import Trace

_SUFFIX = ".jsonl.gz"


def shipped() -> list[str]:
    """Return the names of the traces that come with the package."""
    found = (each.name for each in (files("paceline") / "data").iterdir())
    return sorted(name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX))


def trace_named(source: str) -> Trace:
    """Return the trace of a file, or the package's own of that name."""
    if Path(source).exists() or source not in shipped():
        return read_trace(source)
    with as_file(files("paceline") / "data" / f"{source}{_SUFFIX}") as path:
        return read_trace(path)
