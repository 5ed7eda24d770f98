"""Tune a classifier with Ray Tune: a function, checkpoints, ASHA. It needs ray[tune], sklearn."""

import tempfile
from pathlib import Path

import numpy as np
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

digits, labels = load_digits(return_X_y=True)
EPOCHS = 9


def train(config):
    model = SGDClassifier(learning_rate="constant", eta0=config["lr"], alpha=config["alpha"])
    start = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder, np.load(Path(folder) / "model.npz") as saved:
            start, model.classes_ = int(saved["epoch"]) + 1, np.arange(10)
            model.coef_, model.intercept_ = saved["coef"], saved["bias"]
    for epoch in range(start, EPOCHS):
        model.partial_fit(digits[:1400], labels[:1400], classes=np.arange(10))
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.npz"
            np.savez(file, epoch=epoch, coef=model.coef_, bias=model.intercept_)
            tune.report(
                {"accuracy": model.score(digits[1400:], labels[1400:])},
                checkpoint=tune.Checkpoint.from_directory(folder),
            )


if __name__ == "__main__":
    space = {"lr": tune.loguniform(1e-5, 1e-1), "alpha": tune.loguniform(1e-6, 1e-1)}
    scheduler = ASHAScheduler(max_t=EPOCHS)
    choose = tune.TuneConfig(metric="accuracy", mode="max", num_samples=4, scheduler=scheduler)
    best = tune.Tuner(train, param_space=space, tune_config=choose).fit().get_best_result()
    print(f"accuracy {best.metrics['accuracy']:.3f} with {best.config}")
