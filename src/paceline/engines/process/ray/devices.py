"""The devices of a Ray cluster's slots: nodes, GPUs, threads and environment variables.

Knows the placement of each slot and how a process is confined to it. Further slots are requested
from the placement pool and arrive later.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paceline.engines.process.local.devices import LOOPBACK, THREAD_VARIABLES, mps_variables

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from paceline.core.values import SlotId
    from paceline.engines.process.ray.node_files import NodeFilesClient
    from paceline.engines.process.ray.placement import PlacementPool
    from paceline.engines.process.ray.worker_pool import RayWorkerPool


class RayDevices:
    """The slots of a study on a cluster."""

    # The worker pool reports slots that are gone.
    needs_watching = False

    def __init__(self, pool: RayWorkerPool, placement: PlacementPool) -> None:
        self._pool = pool
        self._placement = placement
        self.initial_slots: Sequence[SlotId] = sorted(pool.placements)

    @property
    def device(self) -> str:
        """The device name a training function gives to its framework: `cpu` or `cuda`."""
        return "cuda" if self._placement.kind == "GPU" else "cpu"

    def more(self, used: Collection[SlotId], wanted: int) -> Sequence[SlotId]:
        """Request further slots; none is available at once."""
        self._placement.request(wanted)
        return ()

    def give_back(self, slots: Collection[SlotId]) -> None:
        """Give slots back, each when it has no worker any more."""
        self._placement.retire(slots)
        self._pool.retire_slots(slots, self._placement.release)

    def missing(self) -> set[SlotId]:
        """Return nothing: the worker pool reports slots that are gone."""
        return set()

    def nodes(self, slots: Sequence[SlotId]) -> tuple[str, ...]:
        """Return the node of each slot, by the beginning of Ray's name for it."""
        placements = self._pool.placements
        # A slot that has just gone is reported as gone by the next event.
        return tuple(
            placements[slot].node.short_name if slot in placements else "" for slot in slots
        )

    def node_files(self, slot: SlotId) -> NodeFilesClient | None:
        """Return the files of the slot's node; None: the node sees the study's folder."""
        placement = self._pool.placements.get(slot)
        return None if placement is None else self._pool.node_files(placement.node)

    def threads(self, width: float) -> int:
        """Return how many threads each process of this width may use, on the smallest node."""
        cores = min((each.cores for each in self._pool.placements.values()), default=1.0)
        return max(1, math.floor(cores * min(width, 1.0)))

    def slot_bytes(self, slot: SlotId) -> int:
        """Return the memory of a slot in bytes; 0 if unknown."""
        placement = self._pool.placements.get(slot)
        return 0 if placement is None else placement.bytes

    def variables(self, slots: Sequence[SlotId], width: float, rank: int) -> dict[str, str]:
        """Return the environment variables that confine the process of this rank to its device."""
        variables = dict.fromkeys(THREAD_VARIABLES, str(self.threads(width)))
        placements = self._pool.placements
        if slots[rank] in placements:
            own = placements[slots[rank]]
            variables["CUDA_VISIBLE_DEVICES"] = own.gpu
            variables |= mps_variables(own.mps, width)
        found = [placements[slot].node for slot in slots if slot in placements]
        if len(found) > 1 and len(set(found)) == 1:
            # All on one node: the loopback works, whatever the node's name resolves to.
            variables["GLOO_SOCKET_IFNAME"] = variables["NCCL_SOCKET_IFNAME"] = LOOPBACK
        return variables
