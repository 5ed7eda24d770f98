"""The slots a study holds on a Ray cluster: one placement group for each.

Knows Ray's placement groups and nodes. A thread looks at them, since the cluster's answers may take
long, and tells what has come and gone. A group that Ray cannot place yet stays asked for, where the
autoscaler sees it. Knows nothing of trials, and that there are hosts on nodes.
"""

from __future__ import annotations

import threading
import time
import warnings
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.core.errors import PacelineWarning, SpecError
from paceline.engines.process.local.devices import Gpu, find_devices
from paceline.engines.process.ray.config import imported
from paceline.engines.process.ray.node_protocol import Leave
from paceline.engines.process.ray.nodes import OPEN_S, Place

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from paceline.core.values import SlotId
    from paceline.engines.process.ray.config import Ray
    from paceline.engines.process.ray.nodes import Hosts, Node
    from paceline.engines.process.ray.worker_pool import Nests

# How often the cluster is looked at. What dies is known at once; this is for what comes.
_LOOK_S = 1.0
# The same, while something is asked for that is free: an autoscaler shall not see it for long.
_SOON_S = 0.2
# How soon what was asked for in vain is asked for again, at first and at last: each time an
# autoscaler may see it.
_AGAIN_S, _AGAIN_MOST_S = 2.0, 300.0
# Ray's words for what it has found no place for.
_DENIED = ("NO_RESOURCES", "INFEASIBLE")
# How long a study waits at its start for a first slot.
_START_S = 3.0
# How long it waits for more, once it has some: what Ray has denied it tries again within a second,
# and what another study has just given back it denies at first.
_STILL_S = 1.5


class _Held(NamedTuple):
    slot: SlotId
    place: Place


class Reserve:
    """Asks for slots and keeps them."""

    def __init__(self, wanted: Ray, nests: Nests, hosts: Hosts, *, mps: bool) -> None:
        self._ray = imported()
        self._nests = nests
        self._hosts = hosts
        self.kind = _kind(wanted, self._ray.cluster_resources())
        # Whether trials shall share GPUs at the same time, and what came of that, if anything yet.
        self._shares = mps and self.kind == "GPU"
        self.mps = ""
        # None: whatever is free, except for what was given back.
        self._all = wanted.count is None
        self._spared = 0
        # What was free, of what, when it was last asked for, and when that was denied; when to try
        # the same again, and how long that was to wait.
        self._asked = self._vain = (0, 0)
        self._again_at = self._wait_s = 0.0
        self._groups: dict[Any, _Held | None] = {}
        # What is no longer counted on, and goes back when nobody works there any more.
        self._parting: dict[SlotId, tuple[Any, _Held]] = {}
        self._slots = count()
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._closed = False
        self._ask(wanted.count or 0)
        try:
            self._begin()
        except BaseException:
            self._hosts.dismiss()
            self.give_back()
            raise
        self._thread = threading.Thread(target=self._watch, name="paceline-reserve", daemon=True)
        self._thread.start()

    def more(self, slots: int) -> None:
        """Ask for further slots; they are told when they are there."""
        with self._lock:
            self._spared = max(0, self._spared - slots)
            self._ask(slots)
        self._woken.set()

    def less(self, slots: Collection[SlotId]) -> None:
        """Count on these slots no more; nobody else has them before they are let go."""
        with self._lock:
            for group, held in list(self._groups.items()):
                if held is None:
                    # Who gives back waits for no more: it would come in place of what goes.
                    del self._groups[group]
                    self._ray.util.remove_placement_group(group)
                elif held.slot in slots:
                    del self._groups[group]
                    self._spared += 1
                    self._parting[held.slot] = group, held

    def let_go(self, slot: SlotId) -> None:
        """Give a slot back to the cluster: nobody works there any more."""
        with self._lock:
            parted = self._parting.pop(slot, None)
        if parted is not None:  # else it went with its node before
            group, (_, place) = parted
            if place.mps:
                place.node.say(Leave(place.gpu))
            self._ray.util.remove_placement_group(group)
            self._woken.set()

    def rest(self) -> None:
        """Look no more."""
        self._closed = True
        self._hosts.rest()
        self._woken.set()
        self._thread.join()

    def give_back(self) -> None:
        """Give all slots back to the cluster."""
        for group in (*self._groups, *(group for group, _ in self._parting.values())):
            self._ray.util.remove_placement_group(group)

    # Looking

    def _begin(self) -> None:
        """Take what is free now, so that the study begins with it."""
        began = moved = time.monotonic()
        fresh: dict[Any, str] = {}
        while time.monotonic() - began < _START_S:
            if self._all:
                self._ask_for_all()
            before, fresh = len(fresh), self._look()
            if len(fresh) > before:
                moved = time.monotonic()
            if len(fresh) == (self._total() if self._all else len(self._groups)):
                break
            if fresh and time.monotonic() - moved > _STILL_S:
                break  # the others are taken, or still to come
            time.sleep(0.02)
        if self._all:
            self._forget_denied()
        if not fresh:
            kind = self.kind
            # Who takes what is free asks for nothing that an autoscaler could see.
            silent = f", and asks nobody for it: give {kind.lower()}s=… where nodes come on demand"
            warnings.warn(
                f"the cluster has no free {kind} now: the study waits for one{silent * self._all}.",
                PacelineWarning,
                stacklevel=2,
            )
        self._nests.begin(self._settled(fresh, strict=True))

    def _watch(self) -> None:
        while not self._closed:
            with self._lock:
                soon = self._all and None in self._groups.values()
            self._woken.wait(_SOON_S if soon else _LOOK_S)
            self._woken.clear()
            if self._closed:
                return
            try:
                self._once()
            except Exception as error:
                # The cluster's head does not answer; whoever still trains goes on meanwhile.
                warnings.warn(f"the cluster cannot be looked at: {error}", PacelineWarning, 2)

    def _once(self) -> None:
        with self._lock:
            fresh = self._look()
        settled = self._settled(fresh)
        if settled:
            self._nests.arrive(settled)
        with self._lock:
            held = (*self._groups.values(), *(held for _, held in self._parting.values()))
        self._hosts.leave({each.place.node for each in held if each is not None})
        if self._all:
            with self._lock:
                self._forget_denied()
                self._ask_for_all()

    def _ask_for_all(self) -> None:
        """Ask for what is free: never for more, or an autoscaler would never come to rest."""
        free = int(self._ray.available_resources().get(self.kind, 0))
        total = self._total()
        if (free, total) == self._vain and time.monotonic() < self._again_at:
            return  # as before: it lies in pieces on several nodes, or where we may not be
        self._asked = free, total
        pending = sum(held is None for held in self._groups.values())
        # What is told to be free may be what we have just taken.
        # Who has given back keeps one, wherever that is when nodes have gone.
        most = max(1, total - self._spared) - len(self._groups)
        self._ask(min(free - pending, most))

    def _total(self) -> int:
        alive = (node["Resources"] for node in self._ray.nodes() if node["Alive"])
        return int(sum(resources.get(self.kind, 0) for resources in alive))

    def _forget_denied(self) -> None:
        """Take back what was not free after all, or on a node that is left out."""
        table = self._ray.util.placement_group_table()
        vain = False
        for group in [group for group, held in self._groups.items() if held is None]:
            told = table.get(group.id.hex(), {})
            denied = told.get("stats", {}).get("scheduling_state") in _DENIED
            if denied or self._hosts.refused.keys() & told.get("bundles_to_node_id", {}).values():
                del self._groups[group]
                self._ray.util.remove_placement_group(group)
                vain = True
        if vain:
            # Less and less often, but not never: what was told to be free may have been free later.
            again = self._asked == self._vain
            self._wait_s = min(2 * self._wait_s, _AGAIN_MOST_S) if again else _AGAIN_S
            self._vain, self._again_at = self._asked, time.monotonic() + self._wait_s

    def _ask(self, slots: int) -> None:
        for _ in range(slots):
            self._groups[self._ray.util.placement_group([{self.kind: 1}])] = None

    def _look(self) -> dict[Any, str]:
        """Return the groups that have a place and no slot yet, by their nodes; forget the lost."""
        table = self._ray.util.placement_group_table()
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        fresh: dict[Any, str] = {}
        for group, held in self._groups.items():
            told = table.get(group.id.hex(), {})
            name = told["bundles_to_node_id"][0] if told.get("state") == "CREATED" else ""
            if held is not None and (held.place.node.lost or held.place.node.name != name):
                self._groups[group] = held = None
            if held is None and name in alive and name not in self._hosts.refused:
                fresh[group] = name
        return fresh

    # Settling

    def _settled(self, fresh: dict[Any, str], *, strict: bool = False) -> dict[SlotId, Place]:
        """Have a host on each node, and number its slots."""
        self._hosts.open([*fresh.values()], strict=strict)
        nodes = self._hosts.nodes
        resources = {node["NodeID"]: node["Resources"] for node in self._ray.nodes()}
        ready = [(name, group) for group, name in fresh.items() if name in nodes]
        # Neighbours get neighbouring numbers, so that wide trials stay together.
        ready.sort(key=lambda each: each[0])
        gpus = self._gpus([group for _, group in ready])
        services = self._services([nodes[name] for name, _ in ready], gpus)
        places: dict[SlotId, Place] = {}
        for (name, group), gpu, mps in zip(ready, gpus, services, strict=True):
            node, of = nodes[name], resources[name]
            share = max(1.0, of.get(self.kind, 1.0))
            size = gpu.bytes if gpu.name else int(of.get("memory", 0) / share)
            place = Place(node, gpu.name, of.get("CPU", 1.0) / share, size, mps)
            with self._lock:
                if group not in self._groups:
                    continue  # it was taken back meanwhile
                slot = next(self._slots)
                self._groups[group] = _Held(slot, place)
            places[slot] = place
        return places

    def _gpus(self, groups: Sequence[Any]) -> Sequence[Gpu]:
        """Return the GPU that each group holds; only Ray knows which it is."""
        if self.kind != "GPU":
            return [Gpu("", 0)] * len(groups)
        ray = self._ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        look = ray.remote(_gpu_here)
        asked = [
            look.options(
                num_cpus=0, num_gpus=1, scheduling_strategy=PlacementGroupSchedulingStrategy(group)
            ).remote()
            for group in groups
        ]
        found: list[Gpu] = ray.get(asked, timeout=OPEN_S)
        return found

    def _services(self, nodes: Sequence[Node], gpus: Sequence[Gpu]) -> Sequence[str]:
        """Return where trials that share each GPU find what lets them run at the same time."""
        if not self._shares:
            return [""] * len(gpus)
        names = [gpu.name for gpu in gpus]
        served = self._hosts.serve([*zip(nodes, names, strict=True)])
        for note in {each.note for each in served if each.note} - {self.mps}:
            self.mps = note
            word = f"trials that share a GPU take turns on a node: {note}."
            warnings.warn(word, PacelineWarning, stacklevel=2)
        self.mps = self.mps or ("up" if served else "")
        return [each.pipe for each in served]


def _kind(wanted: Ray, resources: dict[str, float]) -> str:
    """Return what a slot is made of, in Ray's word for it."""
    if wanted.cpus is not None or (wanted.gpus is None and not resources.get("GPU")):
        return "CPU"
    return "GPU"


def _gpu_here() -> Gpu:
    """Return the GPU that Ray has given to this task: its number, where NVML does not know it."""
    (number,) = imported().get_runtime_context().get_accelerator_ids()["GPU"]
    try:
        found = find_devices("gpu:1")
    except SpecError:
        return Gpu(str(number), 0)
    return Gpu(found.gpus[0], found.gpu_bytes[0])
