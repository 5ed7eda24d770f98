"""A training function in Ray's style: `train(config)`, `report`, `get_checkpoint`.

The function counts its own epochs, and its checkpoints are folders. Run it with
`python examples/05_ray_style.py`. It needs scikit-learn.
"""

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

import paceline as pl

digits, labels = load_digits(return_X_y=True)
EPOCHS = 9


def train(config):
    model = SGDClassifier(
        learning_rate="constant", eta0=config["lr"], alpha=config["alpha"], random_state=0
    )
    start = 0
    checkpoint = pl.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder, np.load(Path(folder) / "model.npz") as saved:
            start = int(saved["epochs"])
            model.classes_ = np.arange(10)
            model.coef_, model.intercept_, model.t_ = saved["coef"], saved["bias"], saved["steps"]
    for epoch in range(start, EPOCHS):
        model.partial_fit(digits[:1400], labels[:1400], classes=np.arange(10))
        with tempfile.TemporaryDirectory() as folder:
            np.savez(
                Path(folder) / "model.npz",
                epochs=epoch + 1,
                coef=model.coef_,
                bias=model.intercept_,
                steps=model.t_,
            )
            pl.report(
                {"accuracy": model.score(digits[1400:], labels[1400:])},
                checkpoint=pl.Checkpoint.from_directory(folder),
            )


result = pl.tune(
    train,
    space={"lr": pl.loguniform(1e-5, 1e-1), "alpha": pl.loguniform(1e-6, 1e-1)},
    metric="accuracy",
    mode="max",
    epochs=EPOCHS,
    trials=12,
    deadline="30s",
)
print(f"accuracy {result.best.value:.3f} with {result.best.config}")
with tempfile.TemporaryDirectory() as place:
    folder = result.best.checkpoint.to_directory(place)
    print(f"its checkpoint holds {', '.join(path.name for path in folder.iterdir())}")
