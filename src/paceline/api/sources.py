"""What is simulated, by name: a synthetic workload such as `toy:epochs=50`, or a trace.

Knows how a source is read. Does not know how it is simulated, nor where traces lie.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, get_type_hints

from paceline.api.registry import converted, parse_part
from paceline.engines.sim.synthetic import Synthetic, synthetic
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


def trace_of(source: str) -> Trace | None:
    """Return the trace that a source names; None where it is a synthetic workload."""
    return None if synthetic_of(source, 0) is not None else trace_named(source)


def synthetic_of(source: str, seed: int) -> Synthetic | None:
    """Return the synthetic workload that a source names; None where it is a trace."""
    name, colon, _ = source.partition(":")
    made = synthetic(name, {}, seed)
    # Parameters are read only after a name that is known: a file's path may hold a colon too.
    if made is None or not colon:
        return made
    hints = get_type_hints(type(made).__init__)
    known = {param: hint for param, hint in hints.items() if param not in ("seed", "return")}
    return synthetic(name, converted(f"workload {name!r}", parse_part(source).params, known), seed)
