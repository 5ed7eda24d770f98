"""The agent on a node: an actor that runs a fork server and relays messages of its workers.

Knows the local worker pool and the messages of the driver. The training function runs in workers
that the fork server forks, as on a single machine: an agent survives the crash of a worker and is
ready for the next one. When the agent ends, for whatever reason, its workers end too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import sys
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from paceline.core.errors import SpecError
from paceline.engines.process.local.mps import Mps
from paceline.engines.process.local.worker_pool import ForkServerPool
from paceline.engines.process.ray.config import import_ray
from paceline.engines.process.ray.node_files import open_node_files
from paceline.engines.process.ray.node_protocol import (
    AssignAttempt,
    ChannelBytes,
    ClearAttempt,
    DropCheckpoint,
    GangAddress,
    JoinGang,
    PublishCheckpoint,
    StartGang,
    StartWorkers,
    StopMps,
    decode_messages,
    encode_messages,
)
from paceline.worker.forkserver_protocol import KillWorker, WorkerExited
from paceline.worker.protocol import CheckpointFetched, encode_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.engines.process.local.worker_pool import PackedFunction
    from paceline.engines.process.ray.node_files import NodeFileStore, NodePaths
    from paceline.engines.process.ray.node_protocol import NodeMessage
    from paceline.worker.protocol import Channel

# How long a process of a gang tries to connect to its leader.
_CONNECT_S = 10.0
_KILLED = "all workers of its node were killed"
# How often an agent looks whether its node is still part of the cluster.
_PARENT_S = 1.0


class AgentStart(NamedTuple):
    """The result of starting an agent: an error, or the node's own folder if it has one."""

    error: str = ""
    folder: str = ""
    # The object that the node has put into the storage, by which the driver recognizes it.
    probe: str = ""


class MpsEndpoint(NamedTuple):
    """The pipe folder of an MPS service; where there is no service, the note says why."""

    pipe: str
    note: str


class NodeAgent:
    """The agent of one study on one node; made an actor."""

    def __init__(self) -> None:
        # By the driver's number of a worker: the local pool's number, and the channel.
        self._workers: dict[int, tuple[int, Channel]] = {}
        # The driver's number, by the local pool's.
        self._numbers: dict[int, int] = {}
        # Gangs that wait for processes of other nodes, and the bytes for their workers until then.
        self._gangs: dict[int, _GangListener] = {}
        self._pending_bytes: dict[int, bytearray] = {}
        # Messages for the driver, and its call that waits for one.
        self._outbox: list[NodeMessage] = []
        self._waiting_call: asyncio.Future[None] | None = None
        # Calls may overtake each other: calls that came too early wait here.
        self._next_call = 0
        self._early_calls: dict[int, bytes] = {}
        # MPS services, by GPU, and the tasks that stop them.
        self._mps: dict[str, Mps] = {}
        self._stopping_mps: set[asyncio.Task[None]] = set()
        # On a node that does not see the study's folder: its own, and the workers' attempts.
        self._files: NodeFileStore | None = None
        self._attempts: dict[int, int] = {}

    async def start(self, train: PackedFunction, paths: NodePaths, spares: int) -> AgentStart:
        """Load the training function and start spare workers; return what prevents it."""
        try:
            started = await asyncio.to_thread(self._open_files, paths)
            self._start_pool(train, paths.cwd)
        except SpecError as error:
            if self._files is not None:
                self._files.close()
            return AgentStart(error=str(error))
        self._spares = spares
        self._watch_pool()
        self._parent_watch = asyncio.ensure_future(_end_with_parent())
        return started

    def _open_files(self, paths: NodePaths) -> AgentStart:
        node = import_ray().get_runtime_context().get_node_id()
        self._files = open_node_files(paths, node)
        if self._files is None:
            return AgentStart()
        probe = f"sign-of-{node}"
        self._files.write_probe(probe)
        return AgentStart(folder=str(self._files.folder), probe=probe)

    def _start_pool(self, train: PackedFunction, cwd: str | None) -> None:
        if cwd is not None and os.path.isdir(cwd):
            os.chdir(cwd)
        # Modules of the runtime environment go before those of the driver's search path.
        path = tuple(dict.fromkeys([*sys.path, *train.path]))
        self._pool = ForkServerPool(train._replace(path=path), {})

    async def start_mps(self, gpu: str) -> MpsEndpoint:
        """Start an MPS service for one GPU: GPUs come and go one by one."""
        service = self._mps[gpu] = await asyncio.to_thread(Mps, (gpu,))
        return MpsEndpoint(service.pipe, service.note)

    async def answer(self) -> None:
        """Return, which shows the driver that this process runs."""

    async def receive(self, call: int, body: bytes) -> None:
        """Handle the driver's messages, in the order of its calls."""
        self._early_calls[call] = body
        while (ready := self._early_calls.pop(self._next_call, None)) is not None:
            self._next_call += 1
            for message in decode_messages(ready):
                self._handle(message)

    async def next_messages(self) -> bytes:
        """Return the messages for the driver as soon as there are any."""
        if not self._outbox:
            self._waiting_call = asyncio.get_running_loop().create_future()
            await self._waiting_call
        messages, self._outbox = self._outbox, []
        return encode_messages(messages)

    async def close(self, timeout_s: float) -> None:
        """End all workers and the fork server, and delete the node's own files."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pool.fileno())
        for _, channel in self._workers.values():
            loop.remove_reader(channel.fileno())
        self._pool.close(timeout_s)
        for gpu in list(self._mps):
            self._stop_mps(gpu)
        await asyncio.gather(*self._stopping_mps)
        if self._files is not None:
            self._files.close()

    def _send(self, message: NodeMessage) -> None:
        self._outbox.append(message)
        if self._waiting_call is not None and not self._waiting_call.done():
            self._waiting_call.set_result(None)

    def _handle(self, message: NodeMessage) -> None:
        match message:
            case ChannelBytes(worker=worker, body=body):
                if worker in self._workers:
                    self._workers[worker][1].write(body)
                elif worker in self._pending_bytes:
                    self._pending_bytes[worker] += body
            case StartWorkers(workers=workers):
                acquired = self._pool.acquire(range(len(workers)))
                for worker, started in zip(workers, acquired, strict=True):
                    self._add_worker(worker, started)
                if len(workers) == 1:
                    self._pool.prepare(1)  # in place of the worker that was prepared for it
            case KillWorker(worker=worker, signal=number):
                if worker in self._workers:
                    self._pool.kill(self._workers[worker][0], number)
                elif worker in self._pending_bytes:
                    self._abandon_gang(worker)
            case StartGang():
                self._start_gang(message)
            case JoinGang():
                self._join_gang(message)
            case StopMps(gpu=gpu):
                self._stop_mps(gpu)
            case AssignAttempt(worker=worker, attempt=attempt, source=source):
                assert self._files is not None
                if worker not in self._workers and worker not in self._pending_bytes:
                    return  # it could not connect to its leader
                self._attempts[worker] = attempt
                if source is not None:
                    self._files.fetch(attempt, source, partial(self._on_fetched, worker))
            case PublishCheckpoint() | DropCheckpoint() | ClearAttempt():
                assert self._files is not None
                self._files.handle(message, self._send)

    def _stop_mps(self, gpu: str) -> None:
        service = self._mps.pop(gpu, None)
        if service is not None:
            stopping = asyncio.ensure_future(asyncio.to_thread(service.close))
            self._stopping_mps.add(stopping)
            stopping.add_done_callback(self._stopping_mps.discard)

    # Workers

    def _add_worker(self, worker: int, started: tuple[int, Channel]) -> None:
        number, channel = started
        self._workers[worker] = started
        self._numbers[number] = worker
        asyncio.get_running_loop().add_reader(channel.fileno(), self._relay, worker)
        if worker in self._pending_bytes:
            channel.write(bytes(self._pending_bytes.pop(worker)))

    def _relay(self, worker: int) -> None:
        """Relay the bytes of a worker's channel to the driver."""
        channel = self._workers[worker][1]
        body = channel.read()
        if body:
            self._send(ChannelBytes(worker, body))
        else:
            asyncio.get_running_loop().remove_reader(channel.fileno())

    def _on_fetched(self, worker: int, note: str) -> None:
        """Tell a worker that its checkpoint is here, or why it will not be."""
        self._handle(ChannelBytes(worker, encode_frame(CheckpointFetched(note=note))))

    def _remove_worker(self, worker: int, status: int, lost: str = "") -> None:
        number, channel = self._workers.pop(worker)
        self._numbers.pop(number, None)
        asyncio.get_running_loop().remove_reader(channel.fileno())
        # Read what it wrote before its exit. Without waiting: a process that it has started may run
        # for a moment longer and hold the channel open.
        while select.select([channel], [], [], 0)[0] and (body := channel.read()):
            self._send(ChannelBytes(worker, body))
        channel.close()
        attempt = self._attempts.pop(worker, None)
        if attempt is not None and self._files is not None:
            self._send(self._files.read_output(attempt))
        self._send(WorkerExited(worker, status, lost))

    def _watch_pool(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pool.fileno(), self._read_pool)
        self._pool.prepare(self._spares)

    def _read_pool(self) -> None:
        for event in self._pool.poll():
            if isinstance(event, WorkerExited):
                worker = self._numbers.get(event.worker)
                if worker is None:
                    self._pool.discard(event.worker)
                else:
                    self._remove_worker(worker, event.status)
        if self._pool.closed:
            asyncio.get_running_loop().remove_reader(self._pool.fileno())
            for worker in list(self._workers):
                self._remove_worker(worker, -signal.SIGKILL, _KILLED)
            self._pool.restart()
            self._watch_pool()

    # Gangs on several nodes

    def _start_gang(self, message: StartGang) -> None:
        gang = _GangListener(message)
        self._gangs[message.gang] = gang
        for worker in message.workers.values():
            self._pending_bytes[worker] = bytearray()
        asyncio.get_running_loop().add_reader(gang.socket.fileno(), self._accept, gang)
        self._send(GangAddress(message.gang, *gang.socket.getsockname()[:2]))

    def _accept(self, gang: _GangListener) -> None:
        gang.accept()
        if not gang.is_complete:
            return
        self._stop_listening(gang)
        for rank, links in gang.make_links():
            self._add_worker(gang.workers[rank], self._pool.fork(*links))
        gang.close_links()

    def _stop_listening(self, gang: _GangListener) -> None:
        del self._gangs[gang.number]
        asyncio.get_running_loop().remove_reader(gang.socket.fileno())
        gang.socket.close()

    def _abandon_gang(self, worker: int) -> None:
        """End the gang of a worker before all its processes have connected."""
        for gang in [each for each in self._gangs.values() if worker in each.workers.values()]:
            self._stop_listening(gang)
            gang.close_links()
            for pending in gang.workers.values():
                self._pending_bytes.pop(pending, None)
                self._attempts.pop(pending, None)
                self._send(WorkerExited(pending, -signal.SIGTERM))

    def _join_gang(self, message: JoinGang) -> None:
        for rank, worker in message.workers.items():
            try:
                link = socket.create_connection((message.host, message.port), timeout=_CONNECT_S)
                link.settimeout(None)
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                link.sendall(bytes.fromhex(message.key) + rank.to_bytes(4, "little"))
            except OSError as error:
                reason = error.strerror or str(error)
                note = f"process {rank} could not reach its leader at {message.host}: {reason}"
                self._send(WorkerExited(worker, 1, note))
                continue
            self._pending_bytes[worker] = bytearray()
            self._add_worker(worker, self._pool.fork(link))
            link.close()


async def _end_with_parent() -> None:
    """Exit when the process of the node that has started this one is gone.

    Ray ends a node that was cut off from its cluster, and may leave its actors running: nothing
    would ever read the reports of this agent's workers.
    """
    parent = os.getppid()
    while os.getppid() == parent:
        await asyncio.sleep(_PARENT_S)
    os._exit(1)


class _GangListener:
    """A gang's leader on this node, which waits for connections of processes on other nodes."""

    def __init__(self, message: StartGang) -> None:
        self.number = message.gang
        self.workers = message.workers
        self._size = message.size
        self._key = bytes.fromhex(message.key)
        # Links to processes on other nodes, by rank, and both ends of links on this node.
        self._remote_links: dict[int, socket.socket] = {}
        self._local_links: list[socket.socket] = []
        self.socket = socket.create_server((import_ray().util.get_node_ip_address(), 0))

    @property
    def is_complete(self) -> bool:
        """Whether all processes on other nodes have connected."""
        return len(self._remote_links) + len(self.workers) == self._size

    def accept(self) -> None:
        """Accept one connection; close it unless it presents the gang's key."""
        link, _ = self.socket.accept()
        link.settimeout(_CONNECT_S)
        greeting = b""
        with contextlib.suppress(OSError):
            greeting = link.recv(len(self._key) + 4, socket.MSG_WAITALL)
        rank = int.from_bytes(greeting[-4:], "little")
        if greeting[:-4] != self._key or not 0 < rank < self._size or rank in self.workers:
            link.close()
            return
        link.settimeout(None)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._remote_links[rank] = link

    def make_links(self) -> Sequence[tuple[int, list[socket.socket]]]:
        """Return the links of each process on this node; the leader's are in order of rank."""
        pairs = {rank: socket.socketpair() for rank in self.workers if rank}
        self._local_links = [end for pair in pairs.values() for end in pair]
        by_rank = {**self._remote_links, **{rank: lead for rank, (lead, _) in pairs.items()}}
        leads = [by_rank[rank] for rank in range(1, self._size)]
        return [(0, leads), *((rank, [follow]) for rank, (_, follow) in pairs.items())]

    def close_links(self) -> None:
        """Close this process's copies of all links."""
        for link in [*self._remote_links.values(), *self._local_links]:
            link.close()
