"""A real Ray cluster of several nodes on this machine, one for each process that runs tests."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Ray tells by a warning what the next version does; nothing here depends on it.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# Each node's share of this machine's memory, for objects that are never made.
STORE_BYTES = 80_000_000
_MARK = "PACELINE_TEST_CLUSTER"
# A node that has died is known to be dead in a moment; one that is slow is not taken for dead.
_WATCHFUL = {"RAY_health_check_period_ms": "500"}


@contextmanager
def variables(**given: str | None) -> Iterator[None]:
    """Set variables for processes that are started meanwhile; None: unset."""
    before = {name: os.environ.pop(name, None) for name in given}
    os.environ.update({name: value for name, value in given.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


class Nodes:
    """The cluster: nodes are added and removed as if they were machines."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 2, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        # What its processes, and theirs, are known by.
        os.environ[_MARK] = self.mark = f"{os.getpid()}-{id(self)}"
        with variables(**_WATCHFUL):
            self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self._cluster.address

    def add(self, **resources: Any) -> Any:  # noqa: ANN401 - Ray's own words
        """Add a node."""
        return self._cluster.add_node(object_store_memory=STORE_BYTES, **resources)

    def remove(self, node: Any) -> None:  # noqa: ANN401
        """Let a node die as a machine does: at once."""
        self._cluster.remove_node(node, allow_graceful=False)

    def settle(self) -> None:
        """Wait until the cluster has the nodes that it should have, and all that they have is free.

        Ray says for up to a second that what was just given back is taken. Only who is connected
        can ask.
        """
        import ray

        self._cluster.wait_for_nodes(timeout=60)
        until = time.monotonic() + 60
        while ray.is_initialized() and (taken := _taken()):
            assert time.monotonic() < until, taken
            time.sleep(0.02)

    def close(self) -> None:
        """End it all; a test that failed may have left a connection behind."""
        import ray

        ray.shutdown()
        self._cluster.shutdown()


def _taken() -> str:
    """Say what is not free; nothing, if all is."""
    import ray

    free, whole = ray.available_resources().get("CPU", 0), ray.cluster_resources().get("CPU", 0)
    return "" if free == whole else f"{free:g} of {whole:g} CPUs are free"


# What Ray's provider of nodes on one machine calls its head, the head's type, and itself.
_HEAD, _HEAD_TYPE = "f" * 51 + "00000", "ray.head.default"
_PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"


class Autoscaled:
    """A head without CPUs, and Ray's own autoscaler, which starts and ends nodes of two CPUs each.

    Ray has an `AutoscalingCluster` too, but that ends every other cluster of this machine.
    """

    def __init__(self, folder: Path, most: int) -> None:
        import ray
        from ray.cluster_utils import Cluster

        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        self.address = f"{ray.util.get_node_ip_address()}:{port}"
        self.mark = f"{os.getpid()}-{id(self)}"
        settings = folder / "autoscaling.json"
        settings.write_text(json.dumps(_settings(self.address, most)))
        head = {
            "RAY_OVERRIDE_NODE_ID_FOR_TESTING": _HEAD,
            "RAY_CLOUD_INSTANCE_ID": _HEAD,
            "RAY_NODE_TYPE_NAME": _HEAD_TYPE,
        }
        hasty = {
            _MARK: self.mark,
            "RAY_FAKE_CLUSTER": "1",
            **_WATCHFUL,
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            # The one that Kubernetes and `ray up` have.
            "RAY_enable_autoscaler_v2": "1",
        }
        with variables(**hasty):
            self._cluster = Cluster(
                initialize_head=True,
                head_node_args={
                    "num_cpus": 0,
                    "object_store_memory": STORE_BYTES,
                    "include_dashboard": False,
                    "gcs_server_port": port,
                    "autoscaling_config": str(settings),
                    "env_vars": head,
                },
            )
        ray.init(address=self.address, log_to_driver=False, logging_level=logging.WARNING)

    def workers(self) -> list[str]:
        """Return the nodes that the autoscaler has started and not ended."""
        import ray

        alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        return sorted(name for name in alive if name != _HEAD)

    def kill(self, node: str) -> None:
        """Let a node die as a machine does that is taken away: at once."""
        for pid in processes(self, b"raylet/raylet"):
            if node.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End it all: also what the autoscaler has started, which is nobody's now."""
        import ray

        ray.shutdown()
        self._cluster.shutdown()
        for pid in processes(self, b""):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _settings(address: str, most: int) -> dict[str, Any]:
    """Return what an autoscaler is told: nodes may idle for a second."""
    size = {"CPU": 2, "object_store_memory": STORE_BYTES}
    node: dict[str, Any] = {"node_config": {}, "min_workers": 0}
    stages = ("setup", "head_setup", "worker_setup", "initialization", "head_start_ray")
    return {
        # What real machines would be told: here there is nothing to say.
        **{f"{stage}_commands": [] for stage in (*stages, "worker_start_ray")},
        "cluster_synced_files": [],
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        "auth": {"ssh_user": ""},
        "cluster_name": "paceline",
        "max_workers": most,
        "idle_timeout_minutes": 0.02,
        "provider": {
            "type": "external",
            "module": _PROVIDER,
            "gcs_address": address,
            "head_node_id": _HEAD,
            "launch_multiple": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "head_node_type": _HEAD_TYPE,
        "available_node_types": {
            _HEAD_TYPE: {**node, "resources": {}, "max_workers": 0},
            "worker": {**node, "resources": size, "max_workers": most},
        },
    }


def until(true: Callable[[], bool]) -> None:
    """Wait for what a cluster does in its own time."""
    while not true():
        time.sleep(0.05)


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    """Give a cluster of two nodes with two CPUs each."""
    nodes = Nodes()
    nodes.add(num_cpus=2)
    yield nodes
    nodes.close()


@pytest.fixture(autouse=True)
def settled(nodes: Nodes) -> None:
    """Begin when the cluster knows which nodes and slots earlier tests have let go."""
    nodes.settle()


def nurseries(nodes: Nodes | Autoscaled) -> list[int]:
    """Return the processes that make workers for this cluster's hosts, and their workers."""
    return processes(nodes, b"paceline.worker.forkserver")


def parent_of(pid: int) -> int:
    """Return who started a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def processes(nodes: Nodes | Autoscaled, words: bytes) -> list[int]:
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
