"""The slots a study holds on a Ray cluster: one placement group for each.

Knows Ray's placement groups and nodes. A thread watches them and adds slots to the worker pool. It
makes every call to the cluster, since a call waits while the cluster's head does not answer. A
group that Ray cannot place yet stays requested, where the autoscaler sees it. Does not know trials.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import deque
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.core.errors import PacelineWarning, SpecError
from paceline.engines.process.local.devices import Gpu, find_devices
from paceline.engines.process.ray.config import import_ray
from paceline.engines.process.ray.nodes import START_S, SlotPlacement

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from paceline.core.values import SlotId
    from paceline.engines.process.ray.config import Ray
    from paceline.engines.process.ray.nodes import NodeAgents, RayNode
    from paceline.engines.process.ray.worker_pool import RayWorkerPool

# How often the cluster is checked for new slots. A lost node is known at once, from its agent.
_CHECK_S = 1.0
# The same while a request for a free slot is open: an autoscaler shall not see it for long.
_SOON_S = 0.2
# How long a slot must be free before a running study requests it. Ray's count is up to a second
# old, and Ray retries the pending requests of other programs within a second.
_STABLE_S = 2.5
# When a denied request is repeated, at first and at most: each time an autoscaler may see it.
_RETRY_S, _MAX_RETRY_S = 2.0, 300.0
# Ray's scheduling states of a group without a place.
_DENIED = ("NO_RESOURCES", "INFEASIBLE")
# How long a study waits at its start for its first slot.
_FIRST_SLOT_S = 3.0
# How long it waits for more after that: Ray retries a denied group within a second, and denies at
# first what another study has just given back.
_MORE_SLOTS_S = 1.5


class _HeldSlot(NamedTuple):
    slot: SlotId
    placement: SlotPlacement


class PlacementPool:
    """Requests slots and holds them."""

    def __init__(self, cluster: Ray, pool: RayWorkerPool, agents: NodeAgents, *, mps: bool) -> None:
        self._ray = import_ray()
        self._pool = pool
        self._agents = agents
        self.kind = _choose_kind(cluster, self._ray.cluster_resources())
        # Whether trials share GPUs by MPS; and its state: "up", or why not.
        self._uses_mps = mps and self.kind == "GPU"
        self.mps = ""
        # Without a number: take all free slots, except for as many as were given back.
        self._takes_all = cluster.count is None
        self._given_back = 0
        # The numbers of free slots and of all at the last request and at the last denied one; when
        # to repeat the denied one, and how long that waits.
        self._requested_at = self._denied_at = (0, 0)
        # The numbers of free slots at the last checks, with their times.
        self._free_counts: deque[tuple[float, int]] = deque()
        self._retry_at = self._retry_s = 0.0
        # Placement groups; None: not placed, or not assigned to a slot yet.
        self._groups: dict[Any, _HeldSlot | None] = {}
        # Slots to give back when they have no worker any more.
        self._retiring: dict[SlotId, tuple[Any, _HeldSlot]] = {}
        self._slots = count()
        # What the driver's thread asks for; done by the thread that watches.
        self._orders: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._wakeup = threading.Event()
        self._closed = False
        self._request(cluster.count or 0)
        try:
            self._acquire_first()
        except BaseException:
            self._agents.close_all()
            self.release_all()
            raise
        self._thread = threading.Thread(target=self._watch, name="paceline-placement", daemon=True)
        self._thread.start()

    def request(self, slots: int) -> None:
        """Request further slots; the worker pool reports them when they are placed."""
        self._order(partial(self._request_more, slots))

    def retire(self, slots: Collection[SlotId]) -> None:
        """Stop counting on these slots, and withdraw open requests; `release` follows for each."""
        self._order(partial(self._retire, slots))

    def release(self, slot: SlotId) -> None:
        """Give a retired slot back to the cluster: it has no worker any more."""
        self._order(partial(self._release, slot))

    def stop_watching(self, timeout_s: float) -> None:
        """End the thread that watches the cluster; do not wait for it longer than this."""
        self._closed = True
        self._agents.stop_waiting()
        self._wakeup.set()
        self._thread.join(timeout_s)

    def release_all(self) -> None:
        """Give all slots back to the cluster."""
        for group in (*self._groups, *(group for group, _ in self._retiring.values())):
            self._ray.util.remove_placement_group(group)

    # Orders

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.put(order)
        self._wakeup.set()

    def _run_orders(self) -> None:
        while True:
            try:
                order = self._orders.get_nowait()
            except Empty:
                return
            order()

    def _request_more(self, slots: int) -> None:
        self._given_back = max(0, self._given_back - slots)
        self._request(slots)

    def _retire(self, slots: Collection[SlotId]) -> None:
        for group, held in list(self._groups.items()):
            if held is None:
                # An open request would replace the slot that is given back.
                del self._groups[group]
                self._ray.util.remove_placement_group(group)
            elif held.slot in slots:
                del self._groups[group]
                self._given_back += 1
                self._retiring[held.slot] = group, held

    def _release(self, slot: SlotId) -> None:
        retired = self._retiring.pop(slot, None)
        if retired is not None:  # else it was lost with its node
            self._ray.util.remove_placement_group(retired[0])

    # Watching

    def _acquire_first(self) -> None:
        """Take the slots that are free now, so that the study begins with them."""
        began = changed = time.monotonic()
        placed: dict[Any, str] = {}
        while time.monotonic() - began < _FIRST_SLOT_S:
            if self._takes_all:
                self._request_all_free(at_once=True)
            before, placed = len(placed), self._find_placed()
            if len(placed) > before:
                changed = time.monotonic()
            if len(placed) == (self._count_all() if self._takes_all else len(self._groups)):
                break
            if placed and time.monotonic() - changed > _MORE_SLOTS_S:
                break  # the others are taken, or still to come
            time.sleep(0.02)
        if self._takes_all:
            self._withdraw_denied()
        if not placed:
            self._warn_of_no_slot()
        self._pool.add_initial_slots(self._assign_slots(placed, strict=True))

    def _warn_of_no_slot(self) -> None:
        hint = ""
        if self._takes_all:
            hint = f" (it requests none from an autoscaler; give {self.kind.lower()}s=… for that)"
        warnings.warn(
            f"the cluster has no free {self.kind} now: the study waits for one{hint}.",
            PacelineWarning,
            stacklevel=3,
        )

    def _watch(self) -> None:
        while not self._closed:
            soon = self._takes_all and None in self._groups.values()
            self._wakeup.wait(_SOON_S if soon else _CHECK_S)
            self._wakeup.clear()
            if self._closed:
                return
            try:
                self._update()
            except Exception as error:
                # The cluster's head does not answer; running attempts continue meanwhile.
                if self._closed:
                    return
                warnings.warn(f"the cluster does not answer: {error}", PacelineWarning, 2)

    def _update(self) -> None:
        self._run_orders()
        self._agents.kill_silent()
        placements = self._assign_slots(self._find_placed())
        if placements:
            self._pool.add_slots(placements)
        held = (*self._groups.values(), *(held for _, held in self._retiring.values()))
        self._agents.close_idle({each.placement.node for each in held if each is not None})
        if self._takes_all:
            self._withdraw_denied()
            self._request_all_free()

    # Requests

    def _request(self, slots: int) -> None:
        for _ in range(slots):
            self._groups[self._ray.util.placement_group([{self.kind: 1}])] = None

    def _request_all_free(self, *, at_once: bool = False) -> None:
        """Request the free slots, never more: an autoscaler would start nodes without end."""
        stable = self._count_free()
        free = self._free_counts[-1][1] if at_once else stable
        total = self._count_all()
        if (free, total) == self._denied_at and time.monotonic() < self._retry_at:
            return  # unchanged: free in fractions on several nodes, or on a refused node
        self._requested_at = free, total
        pending = sum(held is None for held in self._groups.values())
        # A study that has given slots back keeps one, on whatever node, when nodes are lost.
        limit = max(1, total - self._given_back) - len(self._groups)
        wanted = min(free - pending, limit)
        if wanted > 0:
            self._free_counts.clear()  # they may count the slots that are requested now
            self._request(wanted)

    def _count_free(self) -> int:
        """Return how many slots were free at all checks of the last seconds."""
        now = time.monotonic()
        counts = self._free_counts
        counts.append((now, int(self._ray.available_resources().get(self.kind, 0))))
        while len(counts) > 1 and counts[1][0] <= now - _STABLE_S:
            counts.popleft()
        is_stable = counts[0][0] <= now - _STABLE_S
        return min(free for _, free in counts) if is_stable else 0

    def _count_all(self) -> int:
        alive = (node["Resources"] for node in self._ray.nodes() if node["Alive"])
        return int(sum(resources.get(self.kind, 0) for resources in alive))

    def _withdraw_denied(self) -> None:
        """Withdraw requests that were denied, or were placed on a refused node."""
        table = self._ray.util.placement_group_table()
        any_denied = False
        for group in [group for group, held in self._groups.items() if held is None]:
            entry = table.get(group.id.hex(), {})
            is_denied = entry.get("stats", {}).get("scheduling_state") in _DENIED
            nodes = entry.get("bundles_to_node_id", {}).values()
            if is_denied or self._agents.refused.keys() & nodes:
                del self._groups[group]
                self._ray.util.remove_placement_group(group)
                any_denied = True
        if any_denied:
            # Less and less often, but not never: the slot may have become free since.
            again = self._requested_at == self._denied_at
            self._retry_s = min(2 * self._retry_s, _MAX_RETRY_S) if again else _RETRY_S
            self._denied_at, self._retry_at = self._requested_at, time.monotonic() + self._retry_s

    def _find_placed(self) -> dict[Any, str]:
        """Return the node of each placed group without a slot; forget the slots of lost nodes."""
        table = self._ray.util.placement_group_table()
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        placed: dict[Any, str] = {}
        for group, held in self._groups.items():
            entry = table.get(group.id.hex(), {})
            name = entry["bundles_to_node_id"][0] if entry.get("state") == "CREATED" else ""
            if held is not None:
                node = held.placement.node
                if node.is_lost or node.name != name:
                    self._groups[group] = held = None
            if held is None and name in alive and name not in self._agents.refused:
                placed[group] = name
        return placed

    # Slots

    def _assign_slots(
        self, placed: dict[Any, str], *, strict: bool = False
    ) -> dict[SlotId, SlotPlacement]:
        """Start an agent on each node, and number its slots."""
        self._agents.start([*placed.values()], strict=strict)
        nodes = self._agents.nodes
        resources = {node["NodeID"]: node["Resources"] for node in self._ray.nodes()}
        ready = [(name, group) for group, name in placed.items() if name in nodes]
        # Slots of one node get neighbouring numbers, so that wide trials stay on one node.
        ready.sort(key=lambda each: each[0])
        gpus = self._find_gpus([group for _, group in ready])
        pipes = self._start_mps([nodes[name] for name, _ in ready], gpus)
        self._run_orders()  # the agents may have taken long to start
        placements: dict[SlotId, SlotPlacement] = {}
        for (name, group), gpu, pipe in zip(ready, gpus, pipes, strict=True):
            node_resources = resources[name]
            slots = max(1.0, node_resources.get(self.kind, 1.0))
            size = gpu.bytes if gpu.name else int(node_resources.get("memory", 0) / slots)
            cores = node_resources.get("CPU", 1.0) / slots
            placement = SlotPlacement(nodes[name], gpu.name, cores, size, pipe)
            if group not in self._groups:
                continue  # withdrawn meanwhile
            slot = next(self._slots)
            self._groups[group] = _HeldSlot(slot, placement)
            placements[slot] = placement
        return placements

    def _find_gpus(self, groups: Sequence[Any]) -> Sequence[Gpu]:
        """Return the GPU of each group, which only a task in the group can find out."""
        if self.kind != "GPU":
            return [Gpu("", 0)] * len(groups)
        ray = self._ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        find = ray.remote(_find_own_gpu)
        calls = [
            find.options(
                num_cpus=0, num_gpus=1, scheduling_strategy=PlacementGroupSchedulingStrategy(group)
            ).remote()
            for group in groups
        ]
        gpus: list[Gpu] = ray.get(calls, timeout=START_S)
        return gpus

    def _start_mps(self, nodes: Sequence[RayNode], gpus: Sequence[Gpu]) -> Sequence[str]:
        """Return the pipe folder of each GPU's MPS service; empty without a service."""
        if not self._uses_mps:
            return [""] * len(gpus)
        names = [gpu.name for gpu in gpus]
        endpoints = self._agents.start_mps([*zip(nodes, names, strict=True)])
        for note in {each.note for each in endpoints if each.note} - {self.mps}:
            self.mps = note
            warnings.warn(
                f"trials that share a GPU take turns on a node: {note}.",
                PacelineWarning,
                stacklevel=2,
            )
        self.mps = self.mps or ("up" if endpoints else "")
        return [each.pipe for each in endpoints]


def _choose_kind(cluster: Ray, resources: dict[str, float]) -> str:
    """Return the resource of a slot, by Ray's name."""
    if cluster.cpus is not None or (cluster.gpus is None and not resources.get("GPU")):
        return "CPU"
    return "GPU"


def _find_own_gpu() -> Gpu:
    """Return the GPU of this task: its number where NVML does not know it."""
    (number,) = import_ray().get_runtime_context().get_accelerator_ids()["GPU"]
    try:
        devices = find_devices("gpu:1")
    except SpecError:
        return Gpu(str(number), 0)
    return Gpu(devices.gpus[0], devices.gpu_bytes[0])
