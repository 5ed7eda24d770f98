"""Sources of a simulation, by name: a synthetic workload such as `toy:epochs=50`, or a trace.

Knows how a source is written and loaded. Does not know how it is simulated.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, get_type_hints

from paceline.api.registry import convert_parameters, parse_part
from paceline.engines.sim.synthetic import SYNTHETIC, Synthetic, build_synthetic
from paceline.engines.sim.traces import read_trace

if TYPE_CHECKING:
    from paceline.engines.sim.traces import Trace


_SUFFIX = ".jsonl.gz"


def list_sources() -> list[str]:
    """Return the names of the synthetic workloads and of the bundled traces."""
    return [*SYNTHETIC, *list_bundled_traces()]


def list_bundled_traces() -> list[str]:
    """Return the names of the traces in the package."""
    found = (each.name for each in (files("paceline") / "data").iterdir())
    return sorted(name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX))


def load_trace(source: str) -> Trace:
    """Load a trace file, or the bundled trace of that name."""
    if Path(source).exists() or source not in list_bundled_traces():
        return read_trace(source)
    with as_file(files("paceline") / "data" / f"{source}{_SUFFIX}") as path:
        return read_trace(path)


def find_trace(source: str) -> Trace | None:
    """Load the trace of a source; None if the source is a synthetic workload."""
    return None if make_synthetic(source, 0) is not None else load_trace(source)


def make_synthetic(source: str, seed: int) -> Synthetic | None:
    """Make the synthetic workload of a source; None if the source is a trace."""
    name, colon, _ = source.partition(":")
    made = build_synthetic(name, {}, seed)
    # Parameters follow a known name only: the path of a file may have a colon too.
    if made is None or not colon:
        return made
    hints = get_type_hints(type(made).__init__)
    known = {param: hint for param, hint in hints.items() if param not in ("seed", "return")}
    return build_synthetic(
        name, convert_parameters(f"workload {name!r}", parse_part(source).params, known), seed
    )
