"""Train the network of openings: the chance that the next trial reaches a loss at its first look.

The answer is the share of the trials that are not open yet. Studies are drawn at random moments, at
which no open trial has reached the loss.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch.nn import functional as fn

from paceline.policies.planner.network import Layers
from paceline.policies.planner.record import OPENING_INPUTS, StudyRecord
from training.planner.collect import SHARES, choose_study, find_target
from training.planner.fast_sim import prepare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from training.planner.collect import StudyJob

# The moments that are drawn from a study.
MOMENTS = 8
HIDDEN = (24, 12)


class Openings(NamedTuple):
    """Inputs at some moments of a study, and the shares of trials that would succeed at once."""

    family: str
    inputs: np.ndarray
    shares: np.ndarray


def collect_openings(job: StudyJob) -> Openings | None:
    """Draw moments of one study."""
    rng = np.random.default_rng(job.seed)
    study = choose_study(rng, job)
    trials = len(study.lengths)
    ordered = prepare(study, rng.permutation(trials)[:400])
    trials = len(ordered.lengths)
    inputs, shares = [], []
    for _ in range(MOMENTS):
        target = find_target(ordered, float(rng.choice(SHARES)))
        count = int(np.exp(rng.uniform(math.log(2), math.log(max(3, trials - 5)))))
        if not math.isfinite(target) or count >= trials - 1:
            continue
        record = StudyRecord(study.epochs)
        given = rng.random() < 0.6
        record.is_target_given = given
        order = rng.permutation(trials)
        for number, trial in enumerate(order[:count].tolist()):
            record.open(number, {})
            for _ in range(1 + int(rng.integers(3)) * (rng.random() < 0.4)):
                level = record.level(number) + 1
                if level == len(record.looks) or record.looks[level] > ordered.lengths[trial]:
                    break
                seen = ordered.look(trial, record.looks[level])
                if given and seen.best <= target:
                    break
                record.note_best(seen.best_epoch, seen.best)
                record.look(number, seen)
        if not given:
            gain = max(1e-9, record.first_loss - record.best_loss)
            target = record.best_loss - gain * 10 ** rng.uniform(-2.7, 0)
        if math.isfinite(target):
            inputs.append(record.make_opening_inputs(target))
            shares.append(float((ordered.best[order[count:], 0] <= target).mean()))
    if not inputs:
        return None
    return Openings(study.family, np.array(inputs), np.array(shares))


def train_openings(found: Sequence[Openings], without: str | None, steps: int = 3000) -> Layers:
    """Return the network, trained without one family; all other families count alike."""
    torch.manual_seed(0)
    used = [each for each in found if each.family != without]
    counts: dict[str, int] = {}
    for each in used:
        counts[each.family] = counts.get(each.family, 0) + len(each.shares)
    x = torch.tensor(np.concatenate([each.inputs for each in used])).float()
    y = torch.tensor(np.concatenate([each.shares for each in used])).float()
    weight = np.concatenate([np.full(len(e.shares), 1 / counts[e.family]) for e in used])
    chance = torch.tensor(weight / weight.sum())
    mean, std = x.mean(0), x.std(0).clamp(min=1e-2)
    first, second = HIDDEN
    model = torch.nn.Sequential(
        torch.nn.Linear(OPENING_INPUTS, first), torch.nn.ReLU(),
        torch.nn.Linear(first, second), torch.nn.ReLU(), torch.nn.Linear(second, 1),
    )  # fmt: skip
    torch.nn.init.constant_(model[4].bias, -4.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps)
    for _ in range(steps):
        at = torch.multinomial(chance, 512, replacement=True)
        odds = model((x[at] - mean) / std)[:, 0]
        loss = fn.binary_cross_entropy_with_logits(odds, y[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    w = [model[at].weight.detach().double().numpy().T for at in (0, 2, 4)]
    b = [model[at].bias.detach().double().numpy() for at in (0, 2, 4)]
    scaled = w[0] / std.double().numpy()[:, None]
    bias = b[0] - (mean / std).double().numpy() @ w[0]
    nothing = np.zeros((1, first))
    return Layers(scaled, nothing, bias, w[1], b[1], w[2][:, 0], b[2][0])
