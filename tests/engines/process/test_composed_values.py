"""Live studies in which everything is composed: values are those of configs trained alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from live_compositions import COMPOSITIONS, check_study

if TYPE_CHECKING:
    from pathlib import Path


def test_a_live_study_sees_the_values_of_each_config_alone(tmp_path: Path) -> None:
    check_study(tmp_path, {**COMPOSITIONS["pop"], "trials": 5}, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_live_compositions_see_the_values_of_each_config_alone(name: str, tmp_path: Path) -> None:
    check_study(tmp_path, COMPOSITIONS[name], 4)
