"""The Ray engine on a real cluster of several nodes: the same contract as the others."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from paceline.engines.local.shelf import Shelf
from paceline.engines.local.staff import Patience
from paceline.engines.ray.engine import RayEngine
from paceline.engines.ray.wanted import Ray
from paceline.testing.engines import EngineContract
from ray_kit import Nodes, nodes, nurseries
from test_local_engine import spec, trains

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paceline.core.ports import Adviser, Engine, Workload

__all__ = ["nodes"]


def engine(
    train: Callable[[Any], Any],
    files: Path,
    wanted: Ray,
    adviser: Adviser | None = None,
    **patience: float,
) -> RayEngine:
    patient = Patience(**{"grace_s": 1.0, **patience})
    shelf = Shelf(files)
    return RayEngine(spec(), train, wanted, shelf=shelf, adviser=adviser, patience=patient)


@pytest.fixture(scope="module", autouse=True)
def connection(nodes: Nodes) -> Iterator[None]:
    """Connect once: engines use a connection that is there, and leave it."""
    import ray

    ray.init(address=nodes.address, log_to_driver=False, logging_level=logging.WARNING)
    yield
    ray.shutdown()


class TestRayEngine(EngineContract):
    """The whole contract, with actors on several nodes."""

    epoch_s = 0.05

    @staticmethod
    def make(workload: Workload, adviser: Adviser) -> Engine:
        return engine(trains(workload), Path(tempfile.mkdtemp()), Ray(cpus=2), adviser)

    @pytest.fixture(autouse=True)
    def cluster(self, nodes: Nodes) -> None:
        self.nodes = nodes

    def left_over(self) -> list[int]:
        return nurseries(self.nodes)
