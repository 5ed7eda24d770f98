"""The driver's end of all nodes: workers are had there as if they were here.

Knows hosts, and which worker is on which. Words to a host are gathered and go out in one call; what
hosts say comes in by calls that wait there, and a pipe wakes whoever waits here. Keeps no thread.
"""

from __future__ import annotations

import os
import secrets
import threading
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.engines.process.ports import Heard, Moved
from paceline.engines.process.ray.config import imported
from paceline.engines.process.ray.node_files import Afar
from paceline.engines.process.ray.node_protocol import (
    Door,
    Hire,
    Join,
    Kept,
    Lead,
    Printed,
    Said,
    Settle,
    unpacked,
)
from paceline.engines.process.ray.nodes import FarLine
from paceline.worker.forkserver_protocol import Exited, Kill

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from concurrent.futures import Future

    from paceline.core.values import SlotId
    from paceline.engines.process.ray.node_protocol import AnyWord
    from paceline.engines.process.ray.nodes import Node, Place

_NODE_GONE = "its node is gone"


class Bell:
    """A pipe that becomes readable when somebody rings, from whatever thread."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        self._lock = threading.Lock()
        self._rung = self.closed = False

    def fileno(self) -> int:
        """Return what becomes readable."""
        return self._out

    def ring(self) -> None:
        """Wake whoever waits."""
        with self._lock:
            if not self._rung and not self.closed:
                self._rung = True
                os.write(self._in, b"!")

    def hush(self) -> None:
        """Be silent until the next ring."""
        with self._lock:
            if self._rung:
                self._rung = False
                os.read(self._out, 1)

    def close(self) -> None:
        """Ring no more."""
        with self._lock:
            self.closed = True
            os.close(self._out)
            os.close(self._in)


class _Gang(NamedTuple):
    """Members on other nodes than their leader's: they join when its door is known."""

    key: str
    # For each node its workers by rank; what is said to them until then.
    nodes: dict[Node, dict[int, int]]
    said: list[tuple[Node, AnyWord]]


class Nests:
    """Everybody on all nodes."""

    def __init__(self) -> None:
        self.wire = Bell()
        self.places: dict[SlotId, Place] = {}
        self._nodes: set[Node] = set()
        self._news: SimpleQueue[tuple[Node | None, Any]] = SimpleQueue()
        self._lines: dict[int, FarLine] = {}
        self._homes: dict[int, Node] = {}
        # Which slot each worker is on, and whom to tell when nobody is on one that goes back.
        self._seats: dict[int, SlotId] = {}
        self._parting: dict[SlotId, Callable[[SlotId], None]] = {}
        self._gangs: dict[int, _Gang] = {}
        self._afar: dict[Node, Afar] = {}
        # Workers of gangs that wait for their leader's door.
        self._waiting: dict[int, _Gang] = {}
        self._numbers = 0

    # For whoever finds nodes

    def begin(self, places: dict[SlotId, Place]) -> None:
        """Begin with these slots."""
        for _ in self._moved(places):
            pass  # whoever begins with them need not be told

    # The same, in whatever thread

    def arrive(self, places: dict[SlotId, Place]) -> None:
        """Slots have come."""
        self._news.put((None, places))
        self.wire.ring()

    def leave(self, slots: Sequence[SlotId], why: str) -> None:
        """Slots are gone."""
        self._news.put((None, (tuple(slots), why)))
        self.wire.ring()

    # For the engine

    def afar(self, node: Node) -> Afar | None:
        """Return the files that a node keeps on a disk of its own; None: it sees the study's."""
        if node.folder and node not in self._afar:
            self._afar[node] = Afar(node.folder, partial(self._ask, node))
        return self._afar.get(node)

    def part(self, slots: Collection[SlotId], let_go: Callable[[SlotId], None]) -> None:
        """Let slots go, each when nobody works there and nothing is on its way from there."""
        self._parting |= dict.fromkeys(slots, let_go)
        self.wire.ring()

    # For the staff

    def prepare(self, count: int) -> None:
        """Leave it to the hosts: each has workers ready for its slots."""

    def hire(self, slots: Sequence[SlotId]) -> list[tuple[int, FarLine]]:
        """Return a worker for each slot, tied together where they are several."""
        first = self._numbers
        self._numbers += len(slots)
        workers = range(first, self._numbers)
        hired = []
        self._seats |= zip(workers, slots, strict=True)
        for worker in workers:
            line = FarLine(partial(self._say, worker))
            self._lines[worker] = line
            hired.append((worker, line))
        if all(slot in self.places for slot in slots):
            self._place(workers, [self.places[slot].node for slot in slots])
        else:
            # Its slot went after the decision for it.
            self._news.put((None, [Exited(worker, 0, _NODE_GONE) for worker in workers]))
        self.wire.ring()
        return hired

    def forget(self, worker: int) -> None:
        """Leave it to the hosts."""

    def kill(self, worker: int, number: int) -> None:
        """Send a worker, and whatever it has started, a signal."""
        if worker in self._waiting:
            del self._waiting[worker]
            self._news.put((None, [Exited(worker, -number)]))
        elif worker in self._homes:
            self._homes[worker].say(Kill(worker, number))
        self.wire.ring()

    def words(self) -> Sequence[object]:
        """Return the news, and send what was said meanwhile."""
        self.wire.hush()
        self._part()
        for node in self._nodes:
            node.flush()
        words: list[object] = []
        while True:
            try:
                source, news = self._news.get_nowait()
            except Empty:
                return words
            if self._parting:
                self.wire.ring()  # look again when all of this is taken in
            if source is None:
                words += self._moved(news)
            elif news is None:
                words += self._lost(source)
            else:
                source.listen(partial(self._heard, source))
                for word in unpacked(news):
                    self._take(source, word, words)

    def revive(self) -> None:
        """Leave it to the hosts."""

    def close(self, patience: float) -> None:
        """End all workers, on all nodes."""
        ray = imported()
        self.words()  # who has come and was not taken in yet has a host, too
        self.wire.close()
        nodes = [node for node in self._nodes if not node.lost]
        ray.wait([node.close(patience) for node in nodes], num_returns=len(nodes), timeout=5.0)
        for node in nodes:
            node.end(ray.kill)

    # Inside

    def _ask(self, node: Node, word: AnyWord) -> None:
        if isinstance(word, Settle) and word.worker in self._waiting:
            self._waiting[word.worker].said.append((node, word))
            return
        node.say(word)
        self.wire.ring()

    def _say(self, worker: int, body: bytes) -> None:
        node = self._homes.get(worker)
        if node is None:
            return
        if worker in self._waiting:
            self._waiting[worker].said.append((node, Said(worker, body)))
            return
        node.say(Said(worker, body))
        self.wire.ring()

    def _place(self, workers: Sequence[int], nodes: Sequence[Node]) -> None:
        for worker, node in zip(workers, nodes, strict=True):
            self._homes[worker] = node
            node.workers.add(worker)
        leader = nodes[0]
        if all(node is leader for node in nodes):
            leader.say(Hire(tuple(workers)))
            return
        ranks: dict[Node, dict[int, int]] = {}
        for rank, (worker, node) in enumerate(zip(workers, nodes, strict=True)):
            ranks.setdefault(node, {})[rank] = worker
        key = secrets.token_hex(16)
        near = ranks.pop(leader)
        gang = self._gangs[workers[0]] = _Gang(key, ranks, [])
        self._waiting |= {worker: gang for own in ranks.values() for worker in own.values()}
        leader.say(Lead(workers[0], near, len(workers), key))

    def _heard(self, node: Node, told: Future[bytes]) -> None:
        """Take what a host says, in one of Ray's threads."""
        error = told.exception()
        self._news.put((node, None if error is not None else told.result()))
        self.wire.ring()

    def _take(self, source: Node, word: AnyWord, words: list[object]) -> None:
        match word:
            case Said(worker=worker, body=body) if worker in self._lines:
                self._lines[worker].feed(body)
                words.append(Heard(worker))
            case Exited():
                words.append(self._left(word))
            case Kept():
                self._afar[source].kept(word)
            case Printed():
                self._afar[source].printed(word)
            case Door(gang=number, host=host, port=port) if number in self._gangs:
                gang = self._gangs.pop(number)
                for node, workers in gang.nodes.items():
                    own = {rank: each for rank, each in workers.items() if each in self._waiting}
                    node.say(Join(own, host, port, gang.key))
                    for worker in own.values():
                        del self._waiting[worker]
                for node, said in gang.said:
                    node.say(said)
                self.wire.ring()

    def _left(self, word: Exited) -> Exited:
        """A worker is gone: nothing more is said on its line."""
        line = self._lines.pop(word.worker, None)
        if line is not None:
            line.closed = True
        self._waiting.pop(word.worker, None)
        self._seats.pop(word.worker, None)
        node = self._homes.pop(word.worker, None)
        if node is not None:
            node.workers.discard(word.worker)
        return word

    def _part(self) -> None:
        taken = set(self._seats.values())
        for slot in [slot for slot in self._parting if slot not in taken]:
            place = self.places.get(slot)
            afar = None if place is None else self._afar.get(place.node)
            if afar is None or not afar.busy:
                self.places.pop(slot, None)
                self._parting.pop(slot)(slot)

    def _moved(self, news: Any) -> Iterator[object]:  # noqa: ANN401 - three kinds of news
        if isinstance(news, list):
            yield from map(self._left, news)
        elif isinstance(news, dict):
            self.places |= news
            for node in {place.node for place in news.values()} - self._nodes:
                self._nodes.add(node)
                node.listen(partial(self._heard, node))
            yield Moved(came=tuple(news))
        else:
            slots, why = news
            gone = tuple(slot for slot in slots if self.places.pop(slot, None) is not None)
            if gone:
                yield Moved(gone=gone, why=why)

    def _lost(self, node: Node) -> Iterator[object]:
        """A host does not answer any more: its workers are gone, and its slots."""
        node.lost = True
        self._nodes.discard(node)
        gone = tuple(slot for slot, place in self.places.items() if place.node is node)
        if node in self._afar:
            self._afar[node].lose()
        for slot in gone:
            del self.places[slot]
        if gone:
            # First of all, or who was there would be launched there again.
            yield Moved(gone=gone, why=_NODE_GONE)
        for worker in sorted(node.workers):
            yield self._left(Exited(worker, 0, _NODE_GONE))
