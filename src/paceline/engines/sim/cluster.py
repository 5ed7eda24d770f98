"""What a simulated cluster is made of: slots, what things cost, and what goes wrong.

Knows numbers only; `engine.py` makes them happen.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.core.errors import SpecError
from paceline.core.rng import stream
from paceline.core.speedup import SpeedUp

if TYPE_CHECKING:
    from paceline.core.values import AttemptId, SlotId


class Faults(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes wrong."""

    # The mean time an attempt lives before its process fails; None: they never do.
    mean_life_s: float | None = None
    # Attempts that fail this many seconds after their launch, whatever the mean says.
    scripted: dict[int, float] = {}
    seed: int = 0

    def life_of(self, attempt: AttemptId) -> float | None:
        """Return how long this attempt lives; None: as long as it likes."""
        if attempt in self.scripted:
            return self.scripted[attempt]
        if self.mean_life_s is None:
            return None
        share = stream(self.seed, "failure", attempt).random()
        return -self.mean_life_s * math.log(1.0 - share)


class Cluster(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Virtual slots and what they charge, in seconds."""

    slots: int
    # Starting a process; None: what the workload says, or nothing.
    setup_s: float | None = None
    save_s: float = 0.0
    restore_s: float = 0.0
    # So many neighbouring slots are a node; None: they are all alike. What it costs to begin on a
    # node that did not write the checkpoint itself.
    node_slots: int | None = None
    fetch_s: float = 0.0
    # From asking for a forecast or a proposal to having it.
    forecast_s: float = 0.0
    proposal_s: float = 0.0
    # Save when this long has passed since the last save; None: never for that reason.
    save_every_s: float | None = None
    speed: SpeedUp = SpeedUp()
    faults: Faults = Faults()
    # From these times on there are so many slots: (seconds, slots), in rising order.
    capacity: tuple[tuple[float, int], ...] = ()

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise SpecError(f"slots={self.slots} cannot train anything: give 1 or more.")
        if self.node_slots is not None and self.node_slots < 1:
            raise SpecError(f"node_slots={self.node_slots} are no node: give 1 or more.")
        if self.fetch_s and self.node_slots is None:
            raise SpecError(f"fetch_s={self.fetch_s:g} is between nodes: give node_slots, too.")
        for name in ("setup_s", "save_s", "restore_s", "fetch_s", "forecast_s", "proposal_s"):
            cost = getattr(self, name)
            if cost is not None and not (cost >= 0 and math.isfinite(cost)):
                raise SpecError(f"{name}={cost!r} is no cost: give 0 or more seconds.")
        times = [at for at, _ in self.capacity]
        if times != sorted(set(times)) or any(count < 0 for _, count in self.capacity):
            raise SpecError(
                f"capacity={self.capacity!r} cannot be followed: give rising times and 0 or more "
                "slots."
            )

    def node_of(self, slot: SlotId) -> str:
        """Return the node that a slot is on; empty: there are none."""
        return "" if self.node_slots is None else f"node-{slot // self.node_slots}"
