"""The nodes of a study on a Ray cluster, seen from the driver: agents, placements, channels.

Knows the calls of an agent and how agents are started and ended. Which worker runs where, the
worker pool knows.
"""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.core.errors import PacelineWarning, SpecError
from paceline.engines.process.ray.config import import_ray
from paceline.engines.process.ray.node_agent import NodeAgent
from paceline.engines.process.ray.node_files import is_same_storage
from paceline.engines.process.ray.node_protocol import encode_messages
from paceline.worker.protocol import FrameDecoder, encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from concurrent.futures import Future

    from paceline.core.ports import Storage
    from paceline.engines.process.local.worker_pool import PackedFunction
    from paceline.engines.process.ray.node_agent import AgentStart, MpsEndpoint
    from paceline.engines.process.ray.node_files import NodePaths
    from paceline.engines.process.ray.node_protocol import NodeMessage
    from paceline.worker.protocol import AnyMessage

# How long an agent may take to load the training function.
START_S = 120.0
# How long it may take to answer: it loads the function again if its fork server was killed.
ANSWER_S = 120.0
# How long an answer that is late may still take to be read.
_READ_S = 2.0
# How long an agent may take to end its workers before it is killed.
_CLOSE_S = 15.0


class RayNode:
    """A node of the cluster and the agent on it."""

    def __init__(self, name: str, agent: Any, folder: str = "") -> None:  # noqa: ANN401 - a handle
        self.name = name
        # The node's own folder; empty: the node sees the study's folder.
        self.folder = folder
        self._agent = agent
        self._outbox: list[NodeMessage] = []
        self._calls = 0
        self.workers: set[int] = set()
        # The agent does not answer any more.
        self.is_lost = False
        # The question to the agent that has no answer yet, and when it was asked.
        self._question: Any = None
        self._asked_at = 0.0

    @property
    def short_name(self) -> str:
        """The node's name in the log."""
        return self.name[:8]

    def send(self, *messages: NodeMessage) -> None:
        """Send messages with the next `flush`."""
        self._outbox += messages

    def flush(self) -> Any:  # noqa: ANN401 - a reference
        """Send all messages in one call; return its reference, None where there is nothing."""
        messages, self._outbox = self._outbox, []
        if not messages or self.is_lost:
            return None
        self._calls += 1
        return self._agent.receive.remote(self._calls - 1, encode_messages(messages))

    def listen(self, callback: Callable[[Future[bytes]], None]) -> None:
        """Call back with the node's next batch of messages, in one of Ray's threads."""
        self._agent.next_messages.remote().future().add_done_callback(callback)

    def measure_silence(self) -> float:
        """Ask the agent whether it is there; return for how long it has not answered."""
        now = time.monotonic()
        if self._question is None:
            self._question, self._asked_at = self._agent.answer.remote(), now
        silent_s = now - self._asked_at
        # After a pause of the driver itself, the answer is there and only has to be read.
        limit_s = _READ_S if silent_s > ANSWER_S else 0.0
        if import_ray().wait([self._question], timeout=limit_s)[0]:
            self._question = None
            return 0.0
        return silent_s

    def start_mps(self, gpu: str) -> Any:  # noqa: ANN401 - a reference
        """Start the MPS service of a GPU; return the reference of its MpsEndpoint."""
        return self._agent.start_mps.remote(gpu)

    def close(self, timeout_s: float) -> Any:  # noqa: ANN401 - a reference
        """Let the agent end its workers; return the reference to wait for."""
        self.flush()
        return self._agent.close.remote(timeout_s)

    def kill(self) -> None:
        """End the agent itself."""
        import_ray().kill(self._agent)


class SlotPlacement(NamedTuple):
    """The node and GPU of a slot, and its share of the node's cores and memory."""

    node: RayNode
    gpu: str
    cores: float
    bytes: int
    # The pipe folder of the MPS service that lets trials share the GPU; empty without a service.
    mps: str = ""


class RayChannel:
    """Messages to one worker, through the agent on its node."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._frames = FrameDecoder()
        self.closed = False

    def fileno(self) -> int:
        """Return -1: the pool's `poll` returns the messages."""
        return -1

    def send(self, message: AnyMessage) -> None:
        """Send a message."""
        self._write(encode_frame(message))

    def feed(self, body: bytes) -> list[AnyMessage]:
        """Take bytes that have arrived; return the messages that are complete now."""
        return list(self._frames.decode(body))

    def read_messages(self) -> Iterable[AnyMessage]:
        """Return nothing: the pool's `poll` returns the messages."""
        return ()

    def close(self) -> None:
        """Close the channel."""
        self.closed = True


class NodeAgents:
    """The agents of a study, one on each node with slots of the study."""

    def __init__(self, train: PackedFunction, paths: NodePaths, storage: Storage | None) -> None:
        self._ray = import_ray()
        self._train = train
        self._paths = paths
        self._storage = storage
        self._is_closing = False
        # By the nodes' names.
        self.nodes: dict[str, RayNode] = {}
        # Nodes that cannot be used, and why.
        self.refused: dict[str, str] = {}

    def start(self, names: Sequence[str], *, strict: bool) -> None:
        """Start agents on nodes without one, with a spare worker for each mention of the node.

        With `strict`, a node that cannot be used raises a SpecError; else the node is left out.
        """
        ray = self._ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        starting = {}
        for name in sorted(set(names)):
            if name in self.nodes and not self.nodes[name].is_lost:
                continue
            self.nodes.pop(name, None)
            here = NodeAffinitySchedulingStrategy(name, soft=False)
            agent = ray.remote(NodeAgent).options(num_cpus=0, scheduling_strategy=here).remote()
            started = agent.start.remote(self._train, self._paths, names.count(name))
            starting[name] = (agent, started)
        ready = self._wait_for([started for _, started in starting.values()])
        for name, (agent, started) in starting.items():
            if started not in ready:
                ray.kill(agent)
                continue
            try:
                start = ray.get(started)
            except ray.exceptions.RayError:
                continue  # the node is gone again: the next look finds that
            self._add(RayNode(name, agent, start.folder), start, strict=strict)
        if strict and self.refused:
            raise SpecError(f"{next(iter(self.refused.values()))}.")

    def close_idle(self, used: Collection[RayNode]) -> None:
        """End the agents on nodes without a slot: an autoscaler keeps nodes with an actor."""
        idle = [name for name, node in self.nodes.items() if node not in used]
        close_nodes([self.nodes.pop(name) for name in idle], 0.0)

    def kill_silent(self) -> None:
        """Kill agents that do not answer: their nodes are lost, and get another agent."""
        for node in self.nodes.values():
            if not node.is_lost and node.measure_silence() > ANSWER_S:
                warnings.warn(
                    f"the agent on node {node.short_name} has not answered for {ANSWER_S:.0f} s: "
                    "it is killed and started again, and its trials continue from their last "
                    "checkpoints.",
                    PacelineWarning,
                    stacklevel=2,
                )
                node.kill()

    def close_all(self) -> None:
        """End all agents before the study has begun."""
        close_nodes(list(self.nodes.values()), 0.0)

    def stop_waiting(self) -> None:
        """Wait for no further agent: the study ends."""
        self._is_closing = True

    def start_mps(self, gpus: Sequence[tuple[RayNode, str]]) -> list[MpsEndpoint]:
        """Start the MPS services of these GPUs."""
        started = [node.start_mps(gpu) for node, gpu in gpus]
        endpoints: list[MpsEndpoint] = self._ray.get(started, timeout=START_S)
        return endpoints

    def _add(self, node: RayNode, start: AgentStart, *, strict: bool) -> None:
        """Add a node whose agent has started, or refuse it."""
        problem = start.error or self._check_storage(start)
        if not problem:
            self.nodes[node.name] = node
            return
        self.refused[node.name] = problem
        if start.error:
            node.kill()
        else:
            close_nodes([node], 0.0)
        if not strict:
            warnings.warn(f"a node is left out: {problem}.", PacelineWarning, stacklevel=3)

    def _check_storage(self, start: AgentStart) -> str:
        """Return what is wrong if the node's probe is not found in the driver's storage."""
        if self._storage is None or not start.probe or is_same_storage(self._storage, start.probe):
            return ""
        return (
            f"{self._storage.url} on a node of the cluster is another storage than on the driver: "
            "give checkpoints=… in a storage that all nodes reach"
        )

    def _wait_for(self, references: list[Any]) -> list[Any]:
        """Return the references that are ready in time; a study that ends waits for none."""
        until = time.monotonic() + START_S
        ready: list[Any] = []
        while len(ready) < len(references) and time.monotonic() < until and not self._is_closing:
            ready, _ = self._ray.wait(references, num_returns=len(references), timeout=0.1)
        return ready


def close_nodes(nodes: Sequence[RayNode], timeout_s: float) -> None:
    """Let the agents of these nodes end their workers, then end the agents."""
    if not nodes:
        return
    closing = [node.close(timeout_s) for node in nodes]
    import_ray().wait(closing, num_returns=len(nodes), timeout=_CLOSE_S)
    for node in nodes:
        node.kill()
