"""Train the best network for handwritten digits that fits into 30 seconds.

Run it with `python examples/10_deadline.py`. It needs torch and scikit-learn (for the data).
"""

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import paceline as pl

images, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
images = images.float() / 16


def train(trial):
    width = trial["width"]
    model = torch.nn.Sequential(
        torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=trial["lr"])
    trial.keep(model=model, optimizer=optimizer)  # saved, and restored after a pause or a crash
    for _ in trial.epochs():  # goes on after the last checkpoint
        for rows in torch.randperm(1400).split(50):
            optimizer.zero_grad()
            cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
        right = model(images[1400:]).argmax(dim=1) == labels[1400:]
        trial.report(accuracy=right.float().mean())


result = pl.tune(
    train,
    space={"lr": pl.loguniform(1e-4, 1e-1), "width": pl.choice([16, 32, 64, 128])},
    metric="accuracy",
    mode="max",
    epochs=27,
    deadline="30s",
)
print(result.best.value, result.best.config)
weights = result.best.checkpoint.load()["model"]
