"""A composed study on a Ray cluster: values are those of configs trained alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from live_compositions import COMPOSITIONS, check_study

import paceline as pl

if TYPE_CHECKING:
    from pathlib import Path

    from ray_clusters import RayCluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("ray"),
    pytest.mark.usefixtures("settled_cluster"),
]


def test_a_composition_on_a_cluster_sees_the_values_of_each_config_alone(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    check_study(tmp_path, COMPOSITIONS["hypersched"], pl.Ray(address=ray_cluster.address))
