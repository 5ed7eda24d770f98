"""A study's session on a Ray cluster: the connection, the slots, the agents; and its engine.

Knows in which order the parts of the session are made and closed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from paceline.core.errors import SpecError
from paceline.engines.process.engine import ProcessEngine
from paceline.engines.process.local.worker_pool import pack_function
from paceline.engines.process.ray.config import connect_ray, import_ray
from paceline.engines.process.ray.devices import RayDevices
from paceline.engines.process.ray.forecasters import MAX_REQUESTS
from paceline.engines.process.ray.head_watch import HeadWatch, call_bounded
from paceline.engines.process.ray.node_files import NodePaths
from paceline.engines.process.ray.nodes import NodeAgents
from paceline.engines.process.ray.placement import PlacementPool
from paceline.engines.process.ray.worker_pool import RayWorkerPool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from paceline.core.events import AnyEvent
    from paceline.core.ports import Advisor
    from paceline.core.values import StudySpec
    from paceline.engines.process.checkpoint_files import CheckpointFiles
    from paceline.engines.process.ray.config import Ray
    from paceline.engines.process.supervisor import Timeouts


# How long the end of a study waits for the cluster's head.
_CLOSE_S = 6.0


class RayEngine(ProcessEngine):
    """Process engine whose workers run on a Ray cluster; closes its session."""

    # Forecasts are computed on the cluster: these threads only wait.
    _forecast_threads = MAX_REQUESTS

    def __init__(
        self,
        spec: StudySpec,
        session: RaySession,
        *,
        files: CheckpointFiles,
        advisor: Advisor | None = None,
        timeouts: Timeouts | None = None,
        began: float | None = None,
    ) -> None:
        self._session = session
        super().__init__(
            spec,
            session.pool,
            session.devices,
            files=files,
            advisor=advisor,
            timeouts=timeouts,
            began=began,
        )

    def wait(self, timeout_s: float | None = None) -> Sequence[AnyEvent] | None:
        """Return what has happened. Raises ClusterLost if the head does not answer any more.

        Everything that was returned before is in the log then.
        """
        if not self._closed:
            self._session.head.check()
        return super().wait(timeout_s)

    def close(self, grace_s: float | None = None) -> None:
        """End all processes, and give everything back to the cluster."""
        if self._closed:
            return
        self._session.stop_watching()
        try:
            super().close(grace_s)
        finally:
            self._session.close()


class RaySession:
    """Everything that a study holds on a cluster, from its first slot to its last."""

    def __init__(
        self,
        cluster: Ray,
        train: Callable[..., Any],
        files: CheckpointFiles,
        *,
        mps: bool = False,
    ) -> None:
        if cluster.disk is not None and files.storage is None:
            raise SpecError(
                f"disk={cluster.disk!r} needs a storage for checkpoints: give checkpoints=…, or "
                "no disk."
            )
        function = pack_function(train)
        self._is_connection_ours = connect_ray(cluster)
        self._ray = import_ray()
        self._mark = files.logs / "driver"
        # With a working directory of its own, the runtime environment decides where nodes run.
        moved = (cluster.runtime_env or {}).get("working_dir")
        cwd = None if moved else os.getcwd()
        paths = _make_node_paths(files, self._mark, cwd, cluster.disk)
        self.pool = RayWorkerPool()
        try:
            agents = NodeAgents(function, paths, files.storage)
            self._placement = PlacementPool(cluster, self.pool, agents, mps=mps)
        except BaseException:
            self._disconnect()
            raise
        self.devices = RayDevices(self.pool, self._placement)
        self.head = HeadWatch(cluster.address)

    @property
    def mps(self) -> str:
        """The state of MPS: "up", why it is not, or empty where it was not asked for."""
        return self._placement.mps

    def stop_watching(self) -> None:
        """Add no further slots and nodes."""
        self._placement.stop_watching(0.0 if self.head.is_silent else _CLOSE_S)

    def close(self) -> None:
        """Give all slots back to the cluster, and disconnect."""
        self.head.close()
        # A head that does not answer gets the slots back if it answers again.
        call_bounded(self._placement.release_all, 0.0 if self.head.is_silent else _CLOSE_S)
        self._disconnect()

    def _disconnect(self) -> None:
        self._mark.unlink(missing_ok=True)
        if self._is_connection_ours:
            call_bounded(self._ray.shutdown, _CLOSE_S)


def _make_node_paths(
    files: CheckpointFiles, mark: Path, cwd: str | None, disk: str | None
) -> NodePaths:
    """Write the mark by which nodes recognize the study's folder, and return what they need."""
    mark_text = uuid4().hex
    mark.write_text(mark_text)
    storage = files.storage
    return NodePaths(
        checkpoints=str(files.checkpoints.resolve()),
        mark=str(mark.resolve()),
        mark_text=mark_text,
        cwd=cwd,
        storage_url="" if storage is None else storage.url,
        storage=None if storage is None else import_ray().put(storage),
        cache_bytes=files.cache_bytes,
        disk=disk,
    )
