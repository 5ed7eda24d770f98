"""Trials that share what they have in common end as if each had trained alone, bit for bit.

Live, through real processes on the CPU, with torch and scikit-learn: 24 schedules of learning rate
and batch size, every loss and every final weight.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from command_line import read_log
from sklearn import linear_model
from small_networks import is_equal, make_images, make_network, shuffle_rows

import paceline as pl
from paceline.analysis.sharing import measure_sharing
from paceline.core.decisions import Launch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from paceline.analysis.sharing import Sharing

EPOCHS = 6
# The two momenta are equal where epochs begin, and not inside them: they share nothing.
LINE = pl.linear(0.5, 0.9, 4)
SCHEDULES = [
    {
        "lr": pl.piecewise([(0, first), (2, second), (4, 0.003)]),
        "batch": pl.piecewise([(0, 16), (3, batch)]),
        "momentum": momentum,
    }
    for first in (0.3, 0.1)
    for second in (0.1, 0.03, 0.01)
    for batch in (16, 24)
    for momentum in (LINE, pl.smooth(LINE))
]
# For each momentum two rates for two epochs, six for one, and twelve paths from there on.
DIFFERENT = 2 * (2 * 2 + 6 * 1 + 12 * 3)


def with_torch(trial: Any) -> None:  # noqa: ANN401
    """Train a network with dropout and momentum, reading its schedules step by step."""
    pixels, labels = (torch.from_numpy(array) for array in make_images())
    model, opt = make_network()
    _, _, losses = trial.keep(model=model, opt=opt, losses=[])
    for epoch in trial.epochs():
        batches = torch.randperm(48).split(trial["batch"])
        for step, rows in enumerate(batches):
            progress = step / len(batches)
            opt.param_groups[0]["lr"] = trial.value("lr", progress)
            opt.param_groups[0]["momentum"] = trial.value("momentum", progress)
            opt.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(pixels[rows]), labels[rows])
            loss.backward()
            opt.step()
        losses.append(loss.item())
        trial.report(epoch=epoch)


def with_sklearn(trial: Any) -> None:  # noqa: ANN401
    """Fit a linear model batch by batch; momentum weighs each new fit against the one before."""
    pixels, labels = make_images()
    inputs = pixels.reshape(len(pixels), -1)
    model = linear_model.SGDClassifier(loss="log_loss", learning_rate="constant", eta0=1.0)
    model.partial_fit(inputs[:3], labels[:3], classes=[0, 1, 2])

    def save() -> dict[str, Any]:
        return {"coef": model.coef_, "intercept": model.intercept_, "t": model.t_}

    def load(state: dict[str, Any]) -> None:
        model.coef_, model.intercept_, model.t_ = state["coef"], state["intercept"], state["t"]

    _, losses = trial.keep(model=(save, load), losses=[])
    for epoch in trial.epochs():
        order, size = shuffle_rows(len(inputs)), trial["batch"]
        for start in range(0, len(order), size):
            before, rows = model.coef_.copy(), order[start : start + size]
            model.set_params(eta0=trial.value("lr", start / len(order)))
            model.partial_fit(inputs[rows], labels[rows])
            model.coef_ += 0.1 * trial.value("momentum", start / len(order)) * before
        losses.append(float(model.decision_function(inputs).sum()))
        trial.report(epoch=epoch)


def trained(
    train: Callable[[Any], None],
    store: str,
    name: str,
    schedules: Sequence[Any] = SCHEDULES,
    *,
    share: bool,
) -> tuple[Sharing, list[dict[str, Any]]]:
    """Train all schedules, submitted together; return what was shared, and how each ended."""
    # The last epoch is the best, so that its checkpoint is the one that is shown.
    told: dict[str, Any] = {"metric": "epoch", "mode": "max", "epochs": EPOCHS, "slots": 2}
    ends = []
    with pl.Study(train, share=share, name=name, store=store, progress=False, **told) as study:
        for trial in study.group([(schedule, EPOCHS) for schedule in schedules]):
            assert trial.checkpoint is not None
            assert trial.checkpoint.epoch == EPOCHS
            ends.append(trial.checkpoint.load())
    return measure_sharing(read_log(store, name)), ends


@pytest.mark.slow
@pytest.mark.parametrize("train", [with_torch, with_sklearn])
def test_a_trial_that_shares_prefixes_ends_as_one_trained_alone(
    train: Callable[[Any], None], tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path / 'studies.db'}"
    found, ends = trained(train, store, "together", share=True)
    alone, singles = trained(train, store, "apart", share=False)
    assert (found.epochs_asked, found.epochs_trained) == (24 * EPOCHS, DIFFERENT)
    assert alone.epochs_trained == 24 * EPOCHS
    assert len(ends) == len(singles) == 24
    for number, (end, single) in enumerate(zip(ends, singles, strict=True)):
        assert len(end["losses"]) == EPOCHS
        assert is_equal(end, single), f"trial {number} ends otherwise where it shares"
    different = {tuple(end["losses"]) for end in ends}
    assert len(different) == 24, "some schedules train the same, so that too little is shown"


def descent() -> Callable[[Any], None]:
    """Return a function that goes to its workers whole, so that they need nothing of this file."""

    def train(trial: Any) -> None:  # noqa: ANN401
        weights, losses = trial.keep(weights=[1.0, -1.0], losses=[])
        for epoch in trial.epochs():
            for step in range(48 // trial["batch"]):
                at = step * trial["batch"] / 48
                slopes = [weight + random.gauss(0.0, 0.1) for weight in weights]
                for place, slope in enumerate(slopes):
                    weights[place] -= trial.value("lr", at) * trial.value("momentum", at) * slope
            losses.append(sum(weight * weight for weight in weights))
            trial.report(epoch=epoch)

    return train


@pytest.mark.parametrize("train", [descent(), pytest.param(with_torch, marks=pytest.mark.slow)])
def test_a_trial_continued_from_another_study_ends_as_one_trained_alone(
    train: Callable[[Any], None], tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path / 'studies.db'}"
    # Half of the second study's paths are the first one's, half leave those after epoch 3.
    four = SCHEDULES[:8:2]
    half = [schedule for schedule in four if schedule["batch"] == 16]
    trained(train, store, "first", half, share=True)
    found, ends = trained(train, store, "second", four, share=True)
    _, singles = trained(train, store, "apart", four, share=False)
    assert found.adopted == {"first": 2}
    assert found.epochs_trained < found.epochs_needed
    launches = [
        entry
        for step in read_log(store, "second")
        for entry in step.decisions
        if isinstance(entry, Launch)
    ]
    assert any(launch.source is not None and launch.source < 0 for launch in launches)
    for number, (end, single) in enumerate(zip(ends, singles, strict=True)):
        assert is_equal(end, single), f"trial {number} ends otherwise where it was taken over"
    assert len({tuple(end["losses"]) for end in ends}) == 4
