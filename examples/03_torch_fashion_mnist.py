"""Tune a convolutional network in PyTorch on Fashion-MNIST, on GPUs if there are any.

Get the data with `apt install dataset-fashion-mnist` on Debian and Ubuntu, or put the four files
ending in `-ubyte.gz` from https://github.com/zalandoresearch/fashion-mnist into a folder. Run it
with `python examples/03_torch_fashion_mnist.py [FOLDER]`. `--quick` uses few pictures and trials.
"""

import argparse
import gzip
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import paceline as pl

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", nargs="?", type=Path, default="/usr/share/datasets/fashion-mnist")
parser.add_argument("--quick", action="store_true", help="few pictures, few trials")
given = parser.parse_args()
if not (given.folder / "train-images-idx3-ubyte.gz").exists():
    sys.exit(
        f"Fashion-MNIST is not in {given.folder}: give its folder, or get the data (see above)."
    )


def read(name, header):
    with gzip.open(given.folder / name) as file:
        return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8, offset=header)


# Read once: workers are forked from a process that has loaded the function and these tensors.
count = 2_000 if given.quick else 60_000
pictures = read("train-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)[:count]
labels = read("train-labels-idx1-ubyte.gz", 8)[:count]
split = count * 5 // 6


def network(width, dropout):
    return nn.Sequential(
        *(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(dropout), nn.Linear(2 * width * 49, 10)),
    )


def train(trial):
    inputs = pictures.to(trial.device).float() / 255
    truth = labels.to(trial.device).long()
    model = network(trial["width"], trial["dropout"]).to(trial.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    trial.keep(model=model, optimizer=optimizer)
    for _ in trial.epochs():
        optimizer.param_groups[0]["lr"] = trial["lr"]  # the rate of this epoch
        model.train()
        for batch in torch.randperm(split, device=trial.device).split(64):
            optimizer.zero_grad()
            cross_entropy(model(inputs[batch]), truth[batch]).backward()
            optimizer.step()
        model.eval()
        with torch.inference_mode():
            guesses = [model(some).argmax(dim=1) for some in inputs[split:].split(1000)]
        right = torch.cat(guesses) == truth[split:]
        trial.report(accuracy=right.float().mean().item())


EPOCHS = 3 if given.quick else 9
result = pl.tune(
    train,
    space={
        # Trials with the same first rate share their first epochs and branch at the drop.
        "lr": pl.piecewise(
            [(0, pl.choice([0.01, 0.03, 0.1])), (EPOCHS * 2 // 3, pl.loguniform(0.001, 0.03))]
        ),
        "width": pl.choice([4, 8] if given.quick else [16, 32, 64]),
        "dropout": pl.choice([0.0, 0.25, 0.5]),
    },
    metric="accuracy",
    mode="max",
    epochs=EPOCHS,
    policy="asha",
    trials=4 if given.quick else 60,
    deadline="2m" if given.quick else "30m",
)
best = result.best
print(f"accuracy {best.value:.3f} with {best.config}")
print(f"{len(result.trials)} trials in {result.clock_s:.0f} s: {result.why}")
model = network(best.config["width"], best.config["dropout"])
model.load_state_dict(best.checkpoint.load()["model"])
print(f"loaded back: a network of {sum(each.numel() for each in model.parameters()):,} weights")
