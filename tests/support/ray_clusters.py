"""Real Ray clusters of several nodes on this machine, for tests.

Every cluster has a temporary folder, ports and an address of its own, and its processes carry a
mark in their environment: another cluster on the machine is never met, found or ended.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from waiting import LIMIT_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

# Ray warns of a change in its next version that does not concern these tests.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# The object store of a node; tests store almost nothing there.
STORE_BYTES = 80_000_000
_MARK = "PACELINE_TEST_CLUSTER"
# Ray detects a lost node in a moment, and still waits for a slow one.
_HEALTH_CHECKS = {"RAY_health_check_period_ms": "500"}


@contextmanager
def set_variables(**values: str | None) -> Iterator[None]:
    """Set environment variables for processes started meanwhile; None unsets one."""
    before = {name: os.environ.pop(name, None) for name in values}
    os.environ.update({name: value for name, value in values.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


class _Cluster:
    """The processes of one cluster, known by their mark, and its folder."""

    def __init__(self, head: dict[str, Any], **environ: str) -> None:
        from ray.cluster_utils import Cluster

        self.mark = uuid4().hex
        # Short, since paths of sockets are limited to 107 characters.
        self._folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        # Ray writes the address of a new cluster below this folder, which it does not create.
        os.mkdir(f"{self._folder}/ray")
        self._environ: dict[str, str | None] = {
            _MARK: self.mark,
            "RAY_ADDRESS": None,
            "RAY_TMPDIR": self._folder,
            **_HEALTH_CHECKS,
            **environ,
        }
        own = {
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
            "temp_dir": self._folder,
        }
        with set_variables(**self._environ):
            self._cluster = Cluster(initialize_head=True, head_node_args={**own, **head})
        self.address: str = self._cluster.address

    def close(self) -> None:
        """End all processes of the cluster, also the driver's connection to it."""
        import ray

        ray.shutdown()
        self._cluster.shutdown()
        for pid in find_processes(self):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not find_processes(self), "the processes of the cluster to end")
        shutil.rmtree(self._folder, ignore_errors=True)


class RayCluster(_Cluster):
    """A head with two CPUs, and nodes that are added and removed like machines."""

    def __init__(self, **environ: str) -> None:
        super().__init__({"num_cpus": 2}, **environ)

    def add(self, **resources: Any) -> Any:  # noqa: ANN401 - Ray's own parameters
        """Add a node."""
        with set_variables(**self._environ):
            return self._cluster.add_node(object_store_memory=STORE_BYTES, **resources)

    def remove(self, node: Any) -> None:  # noqa: ANN401
        """Remove a node without warning, like a machine that loses power."""
        self._cluster.remove_node(node, allow_graceful=False)

    def settle(self) -> None:
        """Wait until the cluster has exactly its nodes, and all their CPUs are free.

        Ray reports a CPU that was just given back as taken for up to a second. Only a connected
        driver can ask.
        """
        import ray

        self._cluster.wait_for_nodes(timeout=int(LIMIT_S))
        if ray.is_initialized():
            wait_for(_all_cpus_are_free, "all CPUs of the cluster to be free")


def _all_cpus_are_free() -> bool:
    import ray

    free, total = ray.available_resources().get("CPU", 0), ray.cluster_resources().get("CPU", 0)
    return bool(free == total)


@contextmanager
def connect(cluster: _Cluster, **options: Any) -> Iterator[Any]:  # noqa: ANN401
    """Give Ray, connected to this cluster by its address."""
    import ray

    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.WARNING, **options)
    try:
        yield ray
    finally:
        ray.shutdown()


# The names of the head, of the head's type, and of the provider in Ray's fake autoscaled cluster.
_HEAD, _HEAD_TYPE = "f" * 51 + "00000", "ray.head.default"
_PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"


class AutoscaledCluster(_Cluster):
    """A head without CPUs and Ray's own autoscaler, which starts and ends nodes of two CPUs each.

    Ray has an `AutoscalingCluster` too, but that ends every other cluster of the machine.
    """

    def __init__(self, folder: Path, max_nodes: int) -> None:
        import ray

        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        address = f"{ray.util.get_node_ip_address()}:{port}"
        config = folder / "autoscaling.json"
        config.write_text(json.dumps(_make_autoscaler_config(address, max_nodes)))
        head = {
            "num_cpus": 0,
            "gcs_server_port": port,
            "autoscaling_config": str(config),
            "env_vars": {
                "RAY_OVERRIDE_NODE_ID_FOR_TESTING": _HEAD,
                "RAY_CLOUD_INSTANCE_ID": _HEAD,
                "RAY_NODE_TYPE_NAME": _HEAD_TYPE,
            },
        }
        super().__init__(
            head,
            RAY_FAKE_CLUSTER="1",
            AUTOSCALER_UPDATE_INTERVAL_S="1",
            # The version that Kubernetes and `ray up` use.
            RAY_enable_autoscaler_v2="1",
        )

    def list_nodes(self) -> list[str]:
        """Return the nodes that the autoscaler has started and not ended."""
        import ray

        alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        return sorted(name for name in alive if name != _HEAD)

    def kill(self, node: str) -> None:
        """Kill a node without warning, like a machine that is taken away."""
        for pid in find_processes(self, b"raylet/raylet"):
            if node.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def _make_autoscaler_config(address: str, max_nodes: int) -> dict[str, Any]:
    """Return the autoscaler's configuration: nodes may be idle for a second."""
    size = {"CPU": 2, "object_store_memory": STORE_BYTES}
    node: dict[str, Any] = {"node_config": {}, "min_workers": 0}
    stages = ("setup", "head_setup", "worker_setup", "initialization", "head_start_ray")
    return {
        # Commands for real machines: none here.
        **{f"{stage}_commands": [] for stage in (*stages, "worker_start_ray")},
        "cluster_synced_files": [],
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        "auth": {"ssh_user": ""},
        "cluster_name": "paceline",
        "max_workers": max_nodes,
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
            "worker": {**node, "resources": size, "max_workers": max_nodes},
        },
    }


# Processes


def find_processes(cluster: _Cluster, command: bytes = b"") -> list[int]:
    """Return the processes of this cluster whose command line contains `command`."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = f"{_MARK}={cluster.mark}".encode() in (path / "environ").read_bytes()
            if is_ours and command in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue  # it has just ended, or belongs to another user
    return found


def find_parent(pid: int) -> int:
    """Return the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def wait_for_no_workers(cluster: _Cluster) -> None:
    """Wait until this cluster has no fork server and no worker process of a study any more.

    A killed process takes a moment to end, on a busy machine a long one.
    """

    def are_gone() -> bool:
        return not find_processes(cluster, b"paceline.worker.forkserver")

    wait_for(are_gone, "the fork servers and workers of the study to end")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process inside the block, like one of a machine that is cut off."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


# Fixtures


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """Give the cluster that all tests share: two nodes with two CPUs each."""
    cluster = RayCluster()
    cluster.add(num_cpus=2)
    yield cluster
    cluster.close()


@pytest.fixture
def settled_cluster(ray_cluster: RayCluster) -> RayCluster:
    """Give the shared cluster when all nodes and CPUs of earlier tests are given back."""
    ray_cluster.settle()
    return ray_cluster
