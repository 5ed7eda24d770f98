"""The worker pool of a Ray cluster: workers run on nodes, each under the agent of its node.

Knows which worker runs on which node and slot. Messages to an agent are collected and sent in one
call by `poll`; messages of agents arrive in Ray's threads and wake the driver through a pipe. Has
no thread of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from paceline.engines.process.providers import CheckpointPublished, PoolEvent, SlotsChanged
from paceline.engines.process.ray.node_files import NodeFilesClient
from paceline.engines.process.ray.node_protocol import (
    AssignAttempt,
    AttemptOutput,
    ChannelBytes,
    GangAddress,
    JoinGang,
    StartGang,
    StartWorkers,
    StopMps,
    decode_messages,
)
from paceline.engines.process.ray.nodes import RayChannel, close_nodes
from paceline.worker.forkserver_protocol import KillWorker, WorkerExited
from paceline.worker.wakeup_pipe import WakeupPipe

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from concurrent.futures import Future

    from paceline.core.values import SlotId
    from paceline.engines.process.ray.node_protocol import NodeMessage
    from paceline.engines.process.ray.nodes import RayNode, SlotPlacement

_NODE_GONE = "its node is gone"

# Posted from any thread; called by `poll` in the driver's, for the events that follow from it.
_Arrival: TypeAlias = Callable[[], Iterable[PoolEvent]]


class _PendingGang(NamedTuple):
    """A gang's processes on other nodes: they start when the leader's address is known."""

    key: str
    # The workers of each node, by rank, and the messages for them until then.
    nodes: dict[RayNode, dict[int, int]]
    messages: list[tuple[RayNode, NodeMessage]]


class RayWorkerPool:
    """Worker pool whose workers run on Ray nodes."""

    # An agent restarts its own fork server, so the pool as a whole is never lost.
    closed = False
    shares_process = False

    def __init__(self) -> None:
        self.placements: dict[SlotId, SlotPlacement] = {}
        self._nodes: set[RayNode] = set()
        self._arrivals: SimpleQueue[_Arrival] = SimpleQueue()
        self._wakeup = WakeupPipe()
        # By worker.
        self._next_worker = 0
        self._channels: dict[int, RayChannel] = {}
        self._worker_nodes: dict[int, RayNode] = {}
        self._worker_slots: dict[int, SlotId] = {}
        # Slots to give back, with the function to call when they are unused.
        self._retiring: dict[SlotId, Callable[[SlotId], None]] = {}
        # By the leader; the workers of these gangs that have not started.
        self._gangs: dict[int, _PendingGang] = {}
        self._pending_workers: dict[int, _PendingGang] = {}
        self._node_files: dict[RayNode, NodeFilesClient] = {}

    # Slots

    def add_initial_slots(self, placements: dict[SlotId, SlotPlacement]) -> None:
        """Add the slots the study begins with, without an event."""
        list(self._add_slots(placements))

    def add_slots(self, placements: dict[SlotId, SlotPlacement]) -> None:
        """Add slots; may be called from any thread."""
        self._post(partial(self._add_slots, placements))

    def retire_slots(self, slots: Collection[SlotId], on_unused: Callable[[SlotId], None]) -> None:
        """Remove slots, each when it has no worker and its node has no upload under way."""
        self._retiring |= dict.fromkeys(slots, on_unused)
        self._wakeup.wake()

    def node_files(self, node: RayNode) -> NodeFilesClient | None:
        """Return the files on a node's own disk; None: the node sees the study's folder."""
        if node.folder and node not in self._node_files:
            files = NodeFilesClient(node.folder, partial(self._send, node), self._post_published)
            self._node_files[node] = files
        return self._node_files.get(node)

    # The port

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when `poll` has something to return."""
        return self._wakeup.fileno()

    def prepare(self, count: int) -> None:
        """Do nothing: each agent has spare workers for its slots."""

    def acquire(self, slots: Sequence[SlotId]) -> list[tuple[int, RayChannel]]:
        """Return a worker for each slot; several are linked to each other as a gang."""
        first = self._next_worker
        self._next_worker += len(slots)
        workers = range(first, self._next_worker)
        self._worker_slots |= zip(workers, slots, strict=True)
        for worker in workers:
            self._channels[worker] = RayChannel(partial(self._write, worker))
        acquired = [(worker, self._channels[worker]) for worker in workers]
        if all(slot in self.placements for slot in slots):
            self._start_workers(workers, [self.placements[slot].node for slot in slots])
            self._wakeup.wake()
        else:
            # The slot was lost after the decision to use it.
            exits = [WorkerExited(worker, 0, _NODE_GONE) for worker in workers]
            self._post(lambda: map(self._remove_worker, exits))
        return acquired

    def discard(self, worker: int) -> None:
        """Do nothing: agents discard their own workers."""

    def kill(self, worker: int, number: int) -> None:
        """Send a signal to a worker and to every process it has started."""
        if worker in self._pending_workers:
            del self._pending_workers[worker]
            self._post(lambda: [self._remove_worker(WorkerExited(worker, -number))])
        elif worker in self._worker_nodes:
            self._send(self._worker_nodes[worker], KillWorker(worker, number))

    def poll(self) -> Sequence[PoolEvent]:
        """Send the collected messages, and return what has arrived."""
        self._wakeup.clear()
        self._remove_unused_slots()
        self.flush()
        events: list[PoolEvent] = []
        while True:
            try:
                arrival = self._arrivals.get_nowait()
            except Empty:
                return events
            if self._retiring:
                self._wakeup.wake()  # look again after these events were handled
            events += arrival()

    def flush(self) -> list[Any]:
        """Send the collected messages; return the references of the calls."""
        calls = [node.flush() for node in self._nodes]
        return [call for call in calls if call is not None]

    def restart(self) -> None:
        """Do nothing: an agent restarts its own fork server."""

    def close(self, timeout_s: float) -> None:
        """End all workers on all nodes."""
        self.poll()  # nodes that have just come have an agent, too
        self._wakeup.close()
        close_nodes([node for node in self._nodes if not node.is_lost], timeout_s)

    # Sending

    def _write(self, worker: int, body: bytes) -> None:
        node = self._worker_nodes.get(worker)
        if node is not None:
            self._send(node, ChannelBytes(worker, body))

    def _send(self, node: RayNode, message: NodeMessage) -> None:
        if isinstance(message, ChannelBytes | AssignAttempt):
            gang = self._pending_workers.get(message.worker)
            if gang is not None:
                gang.messages.append((node, message))
                return
        node.send(message)
        self._wakeup.wake()

    def _start_workers(self, workers: Sequence[int], nodes: Sequence[RayNode]) -> None:
        for worker, node in zip(workers, nodes, strict=True):
            self._worker_nodes[worker] = node
            node.workers.add(worker)
        leader = nodes[0]
        if all(node is leader for node in nodes):
            leader.send(StartWorkers(tuple(workers)))
            return
        ranks: dict[RayNode, dict[int, int]] = {}
        for rank, (worker, node) in enumerate(zip(workers, nodes, strict=True)):
            ranks.setdefault(node, {})[rank] = worker
        key = secrets.token_hex(16)
        local = ranks.pop(leader)
        gang = self._gangs[workers[0]] = _PendingGang(key, ranks, [])
        self._pending_workers |= {worker: gang for own in ranks.values() for worker in own.values()}
        leader.send(StartGang(workers[0], local, len(workers), key))

    # Receiving

    def _post(self, arrival: _Arrival) -> None:
        self._arrivals.put(arrival)
        self._wakeup.wake()

    def _post_published(self, published: CheckpointPublished) -> None:
        self._post(lambda: [published])

    def _on_messages(self, node: RayNode, messages: Future[bytes]) -> None:
        """Handle an agent's batch of messages, in one of Ray's threads."""
        if messages.exception() is not None:
            self._post(partial(self._lose_node, node))
        else:
            self._post(partial(self._read_messages, node, messages.result()))

    def _read_messages(self, node: RayNode, body: bytes) -> Iterator[PoolEvent]:
        node.listen(partial(self._on_messages, node))
        for message in decode_messages(body):
            match message:
                case ChannelBytes(worker=worker, body=part) if worker in self._channels:
                    for each in self._channels[worker].feed(part):
                        yield worker, each
                case WorkerExited():
                    yield self._remove_worker(message)
                case CheckpointPublished():
                    self._node_files[node].confirm_published(message)
                    yield message
                case AttemptOutput():
                    self._node_files[node].append_output(message)
                case GangAddress() if message.gang in self._gangs:
                    self._join_gang(message)

    def _join_gang(self, address: GangAddress) -> None:
        """Start a gang's processes on the other nodes: the leader's address is known."""
        gang = self._gangs.pop(address.gang)
        for node, workers in gang.nodes.items():
            # Without those that were killed meanwhile.
            own = {rank: each for rank, each in workers.items() if each in self._pending_workers}
            node.send(JoinGang(own, address.host, address.port, gang.key))
            for worker in own.values():
                del self._pending_workers[worker]
        for node, message in gang.messages:
            node.send(message)
        self._wakeup.wake()

    def _remove_worker(self, exited: WorkerExited) -> WorkerExited:
        worker = exited.worker
        channel = self._channels.pop(worker, None)
        if channel is not None:
            channel.close()
        self._pending_workers.pop(worker, None)
        self._worker_slots.pop(worker, None)
        node = self._worker_nodes.pop(worker, None)
        if node is not None:
            node.workers.discard(worker)
        return exited

    def _add_slots(self, placements: dict[SlotId, SlotPlacement]) -> Iterator[PoolEvent]:
        self.placements |= placements
        for node in {placement.node for placement in placements.values()} - self._nodes:
            self._nodes.add(node)
            node.listen(partial(self._on_messages, node))
        yield SlotsChanged(came=tuple(placements))

    def _remove_unused_slots(self) -> None:
        used = set(self._worker_slots.values())
        for slot in [slot for slot in self._retiring if slot not in used]:
            placement = self.placements.get(slot)
            files = None if placement is None else self._node_files.get(placement.node)
            if files is None or not files.is_uploading:
                if placement is not None:
                    del self.placements[slot]
                    if placement.mps:
                        placement.node.send(StopMps(placement.gpu))
                self._retiring.pop(slot)(slot)

    def _lose_node(self, node: RayNode) -> Iterator[PoolEvent]:
        """Remove a node whose agent does not answer, with its slots and workers."""
        node.is_lost = True
        self._nodes.discard(node)
        if node in self._node_files:
            self._node_files[node].mark_lost()
        gone = tuple(slot for slot, each in self.placements.items() if each.node is node)
        for slot in gone:
            del self.placements[slot]
        if gone:
            # Before the exits, or the attempts would be launched there again.
            yield SlotsChanged(gone=gone, why=_NODE_GONE)
        for worker in sorted(node.workers):
            yield self._remove_worker(WorkerExited(worker, 0, _NODE_GONE))
