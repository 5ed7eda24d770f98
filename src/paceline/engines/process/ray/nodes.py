"""The driver's end of one node of a Ray cluster: what is said to its host, and to a worker there.

Knows a host's calls. What comes from there, and who is where, the nests know.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.core.errors import PacelineWarning, SpecError
from paceline.engines.process.ray.config import imported
from paceline.engines.process.ray.node_agent import Host
from paceline.engines.process.ray.node_files import same_storage
from paceline.engines.process.ray.node_protocol import packed
from paceline.worker.protocol import Frames, framed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from concurrent.futures import Future

    from paceline.core.ports import Storage
    from paceline.engines.process.local.worker_pool import Packed
    from paceline.engines.process.ray.node_agent import Opening, Service
    from paceline.engines.process.ray.node_files import Ways
    from paceline.engines.process.ray.node_protocol import AnyWord
    from paceline.worker.protocol import AnyMessage


class Node:
    """A node of the cluster with our host on it."""

    def __init__(self, name: str, host: Any, folder: str = "") -> None:  # noqa: ANN401 - a handle
        self.name = name
        # The folder that it has of its own; empty: it sees the study's.
        self.folder = folder
        self._host = host
        self._words: list[AnyWord] = []
        self._calls = 0
        self.workers: set[int] = set()
        # Its host does not answer any more.
        self.lost = False

    @property
    def short(self) -> str:
        """What it is called in the log."""
        return self.name[:8]

    def say(self, *words: AnyWord) -> None:
        """Say this with the next call."""
        self._words += words

    def flush(self) -> None:
        """Send what was said."""
        if self._words and not self.lost:
            self._host.take.remote(self._calls, packed(self._words))
            self._calls += 1
        self._words = []

    def listen(self, told: Callable[[Future[bytes]], None]) -> None:
        """Let somebody know what it says next."""
        self._host.listen.remote().future().add_done_callback(told)

    def serve(self, gpu: str) -> Any:  # noqa: ANN401 - what to wait for
        """Have trials that share a GPU run at the same time; return what to wait for."""
        return self._host.serve.remote(gpu)

    def close(self, patience: float) -> Any:  # noqa: ANN401 - what to wait for
        """Let the host end its workers; return what to wait for."""
        self.flush()
        return self._host.close.remote(patience)

    def end(self, kill: Callable[[Any], None]) -> None:
        """End the host itself."""
        kill(self._host)


class Place(NamedTuple):
    """Where a slot is: its node, the GPU there, and its share of the node's cores and memory."""

    node: Node
    gpu: str
    cores: float
    bytes: int
    # Where trials that share its GPU find the service that lets them run at the same time.
    mps: str = ""


class FarLine:
    """The line to one worker, through its node."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._frames = Frames()
        self._whole: deque[AnyMessage] = deque()
        self.closed = False

    def fileno(self) -> int:
        """Return no number: its maker says when something has arrived."""
        return -1

    def send(self, message: AnyMessage) -> None:
        """Say something."""
        self._write(framed(message))

    def feed(self, body: bytes) -> None:
        """Take what has arrived."""
        self._whole.extend(self._frames.cut(body))

    def arrived(self) -> Iterator[AnyMessage]:
        """Yield what was said."""
        while self._whole:
            yield self._whole.popleft()

    def close(self) -> None:
        """Hang up."""
        self.closed = True


# How long a node may take to load the training function, or to answer.
OPEN_S = 120.0
# How long a host may take to end.
_END_S = 5.0


class Hosts:
    """One on each node with slots of the study, by the nodes' names."""

    def __init__(self, train: Packed, ways: Ways, storage: Storage | None) -> None:
        self._ray = imported()
        self._train = train
        self._ways = ways
        self._storage = storage
        self._closed = False
        self.nodes: dict[str, Node] = {}
        # Why nodes cannot have one.
        self.refused: dict[str, str] = {}

    def open(self, names: Sequence[str], *, strict: bool) -> None:
        """Have hosts made where there are none, with a worker for each time that a node is named.

        On the first nodes none may fail.
        """
        ray = self._ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        opening = {}
        for name in sorted(set(names)):
            if name in self.nodes and not self.nodes[name].lost:
                continue
            self.nodes.pop(name, None)
            here = NodeAffinitySchedulingStrategy(name, soft=False)
            host = ray.remote(Host).options(num_cpus=0, scheduling_strategy=here).remote()
            opened = host.open.remote(self._train, self._ways, names.count(name))
            opening[name] = (host, opened)
        come = self._awaited([opened for _, opened in opening.values()])
        for name, (host, answer) in opening.items():
            if answer not in come:
                ray.kill(host)
                continue
            try:
                told = ray.get(answer)
            except ray.exceptions.RayError:
                continue  # the node went again: the next look tells
            node = Node(name, host, told.folder)
            wrong = told.wrong or self._astray(told)
            if not wrong:
                self.nodes[name] = node
                continue
            self.refused[name] = wrong
            if told.wrong:
                node.end(ray.kill)
            else:
                self._dismiss(node)
            if not strict:
                warnings.warn(f"a node is left out: {wrong}.", PacelineWarning, stacklevel=2)
        if strict and self.refused:
            raise SpecError(f"{next(iter(self.refused.values()))}.")

    def leave(self, here: Collection[Node]) -> None:
        """End hosts where no slot is left: an autoscaler ends no node on which somebody lives."""
        idle = [name for name, node in self.nodes.items() if node not in here]
        if idle:
            self._dismiss(*(self.nodes.pop(name) for name in idle))

    def dismiss(self) -> None:
        """End all of them before the study has begun."""
        if self.nodes:
            self._dismiss(*self.nodes.values())

    def rest(self) -> None:
        """Wait for no answer any more."""
        self._closed = True

    def serve(self, gpus: Sequence[tuple[Node, str]]) -> list[Service]:
        """Let trials that share these GPUs run at the same time, where that can be had."""
        asked = [node.serve(gpu) for node, gpu in gpus]
        served: list[Service] = self._ray.get(asked, timeout=OPEN_S)
        return served

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
        until = time.monotonic() + OPEN_S
        come: list[Any] = []
        while len(come) < len(answers) and time.monotonic() < until and not self._closed:
            come, _ = self._ray.wait(answers, num_returns=len(answers), timeout=0.1)
        return come
