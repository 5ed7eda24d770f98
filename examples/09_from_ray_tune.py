"""Run a trainable and a search space that were written for Ray Tune, unchanged.

Run it with `python examples/09_from_ray_tune.py`. It needs Ray Tune and scikit-learn, but no Ray
cluster: trials are processes of this machine.
"""

from pathlib import Path

import numpy as np
from ray import tune
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

import paceline as pl
from paceline.integrations import ray_tune

digits, labels = load_digits(return_X_y=True)


class Digits(tune.Trainable):
    def setup(self, config):
        self.model = SGDClassifier(
            learning_rate="constant", eta0=config["lr"], alpha=config["alpha"], random_state=0
        )

    def step(self):
        self.model.partial_fit(digits[:1400], labels[:1400], classes=np.arange(10))
        return {"accuracy": self.model.score(digits[1400:], labels[1400:])}

    def save_checkpoint(self, checkpoint_dir):
        model = self.model
        np.savez(Path(checkpoint_dir) / "model.npz", w=model.coef_, b=model.intercept_, t=model.t_)

    def load_checkpoint(self, checkpoint_dir):
        self.model.classes_ = np.arange(10)
        with np.load(Path(checkpoint_dir) / "model.npz") as saved:
            self.model.coef_, self.model.intercept_ = saved["w"], saved["b"]
            self.model.t_ = float(saved["t"])


param_space = {"lr": tune.loguniform(1e-5, 1e-1), "alpha": tune.loguniform(1e-6, 1e-1)}

# Instead of tune.Tuner(Digits, param_space=param_space, …).fit():
result = pl.tune(
    ray_tune.trainable(Digits),
    space=ray_tune.space(param_space),
    metric="accuracy",
    mode="max",
    epochs=9,
    trials=12,
    policy="asha",
    deadline="60s",
)
print(f"accuracy {result.best.value:.3f} with {result.best.config}")
print(f"{len(result.trials)} trials in {result.clock_s:.1f} s: {result.why}")
