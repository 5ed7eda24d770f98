"""The training of the planner's networks: studies, rows, and a few steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from training.planner.collect import StudyJob, collect_rows
from training.planner.openings import collect_openings, train_openings
from training.planner.synthetic import draw_study
from training.planner.train import Recipe, make_table, save, train
from training.planner.workloads import load_study, record_study, save_study

from paceline.policies.planner.network import Networks
from paceline.policies.planner.weights import NETWORKS, check_networks, make_rank_network

if TYPE_CHECKING:
    from pathlib import Path

    from training.planner.collect import Rows


def make_job(seed: int, folder: Path) -> StudyJob:
    return StudyJob(seed, Networks([make_rank_network()]), str(folder), str(folder), True)


def is_synthetic(seed: int) -> bool:
    """Say whether the study of a seed needs no file."""
    return bool(np.random.default_rng(seed).random() < 0.4)


def collect_some(folder: Path, count: int) -> list[tuple[str, Rows]]:
    """Collect rows of synthetic studies; the folder has no traces, so some seeds are left out."""
    found = []
    for seed in range(1000):
        if is_synthetic(seed):
            rows = collect_rows(make_job(seed, folder))
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


def test_a_study_of_trained_networks_is_read_as_it_was_written(tmp_path: Path) -> None:
    study = record_study(5, torch.device("cpu"))
    save_study(tmp_path / "5.npz", study)
    found = load_study(tmp_path / "5.npz")
    trials, epochs = found.losses.shape
    assert (len(found.configs or ()), found.epochs) == (trials, epochs)
    assert not np.isnan(found.losses).any()
    np.testing.assert_allclose(found.losses, study.losses, rtol=1e-6)
    assert found.configs == study.configs
    assert found.family == study.family


def test_trained_networks_can_be_used_by_the_policy(tmp_path: Path) -> None:
    found = collect_some(tmp_path, 3)
    table = make_table(found, 1.0, torch.device("cpu"))
    sets = train(table, [None, found[0][0]], Recipe(steps=5, batch=32))
    moments = [
        collect_openings(make_job(seed, tmp_path)) for seed in range(20) if is_synthetic(seed)
    ]
    drawn = [each for each in moments if each is not None]
    for each in drawn:
        assert np.isfinite(each.inputs).all()
        assert ((each.shares >= 0) & (each.shares <= 1)).all()
    save(tmp_path / "all.npz", sets[None], train_openings(drawn, found[0][0], steps=5))
    loaded = check_networks(dict(np.load(tmp_path / "all.npz", allow_pickle=False)))
    assert (len(loaded.usable.members), loaded.fault) == (NETWORKS, "")
