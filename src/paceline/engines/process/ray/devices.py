"""A cluster's slots as the ground of an engine: devices, threads and variables on far nodes.

Knows where each slot is, and how a process there is kept to its own. What it cannot give at once it
asks the reserve for.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paceline.engines.process.local.devices import LOOPBACK, THREAD_VARIABLES, mps_variables

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from paceline.core.values import SlotId
    from paceline.engines.process.ray.node_files import Afar
    from paceline.engines.process.ray.placement import Reserve
    from paceline.engines.process.ray.worker_pool import Nests


class Places:
    """The slots of a study on a cluster."""

    def __init__(self, nests: Nests, reserve: Reserve) -> None:
        self._nests = nests
        self._reserve = reserve
        self.first: Sequence[SlotId] = sorted(nests.places)
        self.watched = False

    @property
    def device(self) -> str:
        """What a training function gives to its framework."""
        return "cuda" if self._reserve.kind == "GPU" else "cpu"

    def more(self, used: Collection[SlotId], wanted: int) -> Sequence[SlotId]:
        """Ask for further slots: none is there at once."""
        self._reserve.more(wanted)
        return ()

    def less(self, slots: Collection[SlotId]) -> None:
        """Give slots back, each when nobody works there any more."""
        self._reserve.less(slots)
        self._nests.part(slots, self._reserve.let_go)

    def missing(self) -> set[SlotId]:
        """Return nothing: what goes is told."""
        return set()

    def nodes(self, slots: Sequence[SlotId]) -> tuple[str, ...]:
        """Return the node that each slot is on, by the beginning of Ray's name for it."""
        places = self._nests.places
        # One that has just gone is told to be gone next.
        return tuple(places[slot].node.short if slot in places else "" for slot in slots)

    def away(self, slot: SlotId) -> Afar | None:
        """Return who keeps files where a slot is; None: it sees the study's folder."""
        place = self._nests.places.get(slot)
        return None if place is None else self._nests.afar(place.node)

    def threads(self, width: float) -> int:
        """Return how many threads each process of this width may use, on the narrowest node."""
        cores = min((place.cores for place in self._nests.places.values()), default=1.0)
        return max(1, math.floor(cores * min(width, 1.0)))

    def slot_bytes(self, slot: SlotId) -> int:
        """Return what a slot has of memory; 0: nobody knows."""
        place = self._nests.places.get(slot)
        return 0 if place is None else place.bytes

    def variables(self, slots: Sequence[SlotId], width: float, rank: int) -> dict[str, str]:
        """Return the variables that keep the process of this rank to its own device."""
        variables = dict.fromkeys(THREAD_VARIABLES, str(self.threads(width)))
        places = [self._nests.places[slot] for slot in slots if slot in self._nests.places]
        if slots[rank] in self._nests.places:
            place = self._nests.places[slots[rank]]
            variables["CUDA_VISIBLE_DEVICES"] = place.gpu
            variables |= mps_variables(place.mps, width)
        if len(places) > 1 and len({place.node for place in places}) == 1:
            # All on one node: nobody has to ask what its name resolves to.
            variables["GLOO_SOCKET_IFNAME"] = variables["NCCL_SOCKET_IFNAME"] = LOOPBACK
        return variables
