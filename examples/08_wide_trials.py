"""Trials of several widths in PyTorch: one slot each, two slots each, and two trials on one slot.

The training is the same at any width: the processes of a trial divide each batch and average their
gradients. It needs PyTorch: `pip install 'paceline[torch]'`. Run it with
`python examples/08_wide_trials.py`.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import paceline as pl

generator = torch.Generator().manual_seed(0)
labels = torch.randint(0, 4, (512,), generator=generator)
points = torch.randn(512, 16, generator=generator) + labels[:, None]


def train(trial):
    with pl.integrations.torch.gang(trial) as gang:  # does nothing with one process
        model = nn.Sequential(
            nn.Linear(16, trial["units"]), nn.ReLU(), nn.Linear(trial["units"], 4)
        )
        net = gang.wrap(model.to(gang.device))
        optimizer = torch.optim.SGD(net.parameters(), lr=trial["lr"], momentum=0.9)
        trial.keep(model=net, optimizer=optimizer)
        for epoch in trial.epochs():
            right, seen = 0, 0
            # This process's rows of each batch of 64, and their weight.
            for rows, weight in gang.batches(len(points), 64, epoch):
                guesses = net(points[rows].to(gang.device))
                truth = labels[rows].to(gang.device)
                optimizer.zero_grad()
                (weight * cross_entropy(guesses, truth)).backward()
                optimizer.step()
                right += (guesses.argmax(dim=1) == truth).sum().item()
                seen += len(rows)
            trial.report(accuracy=gang.mean(right / seen, seen))


study = {
    "space": {"lr": pl.loguniform(0.01, 0.3), "units": pl.choice([16, 32])},
    "metric": "accuracy",
    "mode": "max",
    "epochs": 6,
    "policy": "fifo",
    "generator": "random",
    "trials": 4,
    "slots": "cpu:2",
}
for name, widths in (
    ("alone", {}),
    ("two slots each", {"span": 2}),
    ("two on a slot", {"pack": 2}),
):
    result = pl.tune(train, **study, **widths)
    print(f"{name}: accuracy {result.best.value:.4f} with lr {result.best.config['lr']:.3f}")
