"""Train the planner's networks: `python -m training.planner.train --traces FOLDER --out FOLDER`.

Rounds of simulated studies, each with the networks of the round before; then the final networks,
and for each family of traces a set that has not seen that family, for the benchmark. All sets are
trained at once, as one batch of networks. Each set also has a network for new trials.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as fn

from paceline.policies.planner.network import Layers, Networks
from paceline.policies.planner.record import TRIAL_INPUTS
from paceline.policies.planner.weights import NETWORKS, OPENING, make_rank_network
from training.planner.collect import Rows, StudyJob, collect_rows, load_traces
from training.planner.openings import collect_openings, train_openings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.pool import Pool

SYNTHETIC = ("prior", "crossing")

# A family's set of networks; None: the set that has seen all.
Fold = str | None


class Recipe(NamedTuple):
    """How the networks are trained."""

    steps: int = 5000
    hidden: tuple[int, int] = (64, 32)
    dropout: float = 0.1
    decay: float = 0.01
    # The weight of all synthetic studies, where each family of traces has 1.
    synthetic: float = 10.0
    batch: int = 2048
    rate: float = 3e-3


class Table(NamedTuple):
    """All rows on the device, with the family of each and its chance to be drawn."""

    names: list[str]
    rows: Sequence[Tensor]
    family: Tensor
    chance: Tensor

    def draw(self, networks: int, batch: int) -> Tensor:
        """Draw the rows of a step: a batch for each network, from four samples."""
        at = torch.multinomial(self.chance, batch * 4, replacement=True).view(4, batch)
        return at[torch.randint(4, (networks,), device=at.device)]

    def take(self, name: str, at: Tensor) -> Tensor:
        """Return a column of some rows."""
        return self.rows[Rows._fields.index(name)][at].float()


def make_table(found: Sequence[tuple[str, Rows]], synthetic: float, device: torch.device) -> Table:
    """Return the rows of all studies as one table."""
    names = sorted({family for family, _ in found})
    family = np.concatenate([np.full(len(rows.x), names.index(name)) for name, rows in found])
    stacked = [np.concatenate(each) for each in zip(*(rows for _, rows in found), strict=True)]
    number = torch.tensor(family, device=device)
    counts = torch.bincount(number, minlength=len(names)).float().clamp(min=1)
    weights = [synthetic / len(SYNTHETIC) if name in SYNTHETIC else 1.0 for name in names]
    chance = (torch.tensor(weights, device=device) / counts)[number]
    return Table(names, [torch.tensor(each, device=device) for each in stacked], number, chance)


class NetworkBatch:
    """Networks of one shape that are trained side by side, each on its own sample."""

    def __init__(self, count: int, recipe: Recipe, mean: Tensor, std: Tensor, bias: float) -> None:
        device = mean.device
        first, second = recipe.hidden
        shapes = ((len(mean), first), (first, second), (second, 1))
        self.weights = [
            (torch.randn(count, a, b, device=device) * math.sqrt(2 / a)).requires_grad_()
            for a, b in shapes
        ]
        self.biases = [
            torch.zeros(count, 1, b, device=device, requires_grad=True) for _, b in shapes
        ]
        with torch.no_grad():
            self.weights[-1].mul_(0.3)
            self.biases[-1].fill_(bias)
        self.mean, self.std = mean, std
        self._dropout = recipe.dropout

    @property
    def parameters(self) -> list[Tensor]:
        """All weights and biases."""
        return [*self.weights, *self.biases]

    def compute_odds(self, x: Tensor, y: Tensor, *, training: bool) -> Tensor:
        """Return log odds as (networks, rows, horizons) of rows for each network."""
        own = x.shape[-1]
        a = (x - self.mean[:own]) / self.std[:own]
        b = (y - self.mean[own:]) / self.std[own:]
        first = self.weights[0]
        hidden = (a @ first[:, :own])[:, :, None] + (b.flatten(1, 2) @ first[:, own:]).unflatten(
            1, b.shape[1:3]
        )
        hidden = torch.relu(hidden + self.biases[0][:, :, None]).flatten(1, 2)
        hidden = fn.dropout(hidden, self._dropout, training)
        hidden = torch.relu(hidden @ self.weights[1] + self.biases[1])
        hidden = fn.dropout(hidden, self._dropout, training)
        odds = hidden @ self.weights[2] + self.biases[2]
        return odds.view(*y.shape[:3])

    def extract(self, at: int, scale: float = 1.0, shift: float = 0.0) -> Layers:
        """Return one network, with its log odds corrected by a line."""
        w = [each[at].detach().double().cpu().numpy() for each in self.weights]
        b = [each[at, 0].detach().double().cpu().numpy() for each in self.biases]
        mean, std = self.mean.double().cpu().numpy(), self.std.double().cpu().numpy()
        first = w[0] / std[:, None]
        return Layers(
            first[:TRIAL_INPUTS],
            first[TRIAL_INPUTS:],
            b[0] - (mean / std) @ w[0],
            w[1],
            b[1],
            w[2][:, 0] * scale,
            b[2][0] * scale + shift,
        )


class Fitter:
    """One optimizer for all networks of a batch; the mean of the last steps is the result."""

    def __init__(self, batch: NetworkBatch, steps: int, recipe: Recipe) -> None:
        self._batch, self._steps, self._step = batch, steps, 0
        self._optimizer = torch.optim.AdamW(
            batch.parameters, lr=recipe.rate, weight_decay=recipe.decay
        )
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(self._optimizer, recipe.rate, steps)
        self._means = [torch.zeros_like(each) for each in batch.parameters]

    def step(self, loss: Tensor) -> None:
        """Take one step down."""
        self._optimizer.zero_grad()
        loss.backward()
        parameters = self._batch.parameters
        torch.nn.utils.clip_grad_norm_(parameters, 5.0 * math.sqrt(len(parameters[0])))
        self._optimizer.step()
        self._schedule.step()
        late = self._step - (self._steps - max(1, self._steps // 5)) + 1
        self._step += 1
        if late > 0:
            for mean, each in zip(self._means, parameters, strict=True):
                mean += (each.detach() - mean) / late
        if self._step == self._steps:
            with torch.no_grad():
                for mean, each in zip(self._means, parameters, strict=True):
                    each.copy_(mean)


def train(table: Table, folds: Sequence[Fold], recipe: Recipe) -> dict[Fold, list[Layers]]:
    """Return the networks of each fold; those of a family do not see it."""
    began = time.perf_counter()
    torch.manual_seed(0)
    numbers = [table.names.index(fold) if fold in table.names else -1 for fold in folds]
    batch = train_chances(table, numbers, recipe)
    line = (1.0, 0.0) if len(folds) == 1 else score_held_out(table, folds, batch)
    print(f"  {recipe}: {time.perf_counter() - began:.0f} s, line {line[0]:.3f} {line[1]:.3f}")
    return {
        fold: [batch.extract(n * NETWORKS + k, *line) for k in range(NETWORKS)]
        for n, fold in enumerate(folds)
    }


def train_chances(table: Table, numbers: Sequence[int], recipe: Recipe) -> NetworkBatch:
    """Return the networks of chances, `NETWORKS` for each fold."""
    device = table.chance.device
    held = torch.tensor([n for n in numbers for _ in range(NETWORKS)], device=device)
    sample = torch.multinomial(table.chance, min(100_000, len(table.chance)), replacement=True)
    inputs = table.take("x", sample), table.take("y", sample).flatten(0, 1)
    mean = torch.cat([each.mean(0) for each in inputs])
    std = torch.cat([each.std(0) for each in inputs]).clamp(min=1e-2)
    batch = NetworkBatch(len(held), recipe, mean, std, -3.0)
    fitter = Fitter(batch, recipe.steps, recipe)
    for _ in range(recipe.steps):
        at = table.draw(len(held), recipe.batch)
        odds = batch.compute_odds(table.take("x", at), table.take("y", at), training=True)
        weight = table.take("valid", at) * (table.family[at] != held[:, None])[:, :, None]
        losses = fn.binary_cross_entropy_with_logits(
            odds, table.take("label", at), reduction="none"
        )
        fitter.step(((losses * weight).sum((1, 2)) / weight.sum((1, 2)).clamp(min=1)).sum())
    return batch


def score_held_out(table: Table, folds: Sequence[Fold], batch: NetworkBatch) -> tuple[float, float]:
    """Print the losses on families that were held out; return the line that corrects log odds."""
    odds, labels, weights, losses = [], [], [], []
    for number, fold in enumerate(folds):
        if fold is None or fold not in table.names:
            continue
        rows = torch.nonzero(table.family == table.names.index(fold))[:20_000, 0]
        own = slice(number * NETWORKS, (number + 1) * NETWORKS)
        with torch.no_grad():
            both = batch.compute_odds(
                table.take("x", rows).expand(len(batch.weights[0]), -1, -1),
                table.take("y", rows).expand(len(batch.weights[0]), -1, -1, -1),
                training=False,
            )
        label, valid = table.take("label", rows), table.take("valid", rows)
        weight = valid / valid.sum()
        rate = (label * weight).sum().clamp(1e-6, 1 - 1e-6)
        stated = [both[own].mean(0), both[:NETWORKS].mean(0), torch.logit(rate).expand_as(label)]
        losses.append([_measure_loss(each, label, weight).item() for each in stated])
        odds.append(stated[0].flatten())
        labels.append(label.flatten())
        weights.append(weight.flatten())
        print(f"  {fold}: " + " ".join(f"{each:.4f}" for each in losses[-1]))
    print("  held out, seen, base rate: " + " ".join(f"{m:.4f}" for m in np.mean(losses, axis=0)))
    return _fit_line(torch.cat(odds), torch.cat(labels), torch.cat(weights))


def _measure_loss(odds: Tensor, label: Tensor, weight: Tensor) -> Tensor:
    losses = fn.binary_cross_entropy_with_logits(odds, label, reduction="none")
    return (losses * weight).sum()


def _fit_line(odds: Tensor, label: Tensor, weight: Tensor) -> tuple[float, float]:
    line = torch.tensor([1.0, 0.0], device=odds.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([line], max_iter=50)

    def measure() -> Tensor:
        optimizer.zero_grad()
        loss = _measure_loss(line[0] * odds + line[1], label, weight)
        loss.backward()
        return loss

    optimizer.step(measure)
    return float(line[0].item()), float(line[1].item())


def save(path: Path, networks: Sequence[Layers], opening: Layers) -> None:
    """Write the networks of a set, and that for new trials, as plain arrays."""
    members = {**{str(number): each for number, each in enumerate(networks)}, OPENING: opening}
    arrays = {
        f"{number}_{name}": np.asarray(value, dtype=np.float32)
        for number, layers in members.items()
        for name, value in layers._asdict().items()
    }
    np.savez(path, **arrays)


def collect(pool: Pool, seconds: float, job: StudyJob) -> list[tuple[str, Rows]]:
    """Simulate studies for some seconds, with seeds from the job's on."""
    began = time.monotonic()

    def list_jobs() -> Iterator[StudyJob]:
        seed = job.seed
        while time.monotonic() - began < seconds:
            yield job._replace(seed=seed)
            seed += 1

    return [rows for rows in pool.imap_unordered(collect_rows, list_jobs()) if rows is not None]


def main() -> None:
    """Run all rounds and write the networks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", required=True)
    parser.add_argument("--trained", required=True, help="studies of training.planner.workloads")
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", default="40,50,90,160,160", help="simulated in each round")
    parser.add_argument("--steps", default="1000,1500,3000,3000,5000", help="in each round")
    parser.add_argument("--openings", type=int, default=6000, help="studies for new trials")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    networks = Networks([make_rank_network()])
    families = sorted(load_traces(options.traces))
    seconds = [float(each) for each in options.seconds.split(",")]
    steps = [int(each) for each in options.steps.split(",")]
    found: list[tuple[str, Rows]] = []
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        for number, (time_s, count) in enumerate(zip(seconds, steps, strict=True)):
            job = StudyJob(number * 10**6, networks, options.traces, options.trained, number == 0)
            found += collect(pool, time_s, job)
            print(f"round {number}: {len(found)} studies so far", flush=True)
            is_last = number == len(seconds) - 1
            folds: list[Fold] = [None, *families] if is_last else [None]
            recipe = Recipe(steps=count)
            sets = train(make_table(found, recipe.synthetic, device), folds, recipe)
            networks = Networks(sets[None])
        jobs = [job._replace(seed=number) for number in range(options.openings)]
        moments = [each for each in pool.map(collect_openings, jobs) if each is not None]
    for fold, each in sets.items():
        save(out / f"{fold or 'all'}.npz", each, train_openings(moments, fold))


if __name__ == "__main__":
    main()
