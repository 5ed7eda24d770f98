"""What is simulated, by name: a synthetic workload such as `toy:epochs=50`, or a trace.

Knows how a source is read. Does not know how it is simulated, nor where traces lie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_type_hints

from paceline.api.parts import converted, parse_part
from paceline.api.shipped import trace_named
from paceline.engines.sim.synthetic import Synthetic, synthetic

if TYPE_CHECKING:
    from paceline.engines.sim.traces import Trace


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
