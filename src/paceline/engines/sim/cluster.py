"""The parameters of a simulated cluster: slots, costs in seconds, and failures.

Knows numbers alone; the simulator's engine applies them.
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
    """When simulated attempts and their saves fail."""

    # The mean time from launch to failure; None: attempts do not fail.
    mean_life_s: float | None = None
    # Attempts that fail this many seconds after their launch, regardless of the mean.
    scripted: dict[int, float] = {}
    # (time, trial): the worker that trains this trial at that time is killed.
    kills: tuple[tuple[float, int], ...] = ()
    # The share of saves that fail.
    saves: float = 0.0
    seed: int = 0

    def draw_failure(self, attempt: AttemptId) -> float | None:
        """Return the seconds from an attempt's launch to its failure; None: it does not fail."""
        if attempt in self.scripted:
            return self.scripted[attempt]
        if self.mean_life_s is None:
            return None
        share = stream(self.seed, "failure", attempt).random()
        return -self.mean_life_s * math.log(1.0 - share)

    def fails_save(self, attempt: AttemptId, epoch: int) -> bool:
        """Return whether an attempt's save at this epoch fails."""
        return self.saves > 0.0 and stream(self.seed, "save", attempt, epoch).random() < self.saves


class Cluster(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Virtual slots and the costs of using them, in seconds."""

    slots: int
    # Starting a process; None: what the workload says, or nothing.
    setup_s: float | None = None
    save_s: float = 0.0
    restore_s: float = 0.0
    # Slots of one node, in order of their numbers; None: there are no nodes. The cost of starting
    # on another node than the one that wrote the checkpoint.
    node_slots: int | None = None
    fetch_s: float = 0.0
    # From a request for a forecast or a proposal to its answer.
    forecast_s: float = 0.0
    proposal_s: float = 0.0
    # Save when this long has passed since the last save; None: only where ordered.
    save_every_s: float | None = None
    # Do as worker processes do: they train on while a report is judged, so that an order reaches
    # them one epoch later unless they wait at their goal; and they save the study's best.
    live: bool = False
    speed: SpeedUp = SpeedUp()
    faults: Faults = Faults()
    # Changes of the number of slots: (seconds, slots), in rising order.
    capacity: tuple[tuple[float, int], ...] = ()

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise SpecError(f"slots={self.slots} is invalid: must be at least 1.")
        if self.node_slots is not None and self.node_slots < 1:
            raise SpecError(f"node_slots={self.node_slots} is invalid: must be at least 1.")
        if self.fetch_s and self.node_slots is None:
            raise SpecError(f"fetch_s={self.fetch_s:g} needs nodes: give node_slots, too.")
        for name in ("setup_s", "save_s", "restore_s", "fetch_s", "forecast_s", "proposal_s"):
            cost = getattr(self, name)
            if cost is not None and not (cost >= 0 and math.isfinite(cost)):
                raise SpecError(f"{name}={cost!r} is invalid: must be 0 or more seconds.")
        times = [at for at, _ in self.capacity]
        if times != sorted(set(times)) or any(count < 0 for _, count in self.capacity):
            raise SpecError(
                f"capacity={self.capacity!r} is invalid: times must rise, and slots must be 0 or "
                "more."
            )

    def find_node(self, slot: SlotId) -> str:
        """Return the node of a slot; empty: the cluster has no nodes."""
        return "" if self.node_slots is None else f"node-{slot // self.node_slots}"
