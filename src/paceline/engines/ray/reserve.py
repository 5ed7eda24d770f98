"""The slots a study holds on a Ray cluster: one placement group for each, and a host on each node.

Knows Ray's placement groups and nodes. A thread looks at them, since the cluster's answers may take
long, and tells what has come and gone. A group that Ray cannot place yet stays asked for, where the
autoscaler sees it. Knows nothing of trials.
"""

from __future__ import annotations

import threading
import time
import warnings
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.core.errors import PacelineWarning, SpecError
from paceline.engines.local.devices import find_devices
from paceline.engines.ray.afar import same_storage
from paceline.engines.ray.host import Host
from paceline.engines.ray.nests import Node, Place
from paceline.engines.ray.wanted import imported

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from paceline.core.ports import Storage
    from paceline.core.values import SlotId
    from paceline.engines.local.nest import Packed
    from paceline.engines.ray.home import Ways
    from paceline.engines.ray.host import Opening
    from paceline.engines.ray.nests import Nests
    from paceline.engines.ray.wanted import Ray

# How often the cluster is looked at. What dies is known at once; this is for what comes.
_LOOK_S = 1.0
# The same, while something is asked for that is free: an autoscaler shall not see it for long.
_SOON_S = 0.2
# Ray's words for what it has found no place for.
_DENIED = ("NO_RESOURCES", "INFEASIBLE")
# How long a study waits at its start for a first slot.
_START_S = 3.0
# How long it waits for more, once it has some.
_STILL_S = 0.5
# How long a node may take to load the training function.
_OPEN_S = 120.0
# How long a host may take to end.
_END_S = 5.0


class _Held(NamedTuple):
    slot: SlotId
    node: Node


class Reserve:
    """Asks for slots and keeps them."""

    def __init__(
        self, wanted: Ray, nests: Nests, train: Packed, ways: Ways, storage: Storage | None
    ) -> None:
        self._ray = imported()
        self._storage = storage
        self._nests = nests
        self._train = train
        self._ways = ways
        self.kind = _kind(wanted, self._ray.cluster_resources())
        # None: whatever is free, except for what was given back.
        self._all = wanted.count is None
        self._spared = 0
        # What was free, of what, when it was last asked for, and when that was denied.
        self._asked = self._vain = (0, 0)
        self._groups: dict[Any, _Held | None] = {}
        # What is no longer counted on, and goes back when nobody works there any more.
        self._parting: dict[SlotId, tuple[Any, _Held]] = {}
        self._slots = count()
        # Hosts by their nodes' names, and why nodes cannot have one.
        self._nodes: dict[str, Node] = {}
        self._refused: dict[str, str] = {}
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._closed = False
        self._ask(wanted.count or 0)
        try:
            self._begin()
        except BaseException:
            if self._nodes:
                self._dismiss(*self._nodes.values())
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
            self._ray.util.remove_placement_group(parted[0])
            self._woken.set()

    def rest(self) -> None:
        """Look no more."""
        self._closed = True
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
        self._leave()
        if self._all:
            with self._lock:
                self._forget_denied()
                self._ask_for_all()

    def _ask_for_all(self) -> None:
        """Ask for what is free: never for more, or an autoscaler would never come to rest."""
        free = int(self._ray.available_resources().get(self.kind, 0))
        total = self._total()
        if (free, total) == self._vain:
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
        for group in [group for group, held in self._groups.items() if held is None]:
            told = table.get(group.id.hex(), {})
            denied = told.get("stats", {}).get("scheduling_state") in _DENIED
            if denied or self._refused.keys() & told.get("bundles_to_node_id", {}).values():
                del self._groups[group]
                self._ray.util.remove_placement_group(group)
                self._vain = self._asked

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
            if held is not None and (held.node.lost or held.node.name != name):
                self._groups[group] = held = None
            if held is None and name in alive and name not in self._refused:
                fresh[group] = name
        return fresh

    # Settling

    def _settled(self, fresh: dict[Any, str], *, strict: bool = False) -> dict[SlotId, Place]:
        """Open a host on each node where there is none, and number its slots."""
        self._open(fresh, strict)
        resources = {node["NodeID"]: node["Resources"] for node in self._ray.nodes()}
        ready = [(name, group) for group, name in fresh.items() if name in self._nodes]
        # Neighbours get neighbouring numbers, so that wide trials stay together.
        ready.sort(key=lambda each: each[0])
        gpus = self._gpus(group for _, group in ready)
        places: dict[SlotId, Place] = {}
        for (name, group), (gpu, memory) in zip(ready, gpus, strict=True):
            node, of = self._nodes[name], resources[name]
            share = max(1.0, of.get(self.kind, 1.0))
            size = memory if gpu else int(of.get("memory", 0) / share)
            with self._lock:
                if group not in self._groups:
                    continue  # it was taken back meanwhile
                slot = next(self._slots)
                self._groups[group] = _Held(slot, node)
            places[slot] = Place(node, gpu, of.get("CPU", 1.0) / share, size)
        return places

    def _open(self, fresh: dict[Any, str], strict: bool) -> None:
        """Have hosts made where there are none; on the first nodes none may fail."""
        ray = self._ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        opening = {}
        for name in sorted(set(fresh.values())):
            if name in self._nodes and not self._nodes[name].lost:
                continue
            self._nodes.pop(name, None)
            here = NodeAffinitySchedulingStrategy(name, soft=False)
            host = ray.remote(Host).options(num_cpus=0, scheduling_strategy=here).remote()
            spares = sum(each == name for each in fresh.values())
            opening[name] = (host, host.open.remote(self._train, self._ways, spares))
        opened = self._awaited([opened for _, opened in opening.values()])
        for name, (host, answer) in opening.items():
            if answer not in opened:
                ray.kill(host)
                continue
            try:
                told = ray.get(answer)
            except ray.exceptions.RayError:
                continue  # the node went again: the next look tells
            node = Node(name, host, told.folder)
            wrong = told.wrong or self._astray(told)
            if not wrong:
                self._nodes[name] = node
                continue
            self._refused[name] = wrong
            if told.wrong:
                node.end(ray.kill)
            else:
                self._dismiss(node)
            if not strict:
                warnings.warn(f"a node is left out: {wrong}.", PacelineWarning, stacklevel=2)
        if strict and self._refused:
            raise SpecError(f"{next(iter(self._refused.values()))}.")

    def _leave(self) -> None:
        """End hosts where no slot is left: an autoscaler ends no node on which somebody lives."""
        with self._lock:
            parting = [held for _, held in self._parting.values()]
            here = {held.node for held in (*self._groups.values(), *parting) if held is not None}
        idle = [node for node in self._nodes.values() if node not in here]
        if idle:
            self._nodes = {name: node for name, node in self._nodes.items() if node in here}
            self._dismiss(*idle)

    def _dismiss(self, *nodes: Node) -> None:
        """End hosts that are not needed after all, and what they have begun on their nodes."""
        self._ray.wait([node.close(0.0) for node in nodes], num_returns=len(nodes), timeout=_END_S)
        for node in nodes:
            node.end(self._ray.kill)

    def _astray(self, opening: Opening) -> str:
        """Say where what a node puts into the storage is not found by us; empty: it is."""
        if self._storage is None or not opening.sign or same_storage(self._storage, opening.sign):
            return ""
        return (
            f"a node of the cluster has another {self._storage.url} than the driver: give "
            "checkpoints=… in a storage that all nodes reach"
        )

    def _awaited(self, answers: list[Any]) -> list[Any]:
        """Return the answers that have come by now; a study that ends waits for none."""
        until = time.monotonic() + _OPEN_S
        come: list[Any] = []
        while len(come) < len(answers) and time.monotonic() < until and not self._closed:
            come, _ = self._ray.wait(answers, num_returns=len(answers), timeout=0.1)
        return come

    def _gpus(self, groups: Iterable[Any]) -> list[tuple[str, int]]:
        """Return the GPU that each group holds, and its memory; only Ray knows which it is."""
        if self.kind != "GPU":
            return [("", 0) for _ in groups]
        ray = self._ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        look = ray.remote(_gpu_here)
        asked = [
            look.options(
                num_cpus=0, num_gpus=1, scheduling_strategy=PlacementGroupSchedulingStrategy(group)
            ).remote()
            for group in groups
        ]
        found: list[tuple[str, int]] = ray.get(asked, timeout=_OPEN_S)
        return found


def _kind(wanted: Ray, resources: dict[str, float]) -> str:
    """Return what a slot is made of, in Ray's word for it."""
    if wanted.cpus is not None or (wanted.gpus is None and not resources.get("GPU")):
        return "CPU"
    return "GPU"


def _gpu_here() -> tuple[str, int]:
    """Return the GPU that Ray has given to this task, and its memory; 0: nobody knows."""
    (number,) = imported().get_runtime_context().get_accelerator_ids()["GPU"]
    try:
        return str(number), find_devices("gpu:1").gpu_bytes[0]
    except SpecError:
        return str(number), 0
