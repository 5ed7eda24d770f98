"""Train many small networks at once, and keep their learning curves as studies.

`python -m training.planner.workloads --out FOLDER --studies 200` writes one file for each study.
Real training behaves in ways that formulas miss: plateaus before a task is understood, overfitting,
divergence, rates that are lowered, configs that start late and win. All configs of a study are
trained side by side, as one batch of networks with hyperparameters of their own.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as fn

from training.planner.fast_sim import Study

TASKS = (
    "pictures", "autoencoder", "teacher", "clusters", "parity", "sums", "waves", "text",
)  # fmt: skip
SCHEDULES = ("constant", "cosine", "steps", "warmup", "falling", "cycles")
_ROOT = Path(__file__).parents[2]


class Task(NamedTuple):
    """Data to train and to validate on; whole numbers as targets are classes."""

    x: Tensor
    y: Tensor
    valid_x: Tensor
    valid_y: Tensor
    outputs: int


def make_task(kind: str, rng: np.random.Generator) -> Task:
    """Return the data of a task, drawn anew."""
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    count = int(np.exp(rng.uniform(math.log(150), math.log(2500))))
    total = count + int(rng.choice([100, 300, 1000]))
    x, y, outputs = _MAKERS[kind](total, rng, generator)
    if not y.is_floating_point() and rng.random() < 0.4:
        wrong = torch.rand(total, generator=generator) < rng.uniform(0.02, 0.3)
        y = torch.where(wrong, torch.randint(outputs, (total,), generator=generator), y)
    return Task(x[:count], y[:count], x[count:], y[count:], outputs)


_Made = tuple[Tensor, Tensor, int]


def _make_pictures(total: int, rng: np.random.Generator, generator: torch.Generator) -> _Made:
    with (files("paceline.data") / "fashion_mnist_14.npz").open("rb") as file:
        arrays = dict(np.load(file))
    names = sorted(arrays)
    images = next(arrays[name] for name in names if arrays[name].ndim > 1)
    labels = next(arrays[name] for name in names if arrays[name].ndim == 1)
    at = torch.randint(len(labels), (total,), generator=generator)
    x = torch.tensor(images)[at].float().reshape(total, 1, 14, 14) / 255
    x = fn.avg_pool2d(x, 2).flatten(1)
    return (x - x.mean()) / x.std(), torch.tensor(labels)[at].long(), 10


def _make_autoencoder(total: int, rng: np.random.Generator, generator: torch.Generator) -> _Made:
    x, _, _ = _make_pictures(total, rng, generator)
    return x, x, x.shape[1]


def _make_teacher(total: int, rng: np.random.Generator, generator: torch.Generator) -> _Made:
    inputs, classes = int(rng.integers(6, 40)), int(rng.integers(2, 8))
    x = torch.randn(total, inputs, generator=generator)
    first = torch.randn(inputs, 16, generator=generator) / math.sqrt(inputs)
    second = torch.randn(16, classes, generator=generator)
    return x, (torch.sin(2.0 * rng.uniform(0.5, 2) * x @ first) @ second).argmax(1), classes


def _make_clusters(total: int, rng: np.random.Generator, generator: torch.Generator) -> _Made:
    inputs, classes = int(rng.integers(4, 32)), int(rng.integers(3, 12))
    centres = torch.randn(classes * 3, inputs, generator=generator) * rng.uniform(0.6, 1.6)
    own = torch.randint(classes * 3, (total,), generator=generator)
    return centres[own] + torch.randn(total, inputs, generator=generator), own % classes, classes


def _make_parity(total: int, rng: np.random.Generator, generator: torch.Generator) -> _Made:
    inputs, used = int(rng.integers(8, 24)), int(rng.integers(2, 5))
    x = torch.randint(2, (total, inputs), generator=generator).float() * 2 - 1
    return x, (x[:, :used].prod(1) > 0).long(), 2


def _make_sums(total: int, rng: np.random.Generator, generator: torch.Generator) -> _Made:
    size = int(rng.integers(7, 30))
    a, b = (torch.randint(size, (total,), generator=generator) for _ in range(2))
    x = torch.cat([fn.one_hot(a, size), fn.one_hot(b, size)], dim=1).float()
    return x * 2, (a + b) % size, size


def _make_waves(total: int, rng: np.random.Generator, generator: torch.Generator) -> _Made:
    inputs = int(rng.integers(1, 6))
    x = torch.rand(total, inputs, generator=generator) * 2 - 1
    waves = torch.randn(inputs, 5, generator=generator) * rng.uniform(1, 6)
    y = torch.sin(x @ waves).sum(1, keepdim=True)
    return x, y + 0.1 * torch.randn(total, 1, generator=generator), 1


def _make_text(total: int, rng: np.random.Generator, generator: torch.Generator) -> _Made:
    pages = sorted((_ROOT / "docs").glob("*.md"))
    text = re.sub(r"[^a-z ]+", " ", pages[rng.integers(len(pages))].read_text().lower())
    codes = torch.tensor([0 if c == " " else ord(c) - 96 for c in text])
    length = int(rng.integers(2, 4))
    at = torch.randint(len(codes) - length - 1, (total,), generator=generator)
    x = torch.cat([fn.one_hot(codes[at + i], 27) for i in range(length)], dim=1).float()
    return x * 2, codes[at + length], 27


_MAKERS = {
    "pictures": _make_pictures,
    "autoencoder": _make_autoencoder,
    "teacher": _make_teacher,
    "clusters": _make_clusters,
    "parity": _make_parity,
    "sums": _make_sums,
    "waves": _make_waves,
    "text": _make_text,
}


class Grid(NamedTuple):
    """The hyperparameters of all configs of a study, one row each."""

    rate: Tensor
    momentum: Tensor
    decay: Tensor
    dropout: Tensor
    width: Tensor
    scale: Tensor
    is_adam: Tensor
    schedule: list[str]

    def list_configs(self) -> list[dict[str, object]]:
        """Return the configs as a user would write them."""
        numbers = ("rate", "momentum", "decay", "dropout", "width", "scale", "is_adam")
        rows = [
            {name: round(float(getattr(self, name)[at]), 6) for name in numbers}
            | {"schedule": self.schedule[at]}
            for at in range(len(self.rate))
        ]
        # What all have in common is not a hyperparameter.
        varied = [name for name in rows[0] if len({str(row[name]) for row in rows}) > 1]
        return [{name: row[name] for name in varied} for row in rows]


def draw_grid(trials: int, rng: np.random.Generator) -> Grid:
    """Draw configs; some hyperparameters are the same for all."""

    def vary(draw: np.ndarray, usual: float, chance: float) -> Tensor:
        values = draw if rng.random() < chance else np.full(trials, usual)
        return torch.tensor(values, dtype=torch.float32)

    share = rng.choice([0.0, 0.5, 1.0])
    is_adam = rng.random(trials) < share
    low, high = rng.uniform(-4, -2.3), rng.uniform(-1.3, 0.8)
    rate = 10 ** rng.uniform(low, high, trials) * np.where(is_adam, 0.05, 1.0)
    kinds = list(rng.choice(SCHEDULES, int(rng.integers(1, 4)), replace=False))
    return Grid(
        torch.tensor(rate, dtype=torch.float32),
        vary(rng.uniform(0, 0.99, trials), float(rng.choice([0, 0.9])), 0.5),
        vary(10 ** rng.uniform(-6, -1.5, trials), 0.0, 0.5),
        vary(rng.uniform(0, 0.6, trials), 0.0, 0.4),
        vary(np.round(2 ** rng.uniform(2, 6, trials)), 64.0, 0.6),
        vary(10 ** rng.uniform(-1, 0.5, trials), 1.0, 0.3),
        torch.tensor(is_adam, dtype=torch.float32),
        [str(kinds[int(rng.integers(len(kinds)))]) for _ in range(trials)],
    )


def compute_schedules(names: list[str], epochs: int, rng: np.random.Generator) -> Tensor:
    """Return the factor of the rate by config and epoch."""
    x = np.arange(epochs) / epochs
    falls = np.sort(rng.uniform(0.2, 0.95, int(rng.integers(1, 4))))
    cycles = int(rng.integers(2, 6))
    known = {
        "constant": np.ones(epochs),
        "cosine": 0.5 * (1 + np.cos(math.pi * x)),
        "steps": 0.1 ** (x[:, None] >= falls).sum(1),
        "warmup": np.minimum(1, (x + 1e-3) / rng.uniform(0.05, 0.4)),
        "falling": 0.01**x,
        "cycles": 0.5 * (1 + np.cos(math.pi * ((x * cycles) % 1))) + 1e-3,
    }
    return torch.tensor(np.stack([known[name] for name in names]), dtype=torch.float32)


class Learners:
    """All networks of a study, and their optimizers."""

    def __init__(self, task: Task, grid: Grid, rng: np.random.Generator) -> None:
        self._grid = grid
        trials, hidden = len(grid.rate), 64
        sizes = [task.x.shape[1], *[hidden] * int(rng.integers(1, 4)), task.outputs]
        self._activation = [torch.relu, torch.tanh, fn.gelu][int(rng.integers(3))]
        self._normalises = bool(rng.random() < 0.3)
        device = task.x.device
        generator = torch.Generator(device).manual_seed(int(rng.integers(2**31)))
        self._mask = (torch.arange(hidden, device=device) < grid.width[:, None]).float()[:, None]
        self.weights = [
            torch.randn(trials, a, b, device=device, generator=generator)
            * (grid.scale / math.sqrt(a))[:, None, None]
            for a, b in pairwise(sizes)
        ]
        self.weights += [torch.zeros(trials, 1, b, device=device) for b in sizes[1:]]
        for each in self.weights:
            each.requires_grad_()
        self._first = [torch.zeros_like(each) for each in self.weights]
        self._second = [torch.zeros_like(each) for each in self.weights]
        self._steps = 0

    def compute(self, x: Tensor, *, training: bool) -> Tensor:
        """Return the outputs as (configs, rows, outputs)."""
        layers = len(self.weights) // 2
        hidden = x.expand(len(self._grid.rate), -1, -1)
        for layer in range(layers):
            hidden = torch.baddbmm(self.weights[layers + layer], hidden, self.weights[layer])
            if layer < layers - 1:
                if self._normalises:
                    hidden = fn.layer_norm(hidden, hidden.shape[-1:])
                hidden = self._activation(hidden) * self._mask
                if training:
                    keep = 1 - self._grid.dropout[:, None, None]
                    hidden = hidden * (torch.rand_like(hidden) < keep) / keep
        return hidden

    def step(self, x: Tensor, y: Tensor, factor: Tensor) -> None:
        """Take one step down, each config with its own rate."""
        outputs = self.compute(x, training=True)
        loss = measure_losses(outputs, y).sum()
        gradients = torch.autograd.grad(loss, self.weights)
        grid, adam = self._grid, self._grid.is_adam[:, None, None]
        rate, beta = (grid.rate * factor)[:, None, None], grid.momentum[:, None, None]
        self._steps += 1
        correct = 1 - 0.999**self._steps
        with torch.no_grad():
            for weight, gradient, first, second in zip(
                self.weights, gradients, self._first, self._second, strict=True
            ):
                gradient = gradient + grid.decay[:, None, None] * weight
                second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
                scaled = gradient / ((second / correct).sqrt() + 1e-8)
                first.mul_(beta).add_(torch.where(adam > 0, scaled * (1 - beta), gradient))
                weight.sub_(rate * first)


def measure_losses(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the mean loss of each config."""
    if y.is_floating_point():
        return ((outputs - y) ** 2).mean((1, 2))
    trials, rows, _ = outputs.shape
    losses = fn.cross_entropy(outputs.flatten(0, 1), y.repeat(trials), reduction="none")
    return losses.view(trials, rows).mean(1)


def record_study(seed: int, device: torch.device) -> Study:
    """Train the configs of one study, and return their curves."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    kind = TASKS[seed % len(TASKS)]
    task = make_task(kind, rng)
    task = Task(*(each.to(device) for each in task[:4]), task.outputs)
    trials, epochs = int(rng.choice([30, 60, 100])), int(rng.choice([10, 27, 50, 50, 81, 100]))
    grid = draw_grid(trials, rng)
    factors = compute_schedules(grid.schedule, epochs, rng).to(device)
    configs = grid.list_configs()
    grid = Grid(*(each.to(device) for each in grid[:-1]), grid.schedule)
    learners = Learners(task, grid, rng)
    batch = int(rng.choice([16, 32, 64]))
    steps = int(np.clip(len(task.x) // batch * rng.choice([0.3, 1.0]), 2, 20))
    is_error = not task.y.is_floating_point() and rng.random() < 0.6
    curves = []
    for epoch in range(epochs):
        for _ in range(steps):
            at = torch.randint(len(task.x), (batch,), device=device)
            learners.step(task.x[at], task.y[at], factors[:, epoch])
        with torch.no_grad():
            outputs = learners.compute(task.valid_x, training=False)
            if is_error:
                losses = (outputs.argmax(2) != task.valid_y).float().mean(1)
                losses = torch.where(outputs.isfinite().all(2).all(1), losses, torch.inf)
            else:
                losses = measure_losses(outputs, task.valid_y)
        curves.append(losses.cpu())
    values = torch.stack(curves, dim=1).double().numpy()
    values[~np.isfinite(values) | (values > 1e30)] = np.inf
    pace = np.asarray(grid.width.cpu()) ** rng.choice([0.0, 0.5, 1.0])
    pace = pace / np.median(pace) * np.exp(0.1 * rng.standard_normal(trials))
    setup = np.full(trials, rng.choice([0.0, 0.1, 1.0]))
    seconds = np.broadcast_to(pace[:, None], values.shape).copy()
    lengths = np.full(trials, epochs)
    return Study(values, lengths, seconds, setup, epochs, f"trained_{kind}", configs)


def save_study(path: Path, study: Study) -> None:
    """Write a study as plain arrays."""
    about = json.dumps({"family": study.family, "configs": study.configs})
    losses, pace = study.losses.astype(np.float32), study.seconds[:, 0].astype(np.float32)
    np.savez_compressed(path, losses=losses, pace=pace, setup=study.setup, about=np.array(about))


def load_study(path: Path) -> Study:
    """Read a study."""
    arrays = np.load(path, allow_pickle=False)
    about = json.loads(str(arrays["about"]))
    losses = arrays["losses"].astype(np.float64)
    seconds = np.broadcast_to(arrays["pace"].astype(np.float64)[:, None], losses.shape).copy()
    trials, epochs = losses.shape
    return Study(
        losses, np.full(trials, epochs), seconds, arrays["setup"], epochs, about["family"],
        about["configs"],
    )  # fmt: skip


def main() -> None:
    """Train the studies that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    began = time.monotonic()
    for seed in range(options.first, options.first + options.studies):
        path = out / f"{seed}.npz"
        if not path.exists():
            save_study(path, record_study(seed, device))
            print(f"study {seed}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
