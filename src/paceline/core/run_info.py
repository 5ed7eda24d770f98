"""How a study is run: on this machine, on a Ray cluster or in the simulator.

Knows the fields and the form they have in the log. Does not know what an engine makes of them.
"""

from __future__ import annotations

from typing import Any, Literal, Self, TypeAlias

import msgspec
from msgspec import Struct

RunKind: TypeAlias = Literal["local", "ray", "sim"]


class RunInfo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a later driver needs to build the engine again and to find the study's files."""

    # None: another tuner runs the trials, or a test does.
    kind: RunKind | None = None
    # The study's folder, where the user chose one.
    files: str | None = None
    # The address of the checkpoints, where they are not in that folder.
    checkpoints: str | None = None
    # The study file of `paceline run` as seen from the store, and the options given with it.
    file: str | None = None
    given: dict[str, Any] | None = None
    # Several studies run as one, by `pl.together`.
    together: bool = False
    # "up", or why trials that share a GPU take turns.
    mps: str | None = None
    # A deadline that is a time of day, in ISO format.
    deadline: str | None = None
    # Why the study has its policy, where the user gave none.
    policy_why: str = ""
    # The options of a simulation, as they stand in the log.
    simulation: dict[str, Any] = {}

    @property
    def is_trained(self) -> bool:
        """Whether the trials train on real devices."""
        return self.kind in ("local", "ray")

    def to_log(self) -> dict[str, Any]:
        """Return the form that stands in the log: the kind is a key, a simulation is its options.

        >>> RunInfo(kind="ray", mps="up").to_log()
        {'ray': True, 'mps': 'up'}
        """
        if self.kind == "sim":
            return self.simulation
        fields: dict[str, Any] = msgspec.to_builtins(self)
        fields.pop("kind", None)
        return fields if self.kind is None else {self.kind: True, **fields}

    @classmethod
    def from_log(cls, written: dict[str, Any]) -> Self:
        """Return what `to_log` wrote.

        >>> RunInfo.from_log({"local": True, "files": "/tmp/study"}).kind
        'local'
        """
        if "source" in written:
            return cls(kind="sim", simulation=written)
        kind = next((kind for kind in ("local", "ray") if kind in written), None)
        return msgspec.convert({**written, "kind": kind}, cls)
