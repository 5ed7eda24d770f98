"""The training of `paceline demo`: a small network on pictures of clothes, in numpy alone.

Knows the bundled data, the network and its search space. `train` is written as a user would write
it: it knows nothing of studies, policies or the command line.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from paceline.core.space import choice, loguniform
from paceline.plan.settings import piecewise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from paceline.core.values import Config
    from paceline.worker.trial import Trial

    # Weights and biases of each layer in turn.
    Weights = list[NDArray[np.float32]]

DATA = "fashion_mnist_14.npz"
CLASSES = 10
EPOCHS = 27
BATCH = 16

# The first learning rate is one of four values, the later rates are continuous: trials with the
# same first rate share their first nine epochs.
SPACE: Config = {
    "lr": piecewise(
        [
            (0, choice([0.003, 0.01, 0.03, 0.1])),
            (9, loguniform(0.001, 0.03)),
            (18, loguniform(0.0003, 0.01)),
        ]
    ),
    "width": choice([64, 128, 256]),
    "momentum": choice([0.5, 0.9, 0.97]),
    "dropout": choice([0.0, 0.2]),
}


class Pictures(NamedTuple):
    """Pictures as rows of grey levels from 0 to 1, and the class of each."""

    pixels: NDArray[np.float32]
    labels: NDArray[np.uint8]


class Data(NamedTuple):
    """The pictures for training, for judging trials, and for the final test."""

    training: Pictures
    validation: Pictures
    unseen: Pictures


@cache
def data() -> Data:
    """Return the pictures in the package."""
    with (files("paceline") / "data" / DATA).open("rb") as file, np.load(file) as stored:
        labels: NDArray[np.uint8] = stored["labels"]
        pixels = stored["pixels"].reshape(len(labels), -1).astype(np.float32) / np.float32(15)
    spans = (slice(0, 6000), slice(6000, 8000), slice(8000, 10000))
    return Data(*(Pictures(pixels[span], labels[span]) for span in spans))


def train(trial: Trial) -> None:
    """Train one config; report its accuracy on the validation pictures."""
    pictures = data()
    weights = fresh(trial["width"], trial.seed)
    weights, speed = trial.keep(weights=weights, speed=[np.zeros_like(each) for each in weights])
    for epoch in trial.epochs():
        # With a generator for each epoch, a repeated epoch gives the same result.
        rng = np.random.default_rng([trial.seed, epoch])
        for batch in batches(pictures.training, rng):
            slopes = gradient(weights, batch, trial["dropout"], rng)
            for weight, velocity, slope in zip(weights, speed, slopes, strict=True):
                velocity *= np.float32(trial["momentum"])
                velocity -= np.float32(trial["lr"]) * slope
                weight += velocity
        trial.report(accuracy=accuracy(weights, pictures.validation))


def accuracy(weights: Weights, pictures: Pictures) -> float:
    """Return the share of pictures that the network classifies correctly."""
    *_, scores = layers(weights, pictures.pixels)
    return float(np.mean(scores.argmax(axis=1) == pictures.labels))


def fresh(width: int, seed: int) -> Weights:
    """Return the weights of a new network with two hidden layers."""
    rng = np.random.default_rng(seed)
    sizes = (data().training.pixels.shape[1], width, width, CLASSES)
    weights: Weights = []
    for above, below in pairwise(sizes):
        weights.append(rng.normal(0.0, (2 / above) ** 0.5, (above, below)).astype(np.float32))
        weights.append(np.zeros(below, np.float32))
    return weights


def batches(pictures: Pictures, rng: np.random.Generator) -> Iterator[Pictures]:
    """Yield all pictures in random order, in batches."""
    order = rng.permutation(len(pictures.labels))
    for start in range(0, len(order), BATCH):
        some = order[start : start + BATCH]
        yield Pictures(pictures.pixels[some], pictures.labels[some])


def layers(weights: Weights, pixels: NDArray[np.float32]) -> Weights:
    """Return the values of each layer: the pictures, the hidden layers, the scores."""
    made = [pixels]
    for at in range(0, len(weights), 2):
        below = made[-1] @ weights[at] + weights[at + 1]
        made.append(np.maximum(below, 0) if at < len(weights) - 2 else below)
    return made


def gradient(
    weights: Weights, batch: Pictures, dropout: float, rng: np.random.Generator
) -> Weights:
    """Return the gradient of the loss by each weight, with some pixels dropped."""
    pixels = batch.pixels
    if dropout:
        left = rng.random(pixels.shape, np.float32) >= dropout
        pixels = pixels * left / np.float32(1 - dropout)
    *inner, scores = layers(weights, pixels)
    # The gradient of the cross-entropy by the scores: probabilities minus the true classes.
    belief = np.exp(scores - scores.max(axis=1, keepdims=True))
    belief /= belief.sum(axis=1, keepdims=True)
    belief[np.arange(len(belief)), batch.labels] -= 1
    error = belief / np.float32(len(belief))
    slopes: Weights = []
    for at in range(len(weights) - 2, -1, -2):
        layer = inner[at // 2]
        slopes[:0] = [layer.T @ error, error.sum(axis=0)]
        if at:
            error = (error @ weights[at].T) * (layer > 0)
    return slopes
