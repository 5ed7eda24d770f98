"""A real Ray cluster of several nodes on this machine, one for each process that runs tests."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# Ray tells by a warning what the next version does; nothing here depends on it.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# Each node's share of this machine's memory, for objects that are never made.
STORE_BYTES = 80_000_000
_MARK = "PACELINE_TEST_CLUSTER"
_TRACER = "COVERAGE_PROCESS_CONFIG"


@contextmanager
def unmeasured() -> Iterator[None]:
    """Start Ray's own processes without the tracer, which would hold up each of them."""
    before = os.environ.pop(_TRACER, None)
    try:
        yield
    finally:
        if before is not None:
            os.environ[_TRACER] = before


class Nodes:
    """The cluster: nodes are added and removed as if they were machines."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 2, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        # What its processes, and theirs, are known by.
        os.environ[_MARK] = self.mark = f"{os.getpid()}-{id(self)}"
        with unmeasured():
            self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self._cluster.address

    def add(self, **resources: Any) -> Any:  # noqa: ANN401 - Ray's own words
        """Add a node."""
        with unmeasured():
            return self._cluster.add_node(object_store_memory=STORE_BYTES, **resources)

    def remove(self, node: Any) -> None:  # noqa: ANN401
        """Let a node die as a machine does: at once."""
        self._cluster.remove_node(node, allow_graceful=False)

    def settle(self) -> None:
        """Wait until the cluster has the nodes that it should have, and no other."""
        self._cluster.wait_for_nodes(timeout=60)

    def close(self) -> None:
        """End it all; a test that failed may have left a connection behind."""
        import ray

        ray.shutdown()
        self._cluster.shutdown()


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    """Give a cluster of two nodes with two CPUs each."""
    nodes = Nodes()
    nodes.add(num_cpus=2)
    yield nodes
    nodes.close()


def nurseries(nodes: Nodes) -> list[int]:
    """Return the processes that make workers for this cluster's hosts, and their workers."""
    return processes(nodes, b"paceline.worker.nursery")


def parent_of(pid: int) -> int:
    """Return who started a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def processes(nodes: Nodes, words: bytes) -> list[int]:
    """Return the processes on this cluster's nodes with these words in their command."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            ours = f"{_MARK}={nodes.mark}".encode() in (path / "environ").read_bytes()
            if ours and words in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue  # it is just gone, or somebody else's
    return found
