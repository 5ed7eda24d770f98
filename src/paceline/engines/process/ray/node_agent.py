"""A node's host: an actor that keeps a nursery on its node, and carries what its workers say.

Knows the nest next to it and the words of the driver. The training function runs in workers that
the nursery forks, as on a single machine: they can be ended at once, a crash of one harms nobody,
and the host stays warm for the next. When the host goes, however it goes, so do they.
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
from paceline.engines.process.local.worker_pool import Nest
from paceline.engines.process.ray.config import imported
from paceline.engines.process.ray.node_files import home_of
from paceline.engines.process.ray.node_protocol import (
    Clear,
    Door,
    Drop,
    Hire,
    Join,
    Lead,
    Leave,
    Publish,
    Said,
    Settle,
    packed,
    unpacked,
)
from paceline.worker.forkserver_protocol import Exited, Kill
from paceline.worker.protocol import Fetched, framed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.engines.process.local.worker_pool import Packed
    from paceline.engines.process.ray.node_files import Home, Ways
    from paceline.engines.process.ray.node_protocol import AnyWord
    from paceline.worker.protocol import Channel

# How long a worker looks for its leader's door.
_REACH_S = 10.0
_KILLED = "all workers of its node were killed"


class Opening(NamedTuple):
    """What became of opening a host: what is in the way, or the node's own folder, if it has one.

    With that comes the name of what the node has put into the storage, as a sign.
    """

    wrong: str = ""
    folder: str = ""
    sign: str = ""


class Service(NamedTuple):
    """Where trials that share a GPU find what lets them run at the same time, or why it is not."""

    pipe: str
    note: str


class Host:
    """Lives on one node, for one study."""

    def __init__(self) -> None:
        # By the driver's numbers: the nest's number, and the channel.
        self._workers: dict[int, tuple[int, Channel]] = {}
        self._numbers: dict[int, int] = {}
        # Gangs whose other members have not all come yet, and what was said to theirs meanwhile.
        self._gangs: dict[int, _Gang] = {}
        self._unborn: dict[int, bytearray] = {}
        # What the driver has not heard yet, and its call that waits for that.
        self._news: list[AnyWord] = []
        self._ear: asyncio.Future[None] | None = None
        # Calls may overtake each other: those that came too soon wait here.
        self._next = 0
        self._early: dict[int, bytes] = {}
        # What lets trials share GPUs, by GPU, and the ends of those that were given back.
        self._services: dict[str, Mps] = {}
        self._endings: set[asyncio.Task[None]] = set()
        # Where this node does not see the study's files: its own, and who its workers are.
        self._home: Home | None = None
        self._attempts: dict[int, int] = {}

    async def open(self, train: Packed, ways: Ways, spares: int) -> Opening:
        """Load the training function and make workers ahead, or say what is in the way of that."""
        try:
            opening = await asyncio.to_thread(self._settle_in, ways)
            self._load(train, ways.cwd)
        except SpecError as error:
            if self._home is not None:
                self._home.close()
            return Opening(wrong=str(error))
        self._spares = spares
        self._start_watching()
        return opening

    def _settle_in(self, ways: Ways) -> Opening:
        node = imported().get_runtime_context().get_node_id()
        self._home = home_of(ways, node)
        if self._home is None:
            return Opening()
        sign = f"sign-of-{node}"
        self._home.sign(sign)
        return Opening(folder=str(self._home.folder), sign=sign)

    def _load(self, train: Packed, cwd: str | None) -> None:
        if cwd is not None and os.path.isdir(cwd):
            os.chdir(cwd)
        # What came with the runtime environment is found before the driver's own.
        path = tuple(dict.fromkeys([*sys.path, *train.path]))
        self._nest = Nest(train._replace(path=path), {})

    async def serve(self, gpu: str) -> Service:
        """Let trials that share a GPU run at the same time, where that can be had."""
        # One for each GPU, since they come and go one by one.
        service = self._services[gpu] = await asyncio.to_thread(Mps, (gpu,))
        return Service(service.pipe, service.note)

    async def take(self, number: int, body: bytes) -> None:
        """Obey what the driver says; calls are numbered, as they may overtake each other."""
        self._early[number] = body
        while (ready := self._early.pop(self._next, None)) is not None:
            self._next += 1
            for word in unpacked(ready):
                self._obey(word)

    async def listen(self) -> bytes:
        """Return what there is to hear, as soon as there is something."""
        if not self._news:
            self._ear = asyncio.get_running_loop().create_future()
            await self._ear
        news, self._news = self._news, []
        return packed(news)

    async def close(self, patience: float) -> None:
        """End all workers and the nursery."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._nest.wire.fileno())
        for _, channel in self._workers.values():
            loop.remove_reader(channel.fileno())
        self._nest.close(patience)
        for gpu in list(self._services):
            self._leave(gpu)
        await asyncio.gather(*self._endings)
        if self._home is not None:
            self._home.close()

    def _tell(self, word: AnyWord) -> None:
        self._news.append(word)
        if self._ear is not None and not self._ear.done():
            self._ear.set_result(None)

    def _obey(self, word: AnyWord) -> None:
        match word:
            case Said(worker=worker, body=body):
                if worker in self._workers:
                    self._workers[worker][1].write(body)
                elif worker in self._unborn:
                    self._unborn[worker] += body
            case Hire(workers=workers):
                hired = self._nest.hire(range(len(workers)))
                for worker, made in zip(workers, hired, strict=True):
                    self._born(worker, made)
            case Kill(worker=worker, signal=number):
                if worker in self._workers:
                    self._nest.kill(self._workers[worker][0], number)
                elif worker in self._unborn:
                    self._break_up(worker)
            case Lead():
                self._lead(word)
            case Join():
                self._join(word)
            case Leave(gpu=gpu):
                self._leave(gpu)
            case Settle(worker=worker, attempt=attempt, source=source):
                assert self._home is not None
                if worker not in self._workers and worker not in self._unborn:
                    return  # it could not reach its leader
                self._attempts[worker] = attempt
                if source is not None:
                    self._home.want(attempt, source, partial(self._fetched, worker))
            case Publish() | Drop() | Clear():
                assert self._home is not None
                self._home.obey(word, self._tell)

    def _leave(self, gpu: str) -> None:
        service = self._services.pop(gpu, None)
        if service is not None:
            ending = asyncio.ensure_future(asyncio.to_thread(service.close))
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    # Workers

    def _born(self, worker: int, made: tuple[int, Channel]) -> None:
        number, channel = made
        self._workers[worker] = made
        self._numbers[number] = worker
        asyncio.get_running_loop().add_reader(channel.fileno(), self._heard, worker)
        if worker in self._unborn:
            channel.write(bytes(self._unborn.pop(worker)))

    def _heard(self, worker: int) -> None:
        channel = self._workers[worker][1]
        body = channel.read()
        if body:
            self._tell(Said(worker, body))
        else:
            asyncio.get_running_loop().remove_reader(channel.fileno())

    def _fetched(self, worker: int, note: str) -> None:
        """What a worker starts from is here, or will never be."""
        self._obey(Said(worker, framed(Fetched(note=note))))

    def _gone(self, worker: int, status: int, lost: str = "") -> None:
        number, channel = self._workers.pop(worker)
        self._numbers.pop(number, None)
        asyncio.get_running_loop().remove_reader(channel.fileno())
        # Its last words: they were written before it died. Without waiting: what it has started
        # may live for a moment longer, and holds its channel open.
        while select.select([channel], [], [], 0)[0] and (body := channel.read()):
            self._tell(Said(worker, body))
        channel.close()
        attempt = self._attempts.pop(worker, None)
        if attempt is not None and self._home is not None:
            self._tell(self._home.printed(attempt))
        self._tell(Exited(worker, status, lost))

    def _start_watching(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._nest.wire.fileno(), self._nursery_spoke)
        self._nest.prepare(self._spares)

    def _nursery_spoke(self) -> None:
        for word in self._nest.words():
            if isinstance(word, Exited):
                worker = self._numbers.get(word.worker)
                if worker is None:
                    self._nest.forget(word.worker)
                else:
                    self._gone(worker, word.status)
        if self._nest.wire.closed:
            asyncio.get_running_loop().remove_reader(self._nest.wire.fileno())
            for worker in list(self._workers):
                self._gone(worker, -signal.SIGKILL, _KILLED)
            self._nest.revive()
            self._start_watching()

    # Gangs on several nodes

    def _lead(self, word: Lead) -> None:
        gang = _Gang(word)
        self._gangs[word.gang] = gang
        for worker in word.workers.values():
            self._unborn[worker] = bytearray()
        asyncio.get_running_loop().add_reader(gang.door.fileno(), self._let_in, gang)
        self._tell(Door(word.gang, *gang.door.getsockname()[:2]))

    def _let_in(self, gang: _Gang) -> None:
        gang.let_in()
        if not gang.complete:
            return
        self._shut(gang)
        for rank, links in gang.links():
            self._born(gang.workers[rank], self._nest.tied(*links))
        gang.forget_links()

    def _shut(self, gang: _Gang) -> None:
        del self._gangs[gang.number]
        asyncio.get_running_loop().remove_reader(gang.door.fileno())
        gang.door.close()

    def _break_up(self, worker: int) -> None:
        """A gang ends before all its members came: those that were to be here are gone."""
        for gang in [each for each in self._gangs.values() if worker in each.workers.values()]:
            self._shut(gang)
            gang.forget_links()
            for unborn in gang.workers.values():
                self._unborn.pop(unborn, None)
                self._attempts.pop(unborn, None)
                self._tell(Exited(unborn, -signal.SIGTERM))

    def _join(self, word: Join) -> None:
        for rank, worker in word.workers.items():
            try:
                link = socket.create_connection((word.host, word.port), timeout=_REACH_S)
                link.settimeout(None)
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                link.sendall(bytes.fromhex(word.key) + rank.to_bytes(4, "little"))
            except OSError as error:
                note = f"process {rank} could not reach its leader at {word.host}: {error.strerror}"
                self._tell(Exited(worker, 1, note))
                continue
            self._unborn[worker] = bytearray()
            self._born(worker, self._nest.tied(link))
            link.close()


class _Gang:
    """A leader that waits for those who come from other nodes."""

    def __init__(self, word: Lead) -> None:
        self.number = word.gang
        self.workers = word.workers
        self._size = word.size
        self._key = bytes.fromhex(word.key)
        self._came: dict[int, socket.socket] = {}
        self.door = socket.create_server((imported().util.get_node_ip_address(), 0))

    @property
    def complete(self) -> bool:
        return len(self._came) + len(self.workers) == self._size

    def let_in(self) -> None:
        """Take one who knocks; whoever has no key is left outside."""
        link, _ = self.door.accept()
        link.settimeout(_REACH_S)
        word = b""
        with contextlib.suppress(OSError):
            word = link.recv(len(self._key) + 4, socket.MSG_WAITALL)
        rank = int.from_bytes(word[-4:], "little")
        if word[:-4] != self._key or not 0 < rank < self._size or rank in self.workers:
            link.close()
            return
        link.settimeout(None)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._came[rank] = link

    def links(self) -> Sequence[tuple[int, list[socket.socket]]]:
        """Return the links of each process on this node, the leader's by rank."""
        near = {rank: socket.socketpair() for rank in self.workers if rank}
        self._near = [end for pair in near.values() for end in pair]
        to_each = {**self._came, **{rank: lead for rank, (lead, _) in near.items()}}
        leads = [to_each[rank] for rank in range(1, self._size)]
        return [(0, leads), *((rank, [follow]) for rank, (_, follow) in near.items())]

    def forget_links(self) -> None:
        """They are the workers' now, or nobody's."""
        for link in [*self._came.values(), *getattr(self, "_near", ())]:
            link.close()
