"""Commands that a reader of a report may want next.

Knows how options of a simulation are written on the command line. Runs nothing.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import msgspec

from paceline.api.simulation import Simulation
from paceline.core.errors import PacelineError

if TYPE_CHECKING:
    from paceline.plots.chronicle import Chronicle

# Options whose names are not made of the field's.
_NAMES = {"slot_seconds": "--slot-hours"}


def study_command(verb: str, chronicle: Chronicle, store: str | None) -> str:
    """Return a command about the study where it is kept."""
    kept = ["--store", store] if store is not None else []
    name = chronicle.spec.name
    # A name that looks like an option is not one after two dashes.
    return shlex.join(["paceline", verb, *kept, *(["--"] if name.startswith("-") else []), name])


def simulate_command(chronicle: Chronicle) -> str | None:
    """Return the command that simulates the study again; None where it was not simulated."""
    if "source" not in chronicle.engine:
        return None
    try:
        simulation = msgspec.convert(chronicle.engine, Simulation)
    except (msgspec.ValidationError, PacelineError):
        return None  # written by another version: what it meant is not ours to guess
    words = ["paceline", "simulate", simulation.source]
    for field in msgspec.structs.fields(Simulation):
        value = getattr(simulation, field.name)
        if field.name != "source" and value != field.default:
            words += _option(field.name, value)
    return shlex.join(words)


def _option(field: str, value: object) -> list[str]:
    name = _NAMES.get(field) or "--" + field.removesuffix("_s").replace("_", "-")
    if value is True:
        return [name]
    if field == "slot_seconds" and isinstance(value, float | int):
        return [name, repr(value / 3600)]
    if isinstance(value, tuple):
        return [name, ",".join(f"{at!r}={slots}" for at, slots in value)]
    return [name, str(value)]
