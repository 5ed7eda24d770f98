"""Training of the pre-trained curve model: small, on a CPU, and reproducible."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from training.pfn import tokens
from training.pfn.export import measure_difference
from training.pfn.model import Network
from training.pfn.prior import draw_studies
from training.pfn.train import compute_loss, make_task, train

from paceline.curves.pfn import encoding

if TYPE_CHECKING:
    from pathlib import Path

SMALL = {"width": 16, "layers": 1, "heads": 2, "inner": 16}
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("length", [12, 100, 400])
def test_training_and_inference_see_the_same_tokens(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    studies, trials = 6, 4
    drawn = draw_studies(studies, trials, length, generator)
    values = drawn.values.reshape(-1, length)
    epochs = drawn.epochs.reshape(-1)
    share = torch.rand(len(epochs), generator=generator)
    count = torch.minimum((1 + share * (epochs - 1)).long(), epochs - 1)
    others = (torch.arange(trials)[:, None] + 1 + torch.arange(trials - 1)) % trials
    view = drawn.values[:, others].reshape(len(epochs), trials - 1, length)
    lengths = drawn.epochs[:, others].reshape(len(epochs), trials - 1)
    bounds = drawn.bounds[:, None].expand(-1, trials, -1).reshape(-1, 2)

    cut = tokens.split_into_points(values, count)
    frame = tokens.compute_frame(cut)
    points = tokens.encode_points(cut, frame, count, epochs)
    seen = tokens.encode_others(view, lengths, frame, count, epochs)
    met = seen[:, :, 14] > 0
    whole = tokens.encode_curves(cut, frame, count, epochs, bounds, seen, met)
    asked = tokens.encode_questions(torch.stack([count + 1, epochs], 1), count, epochs)

    compared = 0
    for row in range(len(epochs)):
        known, last = int(count[row]), int(epochs[row])
        mine = encoding.Points(values[row, :known].double().numpy())
        its = encoding.compute_frame(mine)
        if its is None:
            continue
        compared += 1
        told = [
            encoding.encode_other(curve[:long].double().numpy(), its, known, last)
            for curve, long in zip(view[row], lengths[row], strict=True)
        ]
        rest = np.array([token for token in told if token is not None])
        rest = rest.reshape(-1, encoding.OTHER)
        finite = torch.isfinite(bounds[row]).all()
        bound = (float(bounds[row, 0]), float(bounds[row, 1])) if finite else None
        for theirs, ours in (
            (points[row, : len(mine.means)], encoding.encode_points(mine, its, last)),
            (seen[row][met[row]], rest),
            (whole[row], encoding.encode_curve(mine, its, last, bound, rest)),
            (asked[row], encoding.encode_questions([known + 1, last], known, last)),
        ):
            # Training rounds to single precision.
            np.testing.assert_allclose(theirs.numpy(), ours, atol=5e-3)
    assert compared > 15


def test_the_batch_of_a_step_is_reproducible_and_differs_from_other_steps() -> None:
    one, again, other = (make_task(0, step, 2, CPU) for step in (3, 3, 4))
    assert torch.equal(one.target, again.target)
    assert torch.equal(one.batch.points, again.batch.points)
    assert not torch.equal(one.batch.whole, other.batch.whole)
    assert all(torch.isfinite(part.float()).all() for part in one.batch)


def test_interrupted_training_resumes_exactly(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    whole.mkdir()
    part.mkdir()
    kept = train(whole, 4, 1, sizes=SMALL).state_dict()
    train(part, 4, 1, sizes=SMALL, pause=2)
    resumed = train(part, 4, 1, sizes=SMALL).state_dict()
    for name, weights in kept.items():
        torch.testing.assert_close(resumed[name], weights)


def test_the_exported_network_equals_the_trained_one(tmp_path: Path) -> None:
    network = train(tmp_path, 2, 1, sizes=SMALL)
    assert measure_difference(network, tmp_path / "pfn.onnx") < 1e-6


def test_training_learns(tmp_path: Path) -> None:
    task = make_task(1, 1, 2, CPU)
    network = train(tmp_path, 40, 1, sizes=SMALL)
    with torch.no_grad():
        before, after = (float(compute_loss(each, task)) for each in (Network(**SMALL), network))
    assert after < before - 0.2
