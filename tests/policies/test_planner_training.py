"""The training of the planner's networks: studies, rows, and a few steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from training.planner.collect import StudyJob, collect_rows
from training.planner.synthetic import draw_study
from training.planner.train import Recipe, make_table, save, train

from paceline.policies.planner.weights import NETWORKS, check_networks, make_rank_network

if TYPE_CHECKING:
    from pathlib import Path

    from training.planner.collect import Rows


def collect_some(folder: Path, count: int) -> list[tuple[str, Rows]]:
    """Collect rows of synthetic studies; the folder has no traces, so some seeds are left out."""
    found = []
    for seed in range(1000):
        if np.random.default_rng(seed).random() < 0.55:  # a synthetic study
            rows = collect_rows(StudyJob(seed, [make_rank_network()], str(folder), True))
            if rows is not None:
                found.append(rows)
        if len(found) == count:
            break
    return found


@pytest.mark.parametrize("seed", range(8))
def test_a_synthetic_study_has_a_curve_and_times_for_each_trial(seed: int) -> None:
    study = draw_study(np.random.default_rng(seed))
    trials, epochs = study.losses.shape
    assert study.epochs == epochs
    assert (study.lengths <= epochs).all()
    assert (study.seconds > 0).all()
    assert study.seconds.shape == study.losses.shape
    assert not np.isnan(study.losses).any()
    assert study.configs is None or len(study.configs) == trials


def test_a_loss_that_is_reached_by_one_horizon_is_reached_by_all_later_ones(
    tmp_path: Path,
) -> None:
    for _, rows in collect_some(tmp_path, 3):
        assert np.isfinite(rows.x).all()
        assert np.isfinite(rows.y).all()
        assert (np.diff(rows.label.astype(int), axis=1) >= 0).all()
        assert rows.valid[:, 0].all()


def test_trained_networks_can_be_used_by_the_policy(tmp_path: Path) -> None:
    found = collect_some(tmp_path, 3)
    table = make_table(found, 1.0, torch.device("cpu"))
    sets = train(table, [None, found[0][0]], Recipe(steps=5, batch=32))
    save(tmp_path / "all.npz", sets[None])
    loaded = check_networks(dict(np.load(tmp_path / "all.npz", allow_pickle=False)))
    assert (len(loaded.usable), loaded.fault) == (NETWORKS, "")
