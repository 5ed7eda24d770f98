"""Tune a small network on scikit-learn's digits: a training function, a space, a deadline.

Run it with `python examples/02_digits.py`. It needs scikit-learn, only for the data.
"""

import numpy as np
from sklearn.datasets import load_digits

import paceline as pl

digits, labels = load_digits(return_X_y=True)
inputs, truth = digits / 16, np.eye(10)[labels]


def train(trial):
    rng = np.random.default_rng(trial.seed)
    first, second = trial.keep(  # survives a pause, a move and a crash
        first=rng.normal(0, 0.2, (64, trial["width"])),
        second=rng.normal(0, 0.2, (trial["width"], 10)),
    )
    for epoch in trial.epochs():  # resumes after the last checkpoint
        order = np.random.default_rng([trial.seed, epoch]).permutation(1400)
        for batch in np.split(order, 70):
            hidden = np.tanh(inputs[batch] @ first)
            scores = np.exp(hidden @ second)
            error = scores / scores.sum(axis=1, keepdims=True) - truth[batch]
            back = error @ second.T * (1 - hidden**2)
            second -= trial["lr"] * hidden.T @ error / 20  # the rate of this epoch
            first -= trial["lr"] * inputs[batch].T @ back / 20
        guesses = (np.tanh(inputs[1400:] @ first) @ second).argmax(axis=1)
        trial.report(accuracy=np.mean(guesses == labels[1400:]))


result = pl.tune(
    train,
    space={
        # Trials with the same first rate and width train their first nine epochs only once.
        "lr": pl.piecewise([(0, pl.choice([0.03, 0.1, 0.3, 1.0])), (9, pl.loguniform(0.01, 0.3))]),
        "width": pl.choice([16, 32, 64]),
    },
    metric="accuracy",
    mode="max",
    epochs=27,
    policy="asha",
    trials=40,
    deadline="30s",
)
print(f"accuracy {result.best.value:.3f} with {result.best.config}")
print(f"{len(result.trials)} trials in {result.clock_s:.1f} s: {result.why}")
print({name: weights.shape for name, weights in result.best.checkpoint.load().items()})
